"""The result of a membership attack, with everything a reader needs to judge it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from app.attacks.membership.base import Adversary, Threat
from app.errors import UserError
from app.metrics.leakage import Leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.vulnerability import ClientRow


def explained(error: Exception) -> str:
    """A refusal with its remedies, or where the attack broke down."""
    if isinstance(error, UserError):
        return "; ".join(f"{problem.cause} ({problem.remedy})" for problem in error.problems)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    return f"the attack broke down: {type(error).__name__}: {error} ({where})"


@dataclass(frozen=True)
class CapacityRow:
    """Leakage of all clients that train one width.

    Attributes:
        rate: width rate, in (0, 1].
        clients: how many there are.
        leakage: of their rows together, or why it cannot be measured.
    """

    rate: float
    clients: int
    leakage: Leakage | NotAvailable


@dataclass(frozen=True)
class ReportedNumber:
    """A number as a paper reports it.

    Attributes:
        name: what it is, with its unit, such as `Adv %`.
        value: the mean over clients where it is measured per client.
        per_client: value of every client, by client id; empty for numbers of the whole federation.
    """

    name: str
    value: float
    per_client: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AttackConditions:
    """Under which conditions an attack was run.

    Attributes:
        attack: name of the attack.
        target: what was attacked: `global` or `uploads`, with `@round` for a round before the last.
        protocol: `audit`, or the paper that is followed.
        adversary: who attacks.
        threat: what else is assumed of the adversary.
        shadows: number and kind of shadow models, in words.
        adaptation: how the attacker adapts to the defense, such as `refilled`; empty for one who does not know it.
    """

    attack: str
    target: str
    protocol: str
    adversary: Adversary
    threat: Threat
    shadows: str = "none"
    adaptation: str = ""

    @property
    def read_target(self) -> str:
        """The target as the attacker has read it: `uploads`, or `uploads+refilled` for one who knows the defense."""
        return f"{self.target}+{self.adaptation}" if self.adaptation else self.target

    @property
    def label(self) -> str:
        """Name of the result, fit for a file name: `lira-online.uploads@40`, papers' results with the paper's name."""
        stem = f"{self.attack}.{self.read_target}"
        return stem if self.protocol == "audit" else f"{self.protocol}.{stem}"


@dataclass(frozen=True, eq=False)
class Finding:
    """Result of one attack on one kind of target.

    Attributes:
        conditions: under which it was obtained.
        scores: one row per audited pair of sample and client, or why there are none.
        leakage: what follows from them, or why no number is given.
        clients: leakage client by client.
        capacities: leakage by width, widest first; empty where all clients train one width.
        figures: numbers as the followed paper reports them.
        notes: warnings and remarks.
        seconds: time it took, shadows that were trained on the way included.
        failed: whether the attack broke down for a reason that is not the user's.
    """

    conditions: AttackConditions
    scores: MembershipScores | NotAvailable
    leakage: Leakage | NotAvailable
    clients: tuple[ClientRow, ...] = ()
    capacities: tuple[CapacityRow, ...] = ()
    figures: tuple[ReportedNumber, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    failed: bool = False

    def with_notes(self, *texts: str) -> Finding:
        """The same finding with further remarks."""
        return replace(self, notes=(*self.notes, *(text for text in texts if text not in self.notes)))


def unavailable(conditions: AttackConditions, reason: str, seconds: float = 0.0, failed: bool = False) -> Finding:
    """A finding without numbers."""
    return Finding(conditions, NotAvailable(reason), NotAvailable(reason), seconds=seconds, failed=failed)
