"""Everything there is to choose from: methods, defenses, attacks, datasets, networks, recipes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType

import app.federation
import app.models
import callbacks
import datamodules
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.federation.aggregation import ServerOptimizer
from app.federation.submodels import SubmodelMethod
from app.models.base import ScalableNet
from app.recipes import published_coverage, shipped_comparisons, shipped_recipes
from datamodules.base import FederatedDataModule
from datamodules.partitions import Partition

Entry = tuple[str, str]


def classes(base: type, package: ModuleType) -> list[Entry]:
    """Name and first docstring line of every concrete subclass of `base` defined in a package."""
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    kinds = {kind for kind in _subclasses(base) if kind.__module__.startswith(package.__name__)}
    concrete = [kind for kind in kinds if not inspect.isabstract(kind) and not kind.__name__.startswith("_")]
    return sorted((kind.__name__, _first_line(kind)) for kind in concrete)


def callbacks_of(*kinds: str) -> list[Entry]:
    """Name and first docstring line of the callbacks of these kinds that come with Rampart."""
    exported = (getattr(callbacks, name) for name in sorted(callbacks.__all__))
    return [(one.__name__, _first_line(one)) for one in exported if getattr(one, "kind", "") in kinds]


def _attacks() -> list[Entry]:
    others = {"factor-recovery": callbacks.FactorRecovery}
    return [(name, _first_line(kind)) for name, kind in {**ATTACKS, **ACTIVE, **PASSIVE, **others}.items()]


def _recipes(kind: str | None = None) -> list[Entry]:
    return [(recipe.name, recipe.purpose) for recipe in shipped_recipes() if kind in (None, recipe.kind)]


CATALOGUE: dict[str, tuple[str, Callable[[], list[Entry]]]] = {
    "methods": ("--config NAME", lambda: _recipes("method")),
    "submodels": ("--model.method NAME", lambda: classes(SubmodelMethod, app.federation)),
    "servers": (
        "--model.server NAME",
        lambda: [entry for entry in classes(ServerOptimizer, app.federation) if entry[0] != "ServerOptimizer"],
    ),
    "defenses": ("--defenses.ANY_NAME NAME", lambda: callbacks_of("defense")),
    "attacks": ("--attacks NAME,NAME of rampart attack", _attacks),
    "suites": ("--config NAME", lambda: _recipes("attack")),
    "datasets": ("--data NAME", lambda: classes(FederatedDataModule, datamodules)),
    "partitions": ("--data.partition NAME", lambda: classes(Partition, datamodules)),
    "models": ("--model.net NAME", lambda: classes(ScalableNet, app.models)),
    "recipes": ("--config NAME", _recipes),
    "comparisons": (
        "--config NAME of rampart compare",
        lambda: [(comparison.name, comparison.purpose) for comparison in shipped_comparisons()],
    ),
}


def published() -> list[tuple[str, str, str, str]]:
    """Every table and figure of the papers: paper, number, what shows it, what is left out and why."""
    return [(one.paper, one.name, one.by or "-", one.left_out) for one in published_coverage()]


def names() -> list[str]:
    """Everything that can be named."""
    return [name for _, entries in CATALOGUE.values() for name, _ in entries()]


def _subclasses(base: type) -> set[type]:
    children: list[type] = base.__subclasses__()
    return {base}.union(*(_subclasses(kind) for kind in children))


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]
