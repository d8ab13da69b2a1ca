"""A published number with its place in a comparison, and the measures it can be compared with."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from app.results.run.labels import NO_DEFENSE

Relation = Literal["is", "about", "above", "below"]
"""What the paper says of the number: a printed value, a rounded one, or a bound."""

Statistic = Literal["mean", "highest", "lowest"]
"""What the number is over the repeated runs."""

RELATIONS: tuple[Relation, ...] = ("is", "about", "above", "below")
STATISTICS: tuple[Statistic, ...] = ("mean", "highest", "lowest")


@dataclass(frozen=True)
class PublishedFigure:
    """One printed number."""

    dataset: str  # dataset of the comparison that it belongs to
    method: str  # method of the comparison
    measure: str  # key of the measure that it is to be compared with
    value: float  # as printed
    unit: str  # `%`, `x`, `s`, `dB`, `images`, `squared points`, or nothing for pure numbers
    where: str  # table or figure, and row
    defense: str = NO_DEFENSE  # defense of the comparison
    spread: float | None = None  # what is printed after the plus-minus sign, in the same unit; None where nothing is
    relation: Relation = "is"  # whether the value is exact or a bound
    statistic: Statistic = "mean"  # over the repeated runs
    client: int | None = None  # client that it belongs to; None for the mean over clients, or the server
    rounds: int | None = None  # rounds that the paper has trained for; None where that is not stated
    remark: str = ""  # what must be known to read it, such as a misprint

    @property
    def place(self) -> tuple[str, str, str]:
        """Dataset, method and defense."""
        return (self.dataset, self.method, self.defense)


UNITS: dict[str, str] = {
    "server_accuracy": "%",
    "train_accuracy": "%",
    "clients_accuracy": "%",
    "everyone_accuracy": "%",
    "everyone_majority": "%",
    "everyone_minority": "%",
    "everyone_gap": "%",
    "everyone_variance": "squared points",
    "seconds_ratio": "x",
    "client_ratio": "x",
    "train_seconds": "s",
    "recovered_share": "%",
}
"""Unit of every measure that goes by a plain name."""

ALL_UNITS = ("%", "x", "s", "dB", "images", "squared points", "")
"""Units that a published number may have; the last one is that of pure numbers."""

AUC, PAPER, RECONSTRUCTION, LEAD, CORRELATION = "auc:", "paper:", "reconstruction:", "lead:", "correlation:"
"""Beginnings of measures with a name of their own:

`auc:<attack>.<target>`;
`paper:<result>/<figure>` for a number as the followed paper reports it: `paper:mapp-fl.yeom.uploads/Adv %`;
`reconstruction:<number>`: `reconstruction:psnr_best`;
`lead:<method>/<measure>` for a measure less that of another method on the same dataset with the same defense and seed:
`lead:fedavg/everyone_accuracy`;
`correlation:<result>~<result>/<figure>` for Pearson's coefficient of a figure under two attacks over the clients of all
runs, with `size` in place of the first result for the logarithm of the client's number of samples:
`correlation:taxonomy.yeom.uploads~taxonomy.lira.uploads/AUC %`.
"""

SIZE = "size"
"""Takes the place of a result in a correlation with the client's number of samples, 400 and more."""

ALL_METHODS = "all methods"
"""Method of a correlation over the clients of every method's runs."""


def is_measure(key: str) -> bool:
    """Whether published numbers can be compared with it."""
    if key.startswith(PAPER):
        result, _, figure = key.removeprefix(PAPER).partition("/")
        return bool(result and figure)
    if key.startswith(LEAD):
        method, _, measure = key.removeprefix(LEAD).partition("/")
        return bool(method) and not measure.startswith(LEAD) and is_measure(measure)
    if key.startswith(CORRELATION):
        return all(correlated(key))
    return key in UNITS or any(key.startswith(front) and key != front for front in (AUC, RECONSTRUCTION))


def nearest_measures(key: str) -> list[str]:
    """Measures that may have been meant, the nearest first; at most two."""
    return difflib.get_close_matches(key, [*UNITS, AUC, PAPER, RECONSTRUCTION, LEAD, CORRELATION], n=2)


def correlated(key: str) -> tuple[str, str, str]:
    """The two results and the figure of a correlation, empty where one is missing."""
    results, _, figure = key.removeprefix(CORRELATION).partition("/")
    first, _, second = results.partition("~")
    return first, second, figure


def scale_to(unit: str, own_unit: str) -> float | None:
    """What a value in one unit is multiplied with to get it in another; None where they do not go together.

    Args:
        unit: unit that is asked for.
        own_unit: unit of the value.
    """
    if unit == own_unit:
        return 1.0
    return {("%", ""): 100.0, ("", "%"): 0.01}.get((unit, own_unit))
