"""Where an attack works: it asks models, gets shadows of its target, and has the attacker's own data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from tqdm import tqdm

from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Shadow
from app.attacks.public_knowledge import PublicKnowledge

T = TypeVar("T")

ShadowKind = Literal["out", "in-out"]
"""Shadows trained on the attacker's own data only, or each on a random half of the audited samples too."""


@dataclass(frozen=True, eq=False)
class ShadowSet:
    """Shadows of one target.

    Attributes:
        shadows: in a fixed order.
        notes: how they differ from the target, for the report.
    """

    shadows: tuple[Shadow, ...]
    notes: tuple[str, ...] = ()


class ShadowSource(Protocol):
    """Makes or looks up shadows."""

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        """Shadows of a target: all of them, or the first few, which are the same whatever is asked for later.

        Raises:
            UserError: where there are no data to train them on.
        """


class AttackContext:
    """An attacker's workplace for one target.

    Attributes:
        knowledge: what everybody knows, and the attacker's own data.
        query: asks models.
        notes: remarks that belong beside the result; attacks append to it.
    """

    def __init__(
        self, knowledge: PublicKnowledge, query: ModelQuery, source: ShadowSource, target: AttackedModel
    ) -> None:
        self.knowledge, self.query = knowledge, query
        self.notes: list[str] = []
        self._source, self._target = source, target
        self._left_out: frozenset[str] = frozenset()

    def shadows(self, kind: ShadowKind, first: int | None = None) -> list[Shadow]:
        """Shadows of the target (or the first few), without the one that plays the target."""
        made = self._source.shadows(self._target, kind, first)
        for text in made.notes:
            self.note(text)
        return [shadow for shadow in made.shadows if shadow.model.key not in self._left_out]

    def playing(self, shadow: Shadow) -> AttackContext:
        """The same lab where a shadow plays the target, and is therefore no shadow."""
        other = AttackContext(self.knowledge, self.query, self._source, self._target)
        other._left_out = self._left_out | {shadow.model.key}
        return other

    def note(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


def progress(items: Iterable[T], what: str, **settings: Any) -> Iterable[T]:
    """The items with a progress bar on a terminal, where they take more than a second."""
    return tqdm(items, desc=what, delay=1, leave=False, disable=None, **settings)
