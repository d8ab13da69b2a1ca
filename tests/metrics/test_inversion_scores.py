"""Scores of a model inversion: by hand, and without advantage for the larger set."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from app.metrics.inversion import LabelledImages, expected_largest, inversion_scores
from app.metrics.membership import NotAvailable


def labelled(images, labels):
    """Images of one row of pixels each."""
    return LabelledImages(torch.tensor(images, dtype=torch.float64).view(len(labels), 1, 1, -1), torch.tensor(labels))


def noise(count, classes, seed, pixels=16):
    """Independent images with labels in turn."""
    draw = torch.Generator().manual_seed(seed)
    return LabelledImages(torch.rand(count, 1, 1, pixels, generator=draw), torch.arange(count) % classes)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_expected_largest_is_the_mean_over_all_subsets(size):
    """Against the definition, for ties and several rows too."""
    values = torch.tensor([[0.3, -1.0, 2.0, 0.3, 0.9, -0.2], [5.0, 1.0, 1.0, 1.0, 1.0, 4.0]])
    subsets = list(combinations(range(6), size))
    for row, found in zip(values, expected_largest(values, size), strict=True):
        assert float(found) == pytest.approx(np.mean([max(row[list(subset)].tolist()) for subset in subsets]))


def test_scores_by_hand():
    """Two classes; correlations of three pixels that can be worked out."""
    found = labelled([[0, 1, 2], [2, 1, 0]], [0, 1])
    members = labelled([[0, 1, 2], [0, 2, 1], [0, 1, 2], [9, 9, 0]], [0, 0, 1, 1])
    others = labelled([[0, 0, 1], [2, 1, 0]], [0, 1])
    scores = inversion_scores(found, members, others, torch.tensor([0, 0]))
    first, second = scores.classes
    root = 3**0.5 / 2
    assert (first.label, first.compared) == (0, 1)
    assert first.to_member == pytest.approx((1 + 0.5) / 2)
    assert first.to_other == pytest.approx(root)
    # class means (0, 1.5, 1.5) and (4.5, 5, 1): correlations with (0, 1, 2) and (2, 1, 0)
    assert first.to_mean == pytest.approx(root)
    assert second.to_mean == pytest.approx(np.corrcoef([4.5, 5, 1], [2, 1, 0])[0, 1])
    assert second.to_member == pytest.approx((-1 + root) / 2)
    assert second.to_other == pytest.approx(1.0)
    gaps = [0.75 - root, (-1 + root) / 2 - 1]
    assert [row.gap for row in scores.classes] == pytest.approx(gaps)
    assert scores.gap.value == pytest.approx(np.mean(gaps))
    assert scores.to_mean == pytest.approx((first.to_mean + second.to_mean) / 2)
    assert scores.to_member == pytest.approx((first.to_member + second.to_member) / 2)
    assert scores.to_other == pytest.approx((root + 1) / 2)
    assert scores.accuracy.value == 0.5
    assert scores.accuracy.interval.contains(0.5)


def test_the_interval_is_students():
    """Of the gaps of the classes."""
    scores = inversion_scores(noise(8, 8, 0), noise(40, 8, 1), noise(40, 8, 2), None)
    gaps = [row.gap for row in scores.classes]
    low, high = stats.t.interval(0.95, 7, np.mean(gaps), stats.sem(gaps))
    assert scores.gap.interval.low == pytest.approx(low)
    assert scores.gap.interval.high == pytest.approx(high)
    assert scores.gap.interval.confidence == 0.95


def test_memorised_images_make_a_gap():
    """Where the reconstructions are training images, the nearest one is exact and the gap is significant."""
    members, others = noise(80, 10, 0), noise(60, 10, 1)
    found = LabelledImages(members.images[:10], members.labels[:10])
    scores = inversion_scores(found, LabelledImages(members.images[:60], members.labels[:60]), others, None)
    assert scores.to_member == pytest.approx(1.0)
    assert scores.gap.interval.low > 0.1


def test_the_larger_set_has_no_advantage():
    """Images that know nothing: no gap, though there are nine times as many training images."""
    gaps = [
        inversion_scores(noise(20, 20, seed), noise(900, 20, seed + 100), noise(100, 20, seed + 200), None).gap.value
        for seed in range(10)
    ]
    assert abs(np.mean(gaps)) < 3 * np.std(gaps, ddof=1) / 10**0.5
    assert abs(np.mean(gaps)) < 0.02


def test_sets_can_be_exchanged():
    """Training images and others in each other's place turn the gap round, sizes apart."""
    found, one, two = noise(5, 5, 0), noise(50, 5, 1), noise(20, 5, 2)
    there, back = inversion_scores(found, one, two, None), inversion_scores(found, two, one, None)
    assert there.gap.value == pytest.approx(-back.gap.value)


def test_only_images_of_the_class_count():
    """A reconstruction that is an image of another class gains nothing from it."""
    members, others = noise(40, 4, 0), noise(40, 4, 1)
    found = LabelledImages(members.images[1:2], torch.tensor([0]))
    scores = inversion_scores(found, members, others, None)
    assert scores.to_member < 0.9
    assert isinstance(scores.gap.interval, NotAvailable)


def test_several_reconstructions_of_a_class_count_as_one():
    """Repeating one changes nothing but the number of verdicts of the classifier."""
    found, members, others = noise(4, 4, 0), noise(40, 4, 1), noise(40, 4, 2)
    twice = LabelledImages(found.images.repeat(2, 1, 1, 1), found.labels.repeat(2))
    once, double = (inversion_scores(some, members, others, some.labels.clone()) for some in (found, twice))
    assert [row.gap for row in double.classes] == pytest.approx([row.gap for row in once.classes])
    assert double.gap.interval.low == pytest.approx(once.gap.interval.low)
    assert double.accuracy.interval.low > once.accuracy.interval.low


def test_classes_that_cannot_be_compared():
    """They are left out and counted; without any other class there is no result."""
    found, members, others = noise(3, 3, 0), noise(30, 3, 1), noise(30, 2, 2)
    scores = inversion_scores(found, members, others, None)
    assert [row.label for row in scores.classes] == [0, 1]
    assert scores.left_out == 1
    assert isinstance(scores.accuracy, NotAvailable)
    nobody = LabelledImages(others.images[:0], others.labels[:0])
    assert isinstance(inversion_scores(found, members, nobody, None), NotAvailable)


def test_blank_reconstructions():
    """A constant image is like nothing: all scores are 0, none is missing."""
    found = LabelledImages(torch.zeros(2, 1, 1, 16), torch.arange(2))
    scores = inversion_scores(found, noise(20, 2, 1), noise(20, 2, 2), torch.tensor([1, 1]))
    assert (scores.to_mean, scores.to_member, scores.to_other, scores.gap.value) == (0, 0, 0, 0)
    assert scores.accuracy.value == 0.5
