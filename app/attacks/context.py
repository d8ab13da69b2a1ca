"""What an attack works with: queries to models, shadow models of its target, and the attacker's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from app.attacks.adaptive.base import ObservedModel
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Shadow
from app.attacks.public_knowledge import PublicKnowledge

ShadowKind = Literal["out", "in-out"]
"""Shadows trained on the attacker's own data only, or each on a random half of the audited samples too."""


Uploads = Mapping[int, Mapping[int, ObservedModel]]
"""Readable uploads by client and round (counted from 1)."""


@dataclass(frozen=True, eq=False)
class ShadowSet:
    """Shadow models of one target in a fixed order, and notes for the report on how they differ from it."""

    shadows: tuple[Shadow, ...]
    notes: tuple[str, ...] = ()


class ShadowSource(Protocol):
    """Trains or looks up shadow models."""

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        """Shadows of a target: all of them, or the first few, which do not depend on how many are requested."""

    def prepare(self, targets: Sequence[AttackedModel], kind: ShadowKind) -> None:
        """Announce targets whose shadows are all going to be requested; by default, each is made when it is."""
        return


class AttackContext:
    """What one attacker has at hand against one target.

    Attacks add remarks for the report with `note`; they are collected in `notes`. In the folder `cache`, None for none,
    they keep networks that other runs would train as well. `uploads` gives what all clients have uploaded in the rounds
    of the target, where the adversary sees that.
    """

    def __init__(
        self,
        knowledge: PublicKnowledge,
        query: ModelQuery,
        source: ShadowSource,
        target: AttackedModel,
        cache: Path | None = None,
        uploads: Callable[[], Uploads] = dict,
    ) -> None:
        self.knowledge, self.query, self.cache, self.uploads = knowledge, query, cache, uploads
        self.notes: list[str] = []
        self._source, self._target = source, target
        self._excluded: frozenset[str] = frozenset()

    def shadows(self, kind: ShadowKind, first: int | None = None) -> list[Shadow]:
        """Shadows of the target (or the first few), without a shadow that is itself attacked."""
        made = self._source.shadows(self._target, kind, first)
        for text in made.notes:
            self.note(text)
        return [shadow for shadow in made.shadows if shadow.model.key not in self._excluded]

    def attacking(self, shadow: Shadow) -> AttackContext:
        """The context in which a shadow is the target, and therefore not among the shadows."""
        other = AttackContext(self.knowledge, self.query, self._source, self._target, self.cache)
        other._excluded = self._excluded | {shadow.model.key}
        return other

    def views(self, queries: int) -> range:
        """Numbers of the views of a sample that models are queried with, as in `ModelQuery.responses`; with a note.

        The image itself is the first; the others are augmentations, of which there are none where the run trains
        without.
        """
        if queries == 1:
            return range(1)
        if self.knowledge.augment is None:
            self.note(f"clients train without augmentation: models answer 1 query per sample instead of {queries}")
            return range(1)
        self.note(
            f"every model answers {queries} queries per sample, the image and {queries - 1} augmentations of it as in "
            "training, which takes as many times the time of one"
        )
        return range(queries)

    def note(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.notes:
            self.notes.append(text)
