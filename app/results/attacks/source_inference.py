"""Result of source inference: accuracy against chance by rule and by width of the owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from app.attacks.source_inference import SourceFinding
from app.metrics.membership import NotAvailable
from app.result import Measurement
from app.results.text_table import text_table

LABEL = "source-inference"
"""Name of the result and its files."""

COLUMNS = ("rule", "samples of", "clients", "samples", "correct", "accuracy", "low", "high", "chance")


@dataclass(frozen=True, eq=False, repr=False)
class SourceRecord(Measurement):
    """How often the server names the client that owns a sample; shown as measurements are, with a row per group."""

    kind = "source inference"

    @classmethod
    def of(cls, finding: SourceFinding | NotAvailable) -> Self:
        """The result of an attack, or the reason why there is none."""
        if isinstance(finding, NotAvailable):
            return cls(LABEL, notes=(f"N/A: {finding.reason}",))
        values = {"chance": finding.chance, "largest client": finding.largest, "seconds": finding.seconds}
        rows = []
        for share in finding.shares:
            bounds = (share.accuracy, share.interval.low, share.interval.high)
            rows.append((share.rule, share.group, share.clients, share.samples, share.correct, *bounds, finding.chance))
            if share.group in ("all members", "non-members"):
                names = (f"{share.rule}, {share.group}{end}" for end in ("", ", low", ", high"))
                values |= dict(zip(names, bounds, strict=True))
        return cls(LABEL, values, COLUMNS, tuple(rows), finding.notes)

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return "\n".join(line for one in results for line in one._lines())

    def _lines(self) -> list[str]:
        rows = [tuple(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row) for row in self.rows]
        shown = [text_table(self.columns, rows, left=(0, 1), indent="  ")] if rows else []
        return [*shown, *(f"  {note}" for note in self.notes)]
