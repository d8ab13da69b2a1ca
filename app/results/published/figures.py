"""A number as a paper prints it, with its place in a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.results.run_labels import NO_DEFENSE

Relation = Literal["is", "about", "above", "below"]
"""What the paper says of the number: a printed value, a rounded one, or a bound."""

Statistic = Literal["mean", "highest", "lowest"]
"""What the number is over the repeated runs."""

RELATIONS: tuple[Relation, ...] = ("is", "about", "above", "below")
STATISTICS: tuple[Statistic, ...] = ("mean", "highest", "lowest")


@dataclass(frozen=True)
class PublishedFigure:
    """One printed number.

    Attributes:
        dataset: dataset of the comparison that it belongs to.
        method: method of the comparison.
        measure: key of the measure that it is to be compared with.
        value: as printed.
        unit: `%`, `x`, `s`, `dB`, `images`, `squared points`, or nothing for pure numbers.
        where: table or figure, and row.
        defense: defense of the comparison.
        spread: what is printed after the plus-minus sign, in the same unit; None where nothing is.
        relation: whether the value is exact or a bound.
        statistic: over the repeated runs.
        client: client that it belongs to; None for the mean over clients, or the server.
        rounds: rounds that the paper has trained for; None where that is not stated.
        remark: what must be known to read it, such as a misprint.
    """

    dataset: str
    method: str
    measure: str
    value: float
    unit: str
    where: str
    defense: str = NO_DEFENSE
    spread: float | None = None
    relation: Relation = "is"
    statistic: Statistic = "mean"
    client: int | None = None
    rounds: int | None = None
    remark: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Dataset, method and defense."""
        return (self.dataset, self.method, self.defense)
