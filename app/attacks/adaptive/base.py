"""What an attacker who knows the defense does to observed models before any membership attack uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from app.attacks.models import Snapshot, TargetKind
from app.models.base import ScalableNet
from app.privacy.traits import Trait


@dataclass(frozen=True, eq=False)
class ObservedModel:
    """A model as an adversary observed it in one round. All vectors hold the coordinates of `index`, in that order."""

    round: int  # counted from 1
    rate: float  # width rate of its network, in (0, 1]
    index: Tensor  # its coordinates in the server's vector (int64, ascending)
    before: Tensor  # values at the start of the round, as the server has sent them
    after: Tensor  # values at the end of the round; those before where nothing arrived
    arrived: Tensor  # which coordinates were uploaded (bool)
    trainable: int  # how many leading coordinates are parameters; the rest are buffers

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.round, self.rate, self.after)


CalledBy = Mapping[TargetKind, frozenset[Trait]]
"""Traits of defenses, by the kind of target."""


class Adaptation(ABC):
    """Undoes a defense as far as an adversary can. One file per adaptation; a subclass overrides `applied`."""

    name: ClassVar[str]
    """Of the models that it makes, such as `refilled`."""

    what: ClassVar[str]
    """What the attacker does, in words for the report."""

    called_by: ClassVar[CalledBy]
    """Traits of defenses that it is made for, by the kind of target that it applies to."""

    needs_rounds: ClassVar[int] = 1
    """Fewest rounds of a model without which it changes nothing; from 2 on, it uses rounds before the attacked one."""

    reads_shadows: ClassVar[bool] = False
    """Whether it applies to centrally trained shadows, too, since what it restores is missing in every model."""

    def fitted(self, prototype: ScalableNet) -> Self:
        """The adaptation to models of one network, whose architecture is public."""
        return self

    @abstractmethod
    def applied(self, models: Sequence[ObservedModel]) -> list[ObservedModel]:
        """The model as the attacker assumes it to be, round by round; as many entries as are given.

        Args:
            models: of one client, by round; an entry may only depend on itself and on those before it.
        """


@dataclass(frozen=True)
class ReadingStrategy:
    """How an attacker reads the observed models of one client."""

    adaptations: tuple[Adaptation, ...]  # applied one after the other
    # rounds that it uses, ascending, counted from 1; those of the attacked models are among them
    rounds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Such as `refilled+averaged`."""
        return adapted_name(self.adaptations)

    def applied(self, models: Sequence[ObservedModel]) -> Sequence[ObservedModel]:
        """The adapted models of one client, by round."""
        for adaptation in self.adaptations:
            models = adaptation.applied(models)
        return models

    def snapshots(self, models: Sequence[ObservedModel], rounds: Collection[int]) -> tuple[Snapshot, ...]:
        """The adapted models of the given rounds."""
        return tuple(model.snapshot for model in self.applied(models) if model.round in rounds)

    @property
    def obstacle(self) -> str | None:
        """Why it changes nothing for want of rounds, if so."""
        needed = max(adaptation.needs_rounds for adaptation in self.adaptations)
        if len(self.rounds) >= needed:
            return None
        return (
            f"{self.name} models need at least {needed} rounds, the transcript holds {len(self.rounds)} of the target "
            "(--transcript.last or --transcript.rounds keeps more)"
        )


def adapted_name(adaptations: Sequence[Adaptation]) -> str:
    """Names of adaptations that are applied one after the other; empty without any."""
    return "+".join(adaptation.name for adaptation in adaptations)
