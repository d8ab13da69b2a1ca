"""Base class of membership inference attacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from app.attacks.context import AttackContext, ShadowKind
from app.attacks.models import AttackedModel, Ids
from app.common.ranges import Checked
from app.metrics.membership import Array

Adversary = Literal["external", "client", "server", "collusion", "colluding-clients", "malicious-client", "malicious"]
"""An outsider, a participant, an honest-but-curious server, one that a client helps with its private key, one that some
participants help with their data and uploads, a participant that sends manipulated updates, or a server that sends
manipulated models."""


@dataclass(frozen=True)
class Threat:
    """Threat model of an attack: what the adversary sees of a model, which data it owns, and what it trains."""

    sees: str
    data: str
    trains: str


class MembershipAttack(Checked, ABC):
    """Distinguishes members from non-members. One file per attack; a subclass overrides `scores`.

    The attack never sees the true members: it returns scores, which the evaluation compares with the truth.
    """

    name: ClassVar[str]
    """On the command line."""

    threat: ClassVar[Threat]

    shadows: ClassVar[ShadowKind | None] = None
    """Kind of shadows it uses; without any, its threshold is chosen on a single `out` shadow."""

    needs_rounds: ClassVar[int] = 1
    """Fewest rounds of the target; 1 for attacks on the last model only."""

    all_rounds: ClassVar[bool] = False
    """Whether it uses every round that the adversary has observed, not the last one only."""

    uses_labels: ClassVar[bool] = True
    """Whether a wrong label lowers the score of a sample."""

    threshold: float | None = None
    """Score from which on the attack itself calls a sample a member; None: a threshold is chosen on a shadow."""

    def obstacle(self, target: AttackedModel, context: AttackContext) -> str:
        """Why the attack cannot be run on a target, in words for the report; empty where it can."""
        return ""

    @abstractmethod
    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        """(samples,) finite scores on any scale, higher for likelier members.

        Args:
            target: the attacked model.
            samples: audited ids, members and non-members mixed.
            context: queries models and provides shadows.
        """
