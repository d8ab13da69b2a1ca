"""The validation set of a comparison that tunes: by sample ids apart from all that is trained on, tested or audited."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from app.common.errors import UserError
from app.federation.evaluation import ServerEvaluation
from datamodules import Digits, DirichletLabels, DirichletSizes, Holdout, Iid, split_pool

LABELS = np.arange(1200) % 10
KEPT = Holdout(0.3, 0.2, 0.1, 0.1, validation=0.1)
TUNING = Holdout(0.3, 0.2, 0.1, 0.1, validation=0.1, evaluated="validation")
PARTITIONS = [Iid(6), DirichletLabels(5, alpha=2.0), DirichletSizes(4, alpha=2.0)]


def split(holdout, partition=PARTITIONS[0], seed=0):
    return split_pool(LABELS, None, 80, partition, holdout, seed)


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda one: type(one).__name__)
def test_no_seed_uses_it_for_anything_else(partition):
    """A tenth of every class, the same for all seeds: what one seed chooses by is no other seed's member."""
    validation = split(KEPT, partition).validation
    assert np.bincount(LABELS[validation]).tolist() == [12] * 10
    for seed in range(5):
        own = split(KEPT, partition, seed)
        assert np.array_equal(own.validation, validation)
        others = [*own.members, *own.nonmembers, *own.reference, own.shadow, own.population, own.test]
        assert not np.isin(validation, np.concatenate(others)).any()
        assert sorted(np.concatenate([*others, validation])) == list(range(1280)), "nothing is lost"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_trial_trains_on_the_same_members_and_sees_no_test_sample(seed):
    run, trial = split(KEPT, seed=seed), split(TUNING, seed=seed)
    assert all(map(np.array_equal, run.members, trial.members))
    assert np.array_equal(trial.test, run.validation)
    forbidden = np.concatenate([run.test, *run.nonmembers])
    seen = np.concatenate([*trial.members, *trial.nonmembers, trial.test])
    assert not np.isin(forbidden, seen).any()
    trial.check_disjoint()


def test_shares_are_those_of_the_whole_pool():
    own = split(KEPT)
    assert (len(own.shadow), len(own.population)) == (240, 120)


def test_without_it_nothing_changes():
    """Sums of sample ids of the version before there were validation sets."""
    own = split(Holdout(0.3, 0.2, 0.1, 0.1), seed=3)
    assert len(own.validation) == 0
    assert [int(ids.sum()) for ids in (own.shadow, own.population, own.members[0])] == [137620, 69980, 57326]


@pytest.mark.parametrize(
    ("holdout", "words"),
    [
        (Holdout(evaluated="validation"), "set --data.holdout.validation"),
        (Holdout(shadow=0.5, population=0.2, validation=0.3), "lower --data.holdout.shadow or"),
    ],
)
def test_what_cannot_be(holdout, words):
    with pytest.raises(UserError, match=words):
        split(holdout)


class Nearest(torch.nn.Module):
    """Knows the right label of every image."""

    def __init__(self, store):
        super().__init__()
        images, labels = store.rightly_labelled.batch(torch.arange(len(store.labels)))
        self.known = torch.nn.Parameter(images.flatten(1), requires_grad=False)
        self.rows = torch.nn.functional.one_hot(labels, 10).float()

    def forward(self, images):
        return self.rows[torch.cdist(images.flatten(1), self.known).argmin(1)]


def test_it_is_judged_by_right_labels():
    """Most labels of the pool are wrong, those of the validation set among them; a perfect model scores 100 %."""
    data = Digits(partition=Iid(4), holdout=Holdout(validation=0.2, evaluated="validation"), label_noise=0.7)
    data.setup()
    evaluation = ServerEvaluation(Nearest(data.store), data, 128)
    evaluation.start()
    evaluation.add(evaluation.share(0, 1), map, nullcontext)
    assert evaluation.finish().accuracy == 1.0
    assert len(data.common_test) > 200
