"""Results of membership attacks, with the conditions under which they were obtained."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.attacks.membership.base import Adversary, Threat
from app.common.errors import UserError
from app.common.memory import out_of_memory
from app.metrics.leakage import Leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.vulnerability import ClientRow


def explained(error: Exception) -> str:
    """Causes and remedies of a refused attack, or where the attack broke down."""
    if isinstance(error, UserError):
        return "; ".join(f"{problem.cause} ({problem.remedy})" for problem in error.problems)
    if (problem := out_of_memory(error)) is not None:
        return f"{problem.cause} ({problem.remedy})"
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    return f"the attack broke down: {type(error).__name__}: {error} ({where})"


@dataclass(frozen=True)
class CapacityRow:
    """Leakage of all clients of one width rate (in (0, 1]) together, or why it cannot be measured."""

    rate: float
    clients: int
    leakage: Leakage | NotAvailable


@dataclass(frozen=True)
class ReportedNumber:
    """A number as a paper reports it, named with its unit, such as `Adv %`.

    The value is a mean where there are values per client (id, value); there are none of the whole federation.
    """

    name: str
    value: float
    per_client: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AttackConditions:
    """Under which conditions an attack was run."""

    attack: str
    target: str  # `global` or `uploads`, with `@round` for a round before the last
    protocol: str  # `audit`, or the paper that is followed
    adversary: Adversary
    threat: Threat  # what is assumed of the adversary
    shadows: str = "none"  # number and kind of shadow models, in words
    # how the attacker adapts to the defense, such as `refilled`; empty for one who does not know it
    adaptation: str = ""
    colluding: int = 0  # participants that have joined the adversary

    @property
    def read_target(self) -> str:
        """The target with the adaptation, if any: `uploads+refilled`."""
        return f"{self.target}+{self.adaptation}" if self.adaptation else self.target

    @property
    def label(self) -> str:
        """Name of the result and its files: `lira-online.uploads@40`; papers' results start with the paper's name."""
        joined = f".colluding-{self.colluding}" if self.colluding else ""
        stem = f"{self.attack}.{self.read_target}{joined}"
        return stem if self.protocol == "audit" else f"{self.protocol}.{stem}"


@dataclass(frozen=True, eq=False)
class Finding:
    """Result of one attack on one kind of target."""

    conditions: AttackConditions
    scores: MembershipScores | NotAvailable  # one row per audited pair of sample and client, or why there are none
    leakage: Leakage | NotAvailable  # measured on them, or why no number is given
    clients: tuple[ClientRow, ...] = ()  # leakage client by client
    capacities: tuple[CapacityRow, ...] = ()  # leakage by width, widest first; empty where all clients train one width
    figures: tuple[ReportedNumber, ...] = ()  # numbers as the followed paper reports them
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # duration, including the training of shadows
    failed: bool = False  # whether the attack broke down for a reason other than the user's settings
    # (rows, features) last hidden layer of the attack network, by the rows of the scores; None without such a network
    hidden: NDArray[np.float32] | None = None

    def with_notes(self, *texts: str) -> Finding:
        return replace(self, notes=(*self.notes, *(text for text in texts if text not in self.notes)))


def unavailable(conditions: AttackConditions, reason: str, seconds: float = 0.0, failed: bool = False) -> Finding:
    """A finding without numbers."""
    return Finding(conditions, NotAvailable(reason), NotAvailable(reason), seconds=seconds, failed=failed)
