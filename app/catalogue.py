"""Everything there is to choose from: methods, defenses, attacks, datasets, networks, recipes.

Classes are read from their source files, so that a list takes no time.
"""

from __future__ import annotations

from collections.abc import Callable

from app.common.sources import Sources, comprised, exported
from app.recipes import published_coverage, shipped_comparisons, shipped_recipes

Entry = tuple[str, str]

MEMBERSHIP = ("app.attacks.membership.catalogue", ("ATTACKS",))
RECONSTRUCTION = ("app.attacks.reconstruction.catalogue", ("ACTIVE", "PASSIVE"))
"""Modules that name attacks, and their variables."""


def classes(base: str, package: str) -> list[Entry]:
    """Name and first docstring line of every concrete subclass of a class that is defined in a package."""
    sources = Sources(package)
    return [(kind.name, sources.summary(kind.name)) for kind in sources.concrete(base, package)]


def callbacks_of(*kinds: str) -> list[Entry]:
    """Name and first docstring line of the callbacks of these kinds that come with Rampart."""
    sources = Sources("app.federation", "callbacks")
    names = [name for name in sorted(exported("callbacks")) if sources.constant(name, "kind") in kinds]
    return [(name, sources.summary(name)) for name in names]


def _attacks() -> list[Entry]:
    sources = Sources("app.attacks.membership", "app.attacks.reconstruction", "callbacks.attacks")
    catalogues = (MEMBERSHIP, RECONSTRUCTION)
    kinds = [kind for module, variables in catalogues for variable in variables for kind in comprised(module, variable)]
    named = [(str(sources.constant(kind, "name")), sources.summary(kind)) for kind in kinds]
    others = {"factor-recovery": "FactorRecovery", "source-inference": "SourceInference"}
    return [*named, *((name, sources.summary(kind)) for name, kind in others.items())]


def _recipes(kind: str | None = None) -> list[Entry]:
    return [(recipe.name, recipe.purpose) for recipe in shipped_recipes() if kind in (None, recipe.kind)]


CATALOGUE: dict[str, tuple[str, Callable[[], list[Entry]]]] = {
    "methods": ("--config NAME", lambda: _recipes("method")),
    "submodels": ("--model.method NAME", lambda: classes("SubmodelMethod", "app.federation")),
    "servers": (
        "--model.server NAME",
        lambda: [entry for entry in classes("ServerOptimizer", "app.federation") if entry[0] != "ServerOptimizer"],
    ),
    "defenses": ("--defenses.ANY_NAME NAME", lambda: callbacks_of("defense")),
    "attacks": ("--attacks NAME,NAME of rampart attack", _attacks),
    "suites": ("--config NAME", lambda: _recipes("attack")),
    "datasets": ("--data NAME", lambda: classes("FederatedDataModule", "datamodules")),
    "partitions": ("--data.partition NAME", lambda: classes("Partition", "datamodules")),
    "models": ("--model.net NAME", lambda: classes("ScalableNet", "app.models")),
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
