"""Rampart: train a federation of unequal models, defend it, attack it, and see which defense holds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.federation.capacities import Capacities
    from app.federation.module import FederatedModule

__version__ = "0.2.0"
__all__ = ["Capacities", "FederatedModule"]

_MODULES = {"Capacities": "app.federation.capacities", "FederatedModule": "app.federation.module"}


def __getattr__(name: str) -> Any:
    # loaded on first use, so that `rampart --help` does not wait for torch
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
