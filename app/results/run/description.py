"""The configuration of a run that was put together in Python, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from app.common.described import described
from app.federation.hooks import FederatedCallback, federated_callbacks

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from app.federation.module import FederatedModule
    from datamodules.base import FederatedDataModule


def described_run(federation: FederatedModule, data: FederatedDataModule, trainer: Trainer) -> dict[str, Any]:
    """What `config.yaml` holds: enough to label the run, to rebuild it, and to replay it.

    A function or class that cannot be imported elsewhere (a lambda, a class of a notebook) is named all the same.
    """
    callbacks = federated_callbacks(trainer)
    return {
        "seed_everything": federation.seed,
        "trainer": {"max_epochs": trainer.max_epochs, "precision": trainer.precision},
        "model": federation.configuration or described(federation)["init_args"],
        "data": described(data),
        "defenses": _named(callback for callback in callbacks if callback.kind == "defense"),
        "attacks": _named(callback for callback in callbacks if callback.kind == "attack"),
        "defense_order": None,
        "tracking": "disabled",
    }


def _named(callbacks: Iterable[FederatedCallback]) -> dict[str, Any]:
    """Callbacks by the names that they were given, or by those of their classes."""
    entries: dict[str, Any] = {}
    for callback in callbacks:
        unnamed = callback.given_name == FederatedCallback.given_name
        name = type(callback).__name__.lower() if unnamed else callback.given_name
        further = sum(other.partition("-")[0] == name for other in entries)
        entries[f"{name}-{further + 1}" if further else name] = described(callback)
    return entries
