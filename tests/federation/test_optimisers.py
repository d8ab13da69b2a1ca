"""Optimisers and learning-rate schedules that cannot work per client are refused before any training."""

import math
from functools import partial

import pytest
from federation_kit import Blobs, make_trainer, sgd, small_federation
from lightning.pytorch.cli import ReduceLROnPlateau
from torch.optim import LBFGS, SGD, Adam, Rprop, SparseAdam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    StepLR,
)

from app.common.errors import UserError
from app.federation.checks.optimisers import optimiser_problems
from app.federation.local_training import LocalTraining

OPTIMISERS = {
    "negative rate": (partial(Adam, lr=-1.0), "Invalid learning rate"),
    "no rate": (partial(SGD, lr=0.0), "learning rate is 0"),
    "infinite rate": (partial(SGD, lr=math.inf), "learning rate is inf"),
    "undefined rate": (partial(Rprop, lr=math.nan), "learning rate"),
    "closure": (LBFGS, "LBFGS cannot take a step"),
    "sparse gradients": (SparseAdam, "SparseAdam cannot take a step"),
    "betas": (partial(Adam, betas=(2.0, 0.9)), "Invalid beta"),
    "misspelt option": (partial(SGD, lrr=0.1), "lrr"),
}

SCHEDULES = {
    "metric": (partial(ReduceLROnPlateau, monitor="server/loss"), "waits for a metric"),
    "no step size": (partial(StepLR, step_size=0), "cannot be followed"),
    "too few steps": (partial(OneCycleLR, max_lr=0.1, total_steps=3), "cannot be followed for 6 rounds"),
    "no total": (partial(OneCycleLR, max_lr=0.1), "cannot be followed"),
    "ends at nothing": (partial(PolynomialLR, total_iters=3), "learning rate to 0 in round 4 of 6"),
    "negative": (partial(ExponentialLR, gamma=-0.5), "learning rate to -0.25 in round 2"),
    "undefined": (partial(LambdaLR, lr_lambda=lambda _: math.nan), "learning rate to nan in round 1"),
    "warm-up": (partial(LinearLR, total_iters=20), "still warming up"),
    "cycle": (partial(OneCycleLR, max_lr=9.0, total_steps=100), "still warming up"),
}

SOUND = {
    "steps": partial(StepLR, step_size=2),
    "milestones after the end": partial(MultiStepLR, milestones=[50, 75]),
    "cosine": partial(CosineAnnealingLR, T_max=6),
    "warm-up": partial(LinearLR, total_iters=4),
    "one cycle": partial(OneCycleLR, max_lr=0.5, total_steps=6),
}


@pytest.mark.parametrize("case", OPTIMISERS)
def test_an_optimiser_that_cannot_train_clients_is_refused(case):
    """One problem, instead of a traceback in the first round."""
    optimizer, words = OPTIMISERS[case]
    (problem,) = optimiser_problems(LocalTraining(optimizer=optimizer), 6)
    assert words in problem.cause
    assert "--model.local.optimizer" in problem.remedy


@pytest.mark.parametrize("case", SCHEDULES)
def test_a_schedule_that_cannot_be_followed_is_refused(case):
    """One problem, which names the round where one is to blame."""
    schedule, words = SCHEDULES[case]
    (problem,) = optimiser_problems(LocalTraining(optimizer=sgd(0.5), lr_schedule=schedule), 6)
    assert words in problem.cause
    assert "--model.local.lr_schedule" in problem.remedy or "--trainer.max_epochs" in problem.remedy


@pytest.mark.parametrize("case", SOUND)
def test_sound_schedules_pass(case):
    """Milestones that a shorter run does not reach are no mistake."""
    assert not list(optimiser_problems(LocalTraining(optimizer=sgd(0.5), lr_schedule=SOUND[case]), 6))


def test_a_run_reports_them_before_training():
    """Together with steps that would make epochs meaningless."""
    local = LocalTraining(epochs=3, steps=2, optimizer=partial(Adam, lr=-1.0))
    with pytest.raises(UserError) as caught:
        make_trainer(1).fit(small_federation(local=local), datamodule=Blobs((5, 8)))
    steps, rate = caught.value.problems
    assert "local.steps is 2 and local.epochs is 3" in steps.cause
    assert "--model.local.epochs 1" in steps.remedy
    assert "Invalid learning rate" in rate.cause
