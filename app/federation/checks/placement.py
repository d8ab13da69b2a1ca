"""Where callbacks belong: defenses among the defenses, attacks among the attacks, and nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from app.common.errors import Problem
from app.federation.hooks import FederatedCallback

PLACES = {"defenses": ("defense",), "attacks": ("attack", "recorder"), "trainer.callbacks": ("recorder",)}
"""Kinds of callbacks that a section of the configuration takes."""

RIGHT_PLACES = {"defense": "defenses", "attack": "attacks", "recorder": "attacks"}
SHIPPED = "callbacks."
"""Beginning of the modules of callbacks that come with Rampart; only they are known to make no sense twice."""


@dataclass(frozen=True)
class Placed:
    """A callback in a section.

    Attributes:
        section: `defenses`, `attacks` or `trainer.callbacks`.
        name: what the user calls it; empty where it has no name.
        kind: its class.
        settings: its options as plain data.
    """

    section: str
    name: str
    kind: type[FederatedCallback]
    settings: Any = None

    @property
    def option(self) -> str:
        return f"--{self.section}.{self.name}" if self.name else f"--{self.section}"


def place_problems(callbacks: Sequence[Placed]) -> Iterator[Problem]:
    """Callbacks in a section that does not take their kind, and those that do nothing."""
    for placed in callbacks:
        kind, right = placed.kind.kind, RIGHT_PLACES[placed.kind.kind]
        if placed.kind is FederatedCallback:
            remedy = f"name a class that does something: {placed.option} CLASS"
            yield Problem(f"{placed.option} is a FederatedCallback", "it does nothing by itself", remedy)
        elif kind not in PLACES[placed.section]:
            yield Problem(
                f"{placed.option} is {placed.kind.__name__}, whose kind is {kind!r}",
                f"the run would be reported without it, since {placed.section} take {_kinds(placed.section)} only",
                f'write --{right}.NAME {placed.kind.__name__}; a class of yours says with `kind = "attack"` what it is',
            )


def _kinds(section: str) -> str:
    return " and ".join(f"{kind}s" for kind in PLACES[section])


def repeat_problems(callbacks: Sequence[Placed]) -> Iterator[Problem]:
    """Callbacks that are there twice: with equal settings, or two defenses of one class that comes with Rampart."""
    for one, other in combinations(callbacks, 2):
        if one.kind is not other.kind or one.kind.kind == "recorder":
            continue
        names = " and ".join(placed.name or placed.kind.__name__ for placed in (one, other))
        if _text(one.settings) == _text(other.settings):
            cause = f"{names} are {one.kind.__name__} with equal settings"
            yield Problem(cause, "the same would be done twice", "leave one of them out")
        elif one.kind.kind == "defense" and one.kind.__module__.startswith(SHIPPED):
            cause = f"{names} are both {one.kind.__name__}"
            yield Problem(cause, "the second would act on what the first has left", "keep one of them")


def _text(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
