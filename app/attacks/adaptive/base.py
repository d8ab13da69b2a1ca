"""What an attacker who knows the defense does to what it saw, before any membership attack looks at it."""

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
    """One model as an adversary saw it in one round. All vectors hold the coordinates of `index`, in that order.

    Attributes:
        round: round in which it was seen, counted from 1.
        rate: width rate of the network it belongs to, in (0, 1].
        index: coordinates of the server's vector that it consists of (int64, ascending).
        received: values at the start of the round, which the server has sent.
        sent: values at the end of the round; where nothing arrived, those received.
        arrived: which coordinates were sent (bool).
        trainable: how many leading coordinates are parameters; the rest are buffers.
    """

    round: int
    rate: float
    index: Tensor
    received: Tensor
    sent: Tensor
    arrived: Tensor
    trainable: int

    @property
    def snapshot(self) -> Snapshot:
        """The model that the sighting is taken for."""
        return Snapshot(self.round, self.rate, self.sent)


class Adaptation(ABC):
    """Undoes a defense as far as an adversary can. One file per adaptation; a subclass overrides `applied`."""

    name: ClassVar[str]
    """What the models are called that it makes, such as `refilled`."""

    what: ClassVar[str]
    """What the attacker does, in words for the report."""

    called_by: ClassVar[Mapping[TargetKind, frozenset[Trait]]]
    """Traits of defenses that call for it, by the kind of target that it applies to."""

    needs_rounds: ClassVar[int] = 1
    """Fewest rounds of a model without which it changes nothing; from 2 on, it draws on rounds before the attacked."""

    reads_shadows: ClassVar[bool] = False
    """Whether it reads shadows, too, that were trained by themselves: what it restores is missing in every model."""

    def fitted(self, prototype: ScalableNet) -> Self:
        """The adaptation to models of one network, whose architecture is public."""
        return self

    @abstractmethod
    def applied(self, observations: Sequence[ObservedModel]) -> list[ObservedModel]:
        """What the attacker takes a model for, round by round, as long as the list that is given.

        Args:
            sightings: of one model, by round; those before an entry are all that the attacker knew by then.
        """


@dataclass(frozen=True)
class ReadingStrategy:
    """How an attacker reads the sightings of one model.

    Attributes:
        adaptations: what it does to them, one after the other.
        rounds: rounds that it draws on, ascending, counted from 1; those of the attacked models are among them.
    """

    adaptations: tuple[Adaptation, ...]
    rounds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Such as `refilled+averaged`."""
        return adapted_name(self.adaptations)

    @property
    def needs_rounds(self) -> int:
        """Fewest rounds of a model without which some adaptation changes nothing."""
        return max(adaptation.needs_rounds for adaptation in self.adaptations)

    def snapshots(self, observations: Sequence[ObservedModel], rounds: Collection[int]) -> tuple[Snapshot, ...]:
        """The model as the attacker takes it, in the given rounds."""
        for adaptation in self.adaptations:
            observations = adaptation.applied(observations)
        return tuple(observed.snapshot for observed in observations if observed.round in rounds)

    @property
    def obstacle(self) -> str | None:
        """Why it changes nothing for want of rounds, if so."""
        if len(self.rounds) >= self.needs_rounds:
            return None
        return (
            f"{self.name} models need at least {self.needs_rounds} rounds, the transcript holds {len(self.rounds)} of "
            "the target (--transcript.last or --transcript.rounds keeps more)"
        )


def adapted_name(adaptations: Sequence[Adaptation]) -> str:
    """Names of adaptations that are applied one after the other; empty without any."""
    return "+".join(adaptation.name for adaptation in adaptations)
