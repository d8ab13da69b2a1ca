"""Rampart: train a federation of unequal models, defend it, attack it, and see which defense holds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.auditing import Audit, audit
    from app.experiments.comparison import compare
    from app.federation.capacities import Capacities
    from app.federation.hooks import FederatedCallback
    from app.federation.local_training import LocalTraining
    from app.federation.module import FederatedModule
    from app.finished import FinishedRun, load_run
    from app.result import Measurement, Result
    from app.results.report.report import Report, report
    from app.run import Run, build_run, fit

__version__ = "0.8.0"
__all__ = [
    "Audit",
    "Capacities",
    "FederatedCallback",
    "FederatedModule",
    "FinishedRun",
    "LocalTraining",
    "Measurement",
    "Report",
    "Result",
    "Run",
    "audit",
    "build_run",
    "compare",
    "fit",
    "load_run",
    "report",
]

_PLACES = {
    "auditing": ("Audit", "audit"),
    "experiments.comparison": ("compare",),
    "federation.capacities": ("Capacities",),
    "federation.hooks": ("FederatedCallback",),
    "federation.local_training": ("LocalTraining",),
    "federation.module": ("FederatedModule",),
    "finished": ("FinishedRun", "load_run"),
    "results.report.report": ("Report", "report"),
    "result": ("Measurement", "Result"),
    "run": ("Run", "build_run", "fit"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    # loaded on first use, so that `rampart --help` does not wait for torch
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
