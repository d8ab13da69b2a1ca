"""Options and callbacks of Lightning's trainer that a federation cannot honour, each with the way out.

A round is an epoch and a block of clients is a batch, so options about batches, steps and gradients of the trainer
would leave clients out of a round, or have no effect at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning.pytorch import callbacks

from app.common.errors import Problem
from app.federation.hooks import federated_callbacks, overriding
from app.federation.reports import known_metrics

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

BLOCKS = "a batch is a block of clients here: the others would be left out of the round"
NO_STEPS = "a step of the trainer is a whole round, and the plan, budgets and learning rates follow the rounds"
UNSEEN = "the trainer never sees the clients' gradients, so nothing would be clipped"
NO_PHASE = "a federation has no such phase, so it would have no effect"


@dataclass(frozen=True)
class OptionRule:
    """A value of one trainer option that is refused."""

    option: str  # its name, which is also the trainer's attribute
    wrong: Callable[[Any], bool]  # whether a value is refused
    consequence: str
    remedy: str


def _is_given(value: Any) -> bool:
    return value is not None


RULES = (
    OptionRule("fast_dev_run", bool, BLOCKS, "train one whole round instead: --trainer.max_epochs 1"),
    OptionRule(
        "max_epochs",
        lambda rounds: rounds is not None and rounds < 1,  # None where nothing is to be trained
        "it is the number of rounds, which the plan, budgets and learning rates need before the first one",
        "set --trainer.max_epochs to 1 or more; --trainer.max_time may end the run earlier",
    ),
    OptionRule("max_steps", lambda steps: steps != -1, NO_STEPS, "use --trainer.max_epochs instead"),
    OptionRule("min_steps", bool, NO_STEPS, "use --trainer.min_epochs instead"),
    OptionRule(
        "overfit_batches", bool, BLOCKS, "leave it out; --data.partition.clients and --model.participation make it less"
    ),
    OptionRule(
        "limit_train_batches",
        lambda limit: isinstance(limit, int) or limit != 1,
        BLOCKS,
        "set --model.participation to the fraction of clients in a round",
    ),
    OptionRule(
        "limit_val_batches",
        lambda limit: 0 < limit < 1,
        "the common test set is evaluated in one step, which has no parts",
        "use --model.evaluation.limit for the clients' evaluation, or --trainer.limit_val_batches 0 for no server's",
    ),
    OptionRule("limit_test_batches", lambda limit: limit != 1, NO_PHASE, "leave it out"),
    OptionRule("limit_predict_batches", lambda limit: limit != 1, NO_PHASE, "leave it out"),
    OptionRule(
        "val_check_interval",
        lambda interval: isinstance(interval, int) or interval != 1,
        "within a round there is no new server's model to evaluate",
        "leave it out, and set --trainer.check_val_every_n_epoch to a number of rounds",
    ),
    OptionRule(
        "check_val_every_n_epoch",
        lambda every: every is None or every < 1,
        "no round would be due for the evaluation of the server's model",
        "set it to 1 or more rounds; --trainer.limit_val_batches 0 turns the evaluation off",
    ),
    OptionRule("log_every_n_steps", lambda every: every < 0, "metrics are logged after every round", "leave it out"),
    OptionRule("gradient_clip_val", bool, UNSEEN, "use --model.local.clip_norm instead"),
    OptionRule("gradient_clip_algorithm", _is_given, UNSEEN, "use --model.local.clip_norm, a Euclidean norm"),
    OptionRule(
        "accumulate_grad_batches",
        lambda batches: batches != 1,
        "a batch is a block of clients here, so nothing would be accumulated",
        "use a larger --model.local.batch_size instead",
    ),
    OptionRule(
        "precision",
        lambda precision: precision in ("16-mixed", "16-true"),
        "clients' gradients would vanish, because local training does not scale the loss",
        "use --trainer.precision bf16-mixed or 32-true",
    ),
    OptionRule("barebones", bool, "no metric could be logged or recorded", "leave out --trainer.barebones"),
    OptionRule("_model_registry", _is_given, "no model would be uploaded there", "leave out --trainer.model_registry"),
)
"""In this order problems are reported."""

LOOP = "the trainer does not optimise anything here: clients train with optimisers of their own"

REFUSED_CALLBACKS: dict[type, tuple[str, str]] = {
    callbacks.StochasticWeightAveraging: (LOOP, "average over rounds with a server optimiser: --model.server FedAvgM"),
    callbacks.WeightAveraging: (LOOP, "average over rounds with a server optimiser: --model.server FedAvgM"),
    callbacks.GradientAccumulationScheduler: (LOOP, "use a larger --model.local.batch_size"),
    callbacks.LearningRateFinder: (LOOP, "compare a few values of --model.local.optimizer.lr"),
    callbacks.LearningRateMonitor: (LOOP, "read the learning rates off --model.local.lr_schedule, which sets them"),
    callbacks.BatchSizeFinder: (LOOP, "set --model.local.batch_size"),
    callbacks.ModelPruning: (LOOP, "prune what clients upload: --defenses.mem MemDefense"),
    callbacks.BaseFinetuning: (LOOP, "keep layers on the clients with --model.personal"),
    callbacks.SpikeDetection: (LOOP, "updates that are not finite are dropped and reported in any case"),
}
"""Lightning's callbacks that presuppose the trainer's own optimisation: why they cannot work, and what can."""


def trainer_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems of trainer options and callbacks that would have no effect, or a bad one."""
    trainer = federation.trainer
    values = {rule: getattr(trainer, rule.option, "a time") for rule in RULES}  # an interval in time is kept elsewhere
    found = [rule for rule in RULES if rule.wrong(values[rule])]
    if any(rule.option == "fast_dev_run" for rule in found):
        found = [rule for rule in found if rule.option == "fast_dev_run"]  # which sets others
    if any(rule.option == "overfit_batches" for rule in found):
        found = [rule for rule in found if not rule.option.startswith("limit_")]
    for rule in found:
        yield Problem(f"--trainer.{rule.option.removeprefix('_')} is {values[rule]}", rule.consequence, rule.remedy)
    least, most = trainer.min_epochs, trainer.max_epochs
    if least is not None and most is not None and most > 0 and not 0 <= least <= most:
        remedy = f"set it to 0 up to {most}, the number of rounds (--trainer.max_epochs)"
        yield Problem(f"--trainer.min_epochs is {least}", "the run cannot have that many rounds", remedy)
    yield from _callback_problems(trainer.callbacks)  # type: ignore[attr-defined]


def _callback_problems(given: list[Any]) -> Iterator[Problem]:
    for callback in given:
        for kind, (consequence, remedy) in REFUSED_CALLBACKS.items():
            if isinstance(callback, kind):
                cause = f"the trainer has the callback {type(callback).__name__}"
                yield Problem(cause, consequence, f"leave it out; {remedy}")
        if isinstance(callback, callbacks.Timer) and callback.time_remaining() == 0:
            yield Problem("the time of the run is 0 seconds", "no round would be trained", "raise --trainer.max_time")


def monitor_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Metrics that early stopping or a checkpoint waits for, and that no round measures."""
    trainer = federation.trainer
    monitors = [
        (type(callback).__name__, str(callback.monitor))
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, (callbacks.EarlyStopping, callbacks.ModelCheckpoint)) and callback.monitor is not None
    ]
    known = known_metrics(federation.data.groups, federation.widths)
    measuring = overriding(federated_callbacks(trainer), "measurements")
    for name, monitor in monitors:
        # callbacks name what they measure `theirs/...`; Lightning finds out after the first round
        theirs = measuring and "/" in monitor and not monitor.startswith(("server/", "clients/"))
        if monitor not in known and not theirs:
            yield Problem(
                f"{name} monitors {monitor}, which no round measures",
                "the run would end with its first round, in an error",
                f"monitor one of {', '.join(known)}",
            )


def whole_rounds(given: list[Any]) -> None:
    """Let timers end a run between two rounds; by default Lightning would end it between two blocks of clients."""
    for callback in given:
        if isinstance(callback, callbacks.Timer):
            callback._interval = "epoch"
