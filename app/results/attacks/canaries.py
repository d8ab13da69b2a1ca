"""Result of an audit by canaries: measured epsilon beside every claimed one of the same unit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from app.privacy.auditing.empirical import MeasuredEpsilon, Verdict, verdict_on
from app.privacy.statements import PrivacyStatement, Unit
from app.result import IN_MEMORY, Cell, PlainTable, Result

BUGS = {
    "sample": "noise weaker than stated, gradients that are not clipped sample by sample, or samples that enter more "
    "steps than the stated rate says",
    "client": "noise weaker than stated, updates that are not clipped, or clients that take part more often than the "
    "stated rate says",
    "local model": "noise weaker than stated, or weights that move further than the sensitivity says",
}
"""Where a measured epsilon above a proved one comes from, by unit."""

MEANINGS = {
    "bound": "lower bound at 95 % confidence, whatever the mechanism is (Steinke et al. 2023)",
    "gaussian_bound": "lower bound at 95 % confidence, if the mechanism is as private as a Gaussian one",
    "fitted": "estimate from scores taken to be normal",
    "fitted_low": "its lower 95 % confidence limit",
    "fitted_least": "its lower 99.9 % confidence limit, by which claims are judged",
    "mu": "estimated distance of the scores of inserted and other canaries, in standard deviations",
}


@dataclass(frozen=True)
class ClaimCheck:
    """One claim and what was measured about it."""

    mechanism: str
    unit: Unit
    epsilon: float  # claimed; NaN for one that is infinite
    delta: float
    nominal: bool  # whether it is no promise
    verdict: Verdict

    @classmethod
    def of(cls, statement: PrivacyStatement, measured: MeasuredEpsilon) -> ClaimCheck:
        claimed = statement.epsilon if math.isfinite(statement.epsilon) else math.nan
        verdict = verdict_on(statement, measured)
        return cls(statement.mechanism, statement.unit, claimed, statement.delta, statement.nominal, verdict)

    @property
    def broken(self) -> bool:
        """Whether a promise is refuted."""
        return self.verdict.startswith("refuted") and not self.nominal

    @property
    def text(self) -> str:
        claimed = "infinite" if math.isnan(self.epsilon) else f"{self.epsilon:.3g}"
        kind = "nominal epsilon" if self.nominal else "epsilon"
        text = f"{self.mechanism} claims {kind} {claimed} per {self.unit}: {self.verdict}"
        if self.broken:
            return f"{text}; likely {BUGS[self.unit]}"
        return f"{text}; it was no guarantee" if self.verdict.startswith("refuted") else text


@dataclass(frozen=True, eq=False, repr=False)
class CanaryRecord(Result):
    """Measured epsilon of one unit, in the view of one adversary."""

    kind = "measured epsilon"
    folder = "canaries"
    part = "canaries"

    label: str
    unit: str  # `sample` or `client`
    adversary: str  # who measures, and what it sees
    adjacency: str  # what a coin decides
    measured: MeasuredEpsilon | None = None
    claims: tuple[ClaimCheck, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""  # why nothing was measured; empty where something was
    scores: Any = field(default=None, metadata=IN_MEMORY)  # one per canary
    inserted: Any = field(default=None, metadata=IN_MEMORY)

    @property
    def broken(self) -> tuple[ClaimCheck, ...]:
        """Promises that the measurement refutes."""
        return tuple(claim for claim in self.claims if claim.broken)

    @property
    def numbers(self) -> Mapping[str, float]:
        if self.measured is None:
            return {}
        names = (*MEANINGS, "delta", "canaries", "guessed", "correct")
        numbers = {name: getattr(self.measured, name) for name in names}
        return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}

    def arrays(self) -> Mapping[str, Any] | None:
        if self.scores is None:
            return None
        return {"scores": np.asarray(self.scores), "inserted": np.asarray(self.inserted)}

    @property
    def line(self) -> str:
        """The result in one line, for terminal and report."""
        if self.measured is None:
            return f"{self.label}: N/A: {self.reason}"
        one = self.measured
        normal = f"{one.fitted_low:.3g} (estimate {one.fitted:.3g}) for normal scores"
        fit = "no fit" if math.isnan(one.fitted) else normal
        return (
            f"{self.label}: epsilon per {self.unit} at least {one.bound:.3g} at delta {one.delta:.2g}; "
            f"{one.gaussian_bound:.3g} for Gaussian mechanisms; {fit}; seen by {self.adversary}"
        )

    def closing_rows(self) -> Sequence[tuple[str, str, str]]:
        if self.measured is None:
            return [("measured epsilon", "N/A", self.reason)]
        beside = "; ".join(claim.text for claim in self.claims) or "nothing is claimed"
        return [("measured epsilon", f"{self.measured.most:.3g}", f"or more per {self.unit}; {beside}")]

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        lines: list[str] = []
        for one in results:
            lines += [f"  {one.line}", *(f"    {claim.text}" for claim in one.claims), *(f"    {n}" for n in one.notes)]
        return "\n".join(lines)

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        return PlainTable(("label", "number", "value", "meaning"), [row for one in results for row in one._rows()])

    def _rows(self) -> Iterator[list[Cell]]:
        for name, value in self.numbers.items():
            yield [self.label, name, value, MEANINGS.get(name, "")]
        for claim in self.claims:
            yield [self.label, "claimed", None if math.isnan(claim.epsilon) else claim.epsilon, claim.text]

    def privacy(self) -> dict[str, Any]:
        """What `privacy.json` holds of it, beside the claims."""
        return {**{key: value for key, value in self.record().items() if key != "numbers"}, "text": self.report}

    @property
    def report(self) -> str:
        """Measurement and claims in one text."""
        return "; ".join([self.line, *(claim.text for claim in self.claims)])
