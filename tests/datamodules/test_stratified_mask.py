import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.split import stratified_mask


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=60), st.sampled_from([0, 0.125, 0.25, 0.5, 0.75, 1]), st.integers(0, 99))
def test_every_class_gives_its_share(labels, fraction, seed):
    labels = np.array(labels, dtype=np.int64)
    mask = stratified_mask(labels, fraction, np.random.default_rng(seed))
    assert mask.shape == labels.shape
    for label in np.unique(labels):
        share = fraction * (labels == label).sum()
        assert mask[labels == label].sum() in (math.floor(share), math.ceil(share))
    assert math.floor(fraction * len(labels)) <= mask.sum() <= math.ceil(fraction * len(labels))


def test_every_sample_has_the_same_chance_even_in_a_class_of_one():
    labels = np.array([0] * 9 + [1] + [2] * 2)
    draws = np.mean([stratified_mask(labels, 0.25, np.random.default_rng(seed)) for seed in range(4000)], axis=0)
    assert np.abs(draws - 0.25).max() < 0.035
