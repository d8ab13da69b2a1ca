"""Every option of Lightning's trainer works as it says, or is refused before any training with the way out."""

from datetime import timedelta

import pytest
import torch
from federation_kit import Blobs, Recorder, make_trainer, run, small_federation
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.callbacks.weight_averaging import EMAWeightAveraging

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining

SIZES = (5, 8, 11)

REFUSED = {
    "no round": ({"max_epochs": 0}, "--trainer.max_epochs"),
    "no end": ({"max_epochs": -1}, "--trainer.max_epochs"),
    "no end, but a time": ({"max_epochs": -1, "max_time": "00:01:00:00"}, "--trainer.max_epochs"),
    "steps": ({"max_steps": 1}, "--trainer.max_epochs"),
    "no steps": ({"max_steps": 0}, "--trainer.max_epochs"),
    "least steps": ({"min_steps": 5}, "--trainer.min_epochs"),
    "more rounds than there are": ({"min_epochs": 5}, "--trainer.max_epochs"),
    "no time": ({"max_time": "00:00:00:00"}, "--trainer.max_time"),
    "half of the blocks": ({"limit_train_batches": 0.5}, "--model.participation"),
    "one block": ({"limit_train_batches": 1}, "--model.participation"),
    "no block": ({"limit_train_batches": 0}, "--model.participation"),
    "overfitted half": ({"overfit_batches": 0.5}, "--data.partition.clients"),
    "overfitted block": ({"overfit_batches": 1}, "--data.partition.clients"),
    "half of the test set": ({"limit_val_batches": 0.5}, "--model.evaluation.limit"),
    "test phase": ({"limit_test_batches": 2}, "leave it out"),
    "validation within a round": ({"val_check_interval": 0.5}, "--trainer.check_val_every_n_epoch"),
    "validation after every block": ({"val_check_interval": 1}, "--trainer.check_val_every_n_epoch"),
    "validation after no block": ({"val_check_interval": 0}, "--trainer.check_val_every_n_epoch"),
    "validation after three blocks": ({"val_check_interval": 3}, "--trainer.check_val_every_n_epoch"),
    "validation by the clock": ({"val_check_interval": "00:00:00:01"}, "--trainer.check_val_every_n_epoch"),
    "validation in no round": ({"check_val_every_n_epoch": 0}, "1 or more rounds"),
    "validation in unknown rounds": ({"check_val_every_n_epoch": None}, "1 or more rounds"),
    "negative logging": ({"log_every_n_steps": -1}, "leave it out"),
    "clipping rule": ({"gradient_clip_algorithm": "value"}, "--model.local.clip_norm"),
    "one batch of development": ({"fast_dev_run": True}, "--trainer.max_epochs 1"),
    "two batches of development": ({"fast_dev_run": 2}, "--trainer.max_epochs 1"),
    "model registry": ({"model_registry": "mine"}, "--trainer.model_registry"),
}


def refusal(*callbacks: object, **options: object) -> UserError:
    """The error of a run of two rounds that must not start."""
    rounds = options.pop("max_epochs", 2)
    with pytest.raises(UserError) as caught:
        make_trainer(rounds, callbacks=callbacks, **options).fit(small_federation(), datamodule=Blobs(SIZES))
    return caught.value


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_honoured_are_refused(case):
    """One problem, which names the value, what would happen, and what to set instead."""
    options, remedy = REFUSED[case]
    (problem,) = refusal(**options).problems
    assert "--trainer." in problem.cause or "seconds" in problem.cause
    assert problem.consequence
    assert remedy in problem.remedy


HONOURED = {
    "all blocks": {"limit_train_batches": 1.0},
    "no validation": {"limit_val_batches": 0},
    "validation in one step": {"limit_val_batches": 1},
    "least rounds": {"min_epochs": 2},
    "plenty of time": {"max_time": "00:01:00:00"},
    "seldom": {"check_val_every_n_epoch": 2},
    "sanity check": {"num_sanity_val_steps": 2},
    "anomalies": {"detect_anomaly": True},
    "no inference mode": {"inference_mode": False},
    "profiled": {"profiler": "simple"},
    "sampler": {"use_distributed_sampler": True},
    "reloaded": {"reload_dataloaders_every_n_epochs": 1},
    "repeatable": {"deterministic": "warn"},
}


@pytest.mark.parametrize("case", HONOURED)
@pytest.mark.filterwarnings("ignore")
def test_other_options_do_not_change_the_result(case, capsys):
    """Two whole rounds with all clients, bit for bit as without the option."""
    settings = {"executor": "auto", "local": LocalTraining(batch_size=4)}
    expected = run(small_federation(**settings), Blobs(SIZES), callbacks=[counted := Recorder()])
    assert len(counted.updates) == 6
    found = run(small_federation(**settings), Blobs(SIZES), callbacks=[Recorder()], **HONOURED[case])
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


OPTIMISING = [
    StochasticWeightAveraging(0.1),
    EMAWeightAveraging(),
    GradientAccumulationScheduler({1: 2}),
    LearningRateFinder(),
    LearningRateMonitor(),
    BatchSizeFinder(),
    ModelPruning("l1_unstructured"),
    BackboneFinetuning(),
]


@pytest.mark.parametrize("callback", OPTIMISING, ids=lambda callback: type(callback).__name__)
def test_callbacks_that_need_the_trainers_optimiser_are_refused(callback):
    """Clients have optimisers of their own."""
    options = {"logger": True} if isinstance(callback, LearningRateMonitor) else {}
    (problem,) = refusal(callback, **options).problems
    assert type(callback).__name__ in problem.cause
    assert "clients train with optimisers of their own" in problem.consequence


@pytest.mark.parametrize("metric", ["foo", "server/accurracy", "clients/trained_own", "capacity-2/trained_own/mean"])
@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_unknown_metrics_are_refused_with_the_known_ones(kind, metric):
    """Before the first round, also where a checkpoint waits for them."""
    options = {"enable_checkpointing": True} if kind is ModelCheckpoint else {}
    (problem,) = refusal(kind(monitor=metric), **options).problems
    assert metric in problem.cause
    assert "server/accuracy" in problem.remedy
    assert "clients/trained_own/worst" in problem.remedy


def test_known_metrics_may_be_monitored():
    """Those of the federation, and those that a callback measures."""

    class Meter(FederatedCallback):
        """Measures something."""

        kind = "recorder"

        def measurements(self):
            """One number."""
            return {"mine/number": 1.0}

    for metric in ("server/accuracy", "clients/loss", "mine/number"):
        stop = EarlyStopping(monitor=metric, mode="max", check_on_train_epoch_end=True)
        run(small_federation(), Blobs(SIZES), callbacks=[Meter(), stop])


def test_the_time_ends_a_run_between_two_rounds():
    """By default Lightning would leave a round after its first block, and no client would be counted."""
    timer, recorder = Timer(duration=timedelta(seconds=1e-6), interval="step"), Recorder()
    run(small_federation(block_size=1), Blobs(SIZES), 3, [timer, recorder])
    assert len(recorder.aggregates) == 1
    assert len(recorder.updates) == 3


def test_validation_needs_no_number_of_rounds():
    """Lightning sets one where it trains only."""
    (scores,) = make_trainer(None).validate(small_federation(), datamodule=Blobs(SIZES), verbose=False)
    assert "server/accuracy" in scores
