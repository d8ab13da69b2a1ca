"""What a channel hides, from whom, and what must be trusted for that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ChannelStatement:
    """How updates reached the server.

    Attributes:
        mechanism: the defense, with its key length or threshold.
        hides: what the server does not see.
        trusts: what must be true for that.
        step: precision of a client's change; sums are exact beyond it.
        simulated: whether the cryptography was left out and its cost extrapolated.
        accepted: leaks of the plan that the user has accepted.
        notes: remarks that belong beside it.
    """

    mechanism: str
    hides: str
    trusts: str
    step: float
    simulated: bool = False
    accepted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    def line(self) -> str:
        """One line for the terminal."""
        said = (
            f"{self.mechanism}{' (simulated: same numbers, no cryptography)' if self.simulated else ''}: {self.hides}"
        )
        leaks = len(self.accepted)
        return said + (f"; {leaks} leaks of the plan were accepted (privacy.json)" if leaks else "")
