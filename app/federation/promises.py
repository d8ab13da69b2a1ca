"""What a run promises about privacy, what it releases beside that, and what it therefore keeps to itself."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from app.federation.checks.federation import stack_traits, unaccounted
from app.federation.hooks import federated_callbacks
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

BUDGETS: frozenset[Trait] = frozenset({"sample-dp", "client-dp", "sum-dp", "upload-dp"})
"""Traits of defenses that promise a privacy budget."""

UNNOISED = {
    "clients/loss": "training loss of the clients",
    "clients/dropped": "number of clients whose update was refused or lost",
    "server/train_accuracy": "accuracy of the last model on all training samples",
}
"""Metrics of every run that are computed of private data without noise, and what they are in words."""

EVALUATION = (
    "evaluation by the experimenter: accuracies of received and trained models, also on clients' own test samples, and "
    "the results of attacks, in the run's files and in trackers"
)


def statements(federation: FederatedModule) -> list[PrivacyStatement]:
    """The budgets of all defenses as they hold in this run: with what is released beside them.

    They are nominal where the run looks at private data in a way that no budget counts, such as early stopping.
    """
    made = (callback.statement(federation) for callback in federation.hooks.callbacks)
    reasons = tuple(unaccounted(federation))
    return [
        replace(
            statement,
            nominal=statement.nominal or bool(reasons),
            notes=(*statement.notes, *reasons),
            beside=_beside(federation),
        )
        for statement in made
        if statement is not None
    ]


def withheld(federation: FederatedModule) -> list[str]:
    """Metrics that no logger gets, because a budget is promised and they are computed without noise."""
    return list(_unnoised(federation)) if stack_traits(federation) & BUDGETS else []


def warn_of_withheld(federation: FederatedModule) -> None:
    """Say once which metrics are not passed to loggers, on the first process only."""
    names = withheld(federation)
    if names and federation.trainer.loggers and federation.trainer.is_global_zero:
        warnings.warn(
            f"a privacy budget is promised, and {', '.join(names)} are computed without noise: loggers and trackers do "
            "not get them; metrics.jsonl, clients.csv and summary.json in the run's folder have them.",
            stacklevel=2,
        )


def _unnoised(federation: FederatedModule) -> dict[str, str]:
    own = (callback.unnoised for callback in federated_callbacks(federation.trainer))
    return UNNOISED | {name: text for names in own for name, text in names.items()}


def _beside(federation: FederatedModule) -> tuple[str, ...]:
    place = "in the run's own files only" if withheld(federation) else "in the run's files and in trackers"
    released = [f"{text}, without noise, {place}" for text in _unnoised(federation).values()]
    if federation.data.own_statistics:
        released.append("mean and standard deviation of the pixels of all training images, without noise, in the model")
    if federation.transcript is not None:
        released.append("updates of single clients as the server received them, in the transcript of the run")
    if federation.ditto is not None:
        released.append("every client's own model (Ditto), trained on its data without noise, in the run's checkpoints")
    released.append("how many samples every client has and who takes part when, in plan.json and clients.csv")
    return (*released, EVALUATION)
