"""What every membership inference attack offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from app.attacks.context import AttackContext, ShadowKind
from app.attacks.models import AttackedModel
from app.attacks.responses import Ids
from app.metrics.membership import Array

Adversary = Literal["external", "client", "server"]
"""Who attacks: somebody outside, a participant, or an honest-but-curious server."""


@dataclass(frozen=True)
class Threat:
    """What an attack assumes of its adversary, beside the role that the target implies.

    Attributes:
        sees: what it reads of a model.
        data: what data it owns.
        trains: what it trains.
    """

    sees: str
    data: str
    trains: str


class MembershipAttack(ABC):
    """Tells members from non-members. One file per attack; a subclass overrides `scores`.

    The attack never learns who is a member: it returns scores, and the truth is set beside them afterwards.
    """

    name: ClassVar[str]
    """What to write on the command line."""

    threat: ClassVar[Threat]

    shadows: ClassVar[ShadowKind | None] = None
    """Shadows it works with; without any, a single `out` shadow serves to choose its threshold."""

    needs_rounds: ClassVar[int] = 1
    """Fewest rounds of the target it needs; 1 for attacks that read the last model only."""

    all_rounds: ClassVar[bool] = False
    """Whether it reads every round that the adversary has seen, not the last one only."""

    uses_labels: ClassVar[bool] = True
    """Whether a wrong label makes a sample look less like a member."""

    @abstractmethod
    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        """How member-like each sample looks, the higher the more; any finite scale.

        Args:
            target: the attacked model.
            samples: audited ids, members and non-members in no telling order.
            context: answers models' questions and gives shadows.
        """
