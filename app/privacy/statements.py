"""Statements of a defense: privacy budget (epsilon, unit, trust), and what a channel hides from whom."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.common.wording import counted

MEANINGLESS = 10.0
"""Above this epsilon there is no meaningful formal guarantee."""

Unit = Literal["sample", "client", "local model"]
"""What two neighbouring datasets differ in; epsilons of different units cannot be compared."""


@dataclass(frozen=True)
class PrivacyStatement:
    """The privacy budget that has been spent."""

    mechanism: str
    unit: Unit  # what is protected
    against: str  # adversaries that the guarantee holds against
    epsilon: float  # the largest of all clients, since clients hold disjoint data; infinite without noise
    delta: float
    adjacency: Literal["add or remove one", "replace one"]  # how neighbouring datasets differ
    sampling: str  # how batches or clients are drawn
    accountant: str
    noise: float  # standard deviation of the noise over the clipping norm (or as `notes` say)
    clip: float  # largest Euclidean norm of what is protected
    nominal: bool = False  # whether epsilon rests on assumptions that do not hold here
    # epsilon of every client that has spent any, by client; empty where all share one
    clients: tuple[tuple[int, float], ...] = ()
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what the run records or releases of private data that epsilon does not cover

    @property
    def meaningful(self) -> bool:
        """Whether epsilon is a meaningful formal guarantee."""
        return not self.nominal and self.epsilon <= MEANINGLESS

    def record(self) -> dict[str, Any]:
        """For a JSON file; an infinite or undefined number becomes null."""
        plain = asdict(self) | {"meaningful": self.meaningful}
        plain["clients"] = {str(client): _finite(value) for client, value in self.clients}
        return {key: _finite(value) if isinstance(value, float) else value for key, value in plain.items()}

    def line(self) -> str:
        label = "nominal epsilon" if self.nominal else "epsilon"
        line = f"{self.mechanism}: {label} {self.epsilon:.3g} at delta {self.delta:.2g}, {self.unit} level"
        if self.nominal:
            return f"{line}; no formal guarantee, because its assumptions do not hold here"
        return line + ("" if self.meaningful else "; no meaningful formal guarantee")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class ChannelStatement:
    """How updates reached the server."""

    mechanism: str
    hides: str  # what the server does not see
    trusts: str  # assumptions that this needs
    step: float  # precision of a client's change; sums are exact beyond it
    simulated: bool = False  # whether the cryptography was left out and its cost extrapolated
    accepted: tuple[str, ...] = ()  # leaks of the plan that the user has accepted
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        simulated = " (simulated: same numbers, no cryptography)" if self.simulated else ""
        leaks = f"; {counted(len(self.accepted), 'accepted leak')} of the plan (privacy.json)" if self.accepted else ""
        return f"{self.mechanism}{simulated}: {self.hides}{leaks}"
