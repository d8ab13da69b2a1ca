"""What the table says in sentences: nothing beyond the standings that were tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable, Group, Measure, Row, Standing, Value
from app.results.report.entries import number, with_interval

GROUPS: dict[Group, str] = {"utility": "Utility", "leakage": "Leakage", "formal": "Formal privacy", "cost": "Cost"}
"""Groups of measures in words."""

MOST_NAMED = 4
"""Rows that a sentence names; more are counted."""


@dataclass(frozen=True)
class Conclusion:
    """A sentence about one measure on one dataset.

    Attributes:
        dataset: dataset and partition.
        measure: the column.
        sentence: what the standings say.
    """

    dataset: str
    measure: Measure
    sentence: str


def findings(table: ComparisonTable) -> tuple[Conclusion, ...]:
    """One sentence per dataset and headline measure; none where a dataset has a single row."""
    return tuple(
        Conclusion(dataset, measure, _sentence(measure, rows, found))
        for dataset in dict.fromkeys(row.dataset for row in table.rows)
        for measure in headline_measures(table)
        if (rows := table.of(dataset)) and len(found := _measured(rows, measure)) > 1
    )


def headline_measures(table: ComparisonTable) -> tuple[Measure, ...]:
    """The first measure of every group in which lower or higher is better, and all headlines of attacks."""
    first: dict[str, Measure] = {}
    for measure in table.measures:
        if measure.lower_is_better is not None:
            headline = measure.key.endswith("_auc") or measure.key == "recovered_share"
            first.setdefault(measure.key if headline else measure.group, measure)
    leaks = any(measure.group == "leakage" for key, measure in first.items() if key == measure.key)
    return tuple(measure for key, measure in first.items() if not (leaks and key == "leakage"))


def _measured(rows: Sequence[Row], measure: Measure) -> list[tuple[Row, Value]]:
    """Rows with a number, the best mean first."""
    found = [(row, value) for row in rows if isinstance(value := row.values.get(measure.key), Value)]
    return sorted(found, key=lambda pair: pair[1].mean, reverse=not measure.lower_is_better)


def _sentence(measure: Measure, rows: Sequence[Row], found: Sequence[tuple[Row, Value]]) -> str:
    return " ".join(_parts(measure, rows, found))


def _parts(measure: Measure, rows: Sequence[Row], found: Sequence[tuple[Row, Value]]) -> Iterator[str]:
    best, level, worse, unknown = (
        [(row, value) for row, value in found if value.standing == standing]
        for standing in ("best", "indistinguishable", "worse", "unknown")
    )
    if best:
        row, value = best[0]
        others = (
            "all other rows" if len(worse) == len(found) - 1 else f"{_count(len(worse))} of {len(found) - 1} others"
        )
        yield f"{row.name} is best ({with_interval(measure, value)}): {others} are worse beyond chance."
    elif level:
        told = _and(_numbered(level, measure))
        others = f"; {_rows(len(worse))} worse beyond chance" if worse else ""
        yield f"no row can be called best. {told} cannot be told apart{others}."
    if unknown:
        yield _undecided(measure, [value.mean for _, value in unknown], len(found))
    if missing := [row for row in rows if isinstance(row.values.get(measure.key), NotAvailable)]:
        yield f"Not available for {_and(_shortened([row.name for row in missing]))}."


def _undecided(measure: Measure, means: Sequence[float], rows: int) -> str:
    """Of rows that nothing is known about but their means."""
    ends = dict.fromkeys((number(measure, min(means)), number(measure, max(means))))
    spread = f"{' to '.join(ends)} {measure.unit}".rstrip()
    if len(means) == rows:
        return f"too few seeds to tell which row is best; means: {spread}."
    have = "has" if len(means) == 1 else "have"
    return f"{_count(len(means)).capitalize()} of {rows} rows {have} too few seeds to tell (means: {spread})."


def _numbered(found: Sequence[tuple[Row, Value]], measure: Measure) -> list[str]:
    return _shortened([f"{row.name} ({with_interval(measure, value)})" for row, value in found])


def _shortened(names: list[str]) -> list[str]:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return [*names[:MOST_NAMED], f"{_count(more)} more"] if more > 0 else names


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _rows(count: int) -> str:
    return f"{_count(count)} {'row is' if count == 1 else 'rows are'}"


def _count(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)


STANDINGS: dict[Standing, str] = {
    "best": "best of its dataset beyond chance",
    "indistinguishable": "indistinguishable from the best of its dataset",
    "worse": "worse than the best of its dataset beyond chance",
    "unknown": "too few seeds to tell whether it is best",
}
"""What a standing means, in words."""
