"""Conclusions in sentences, from the tested standings only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.metrics.membership import NotAvailable
from app.results.comparison.display import TableCell
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

MOST_NAMED = 4
"""Rows that a sentence names; more are counted."""

Entry = tuple[Row, Value]


@dataclass(frozen=True)
class Conclusion:
    """A sentence about one measure on one dataset."""

    dataset: str
    measure: Measure
    sentence: str

    @property
    def subject(self) -> str:
        """Meaning of the measure, up to its range or a remark in brackets."""
        subject = re.split(r", | \(", self.measure.meaning, maxsplit=1)[0].rstrip(".")
        return subject[:1].upper() + subject[1:]


def conclusions(table: ComparisonTable) -> tuple[Conclusion, ...]:
    """One sentence per dataset and headline measure; none where a dataset has a single row."""
    return tuple(
        Conclusion(dataset, measure, " ".join(_sentences(measure, table.of(dataset), entries)))
        for dataset in table.datasets
        for measure in headline_measures(table)
        if len(entries := _best_first(table.of(dataset), measure)) > 1
    )


def headline_measures(table: ComparisonTable) -> tuple[Measure, ...]:
    """The first measure of every group in which lower or higher is better, and those of the strongest attacks."""
    first: dict[str, Measure] = {}
    for measure in table.measures:
        if measure.lower_is_better is not None:
            headline = measure.key.endswith("_auc") or measure.key == "recovered_share"
            first.setdefault(measure.key if headline else measure.group, measure)
    leaks = any(measure.group == "leakage" for key, measure in first.items() if key == measure.key)
    return tuple(measure for key, measure in first.items() if not (leaks and key == "leakage"))


def _best_first(rows: Sequence[Row], measure: Measure) -> list[Entry]:
    entries = [(row, value) for row in rows if isinstance(value := row.entry(measure), Value)]
    return sorted(entries, key=lambda entry: entry[1].mean, reverse=not measure.lower_is_better)


def _sentences(measure: Measure, rows: Sequence[Row], entries: Sequence[Entry]) -> Iterator[str]:
    best, level, worse, unknown = (
        [(row, value) for row, value in entries if value.standing == standing]
        for standing in ("best", "indistinguishable", "worse", "unknown")
    )
    others = len(entries) - 1
    if best:
        which = "all other rows" if len(worse) == others else f"{_count(len(worse))} of {others} other rows"
        row, value = best[0]
        yield f"{row.name} is best ({_number(measure, value)}): {which} are significantly worse."
    elif level:
        number = f"; {_count(len(worse))} {'row is' if len(worse) == 1 else 'rows are'} significantly worse"
        names = _enumerated([f"{row.name} ({_number(measure, value)})" for row, value in level])
        yield f"no row is best. {names} do not differ significantly{number if worse else ''}."
    if unknown:
        yield _untested(measure, [value.mean for _, value in unknown], len(entries))
    if missing := [row.name for row in rows if isinstance(row.values.get(measure.key), NotAvailable)]:
        yield f"Not available for {_enumerated(missing)}."


def _untested(measure: Measure, means: Sequence[float], rows: int) -> str:
    ends = dict.fromkeys((measure.number(min(means)), measure.number(max(means))))
    spread = f"{' to '.join(ends)} {measure.unit}".rstrip()
    if len(means) == rows:
        return f"too few seeds to test which row is best; means: {spread}."
    have = "has" if len(means) == 1 else "have"
    return f"{_count(len(means)).capitalize()} of {rows} rows {have} too few seeds for a test (means: {spread})."


def _number(measure: Measure, value: Value) -> str:
    """A mean with half of its interval, as in `91.2 ± 0.4 %`; it is not broken over lines."""
    cell = TableCell.of(measure, value)
    half = f" ± {cell.half_width}" if cell.half_width else ""
    return f"{cell.mean}{half} {measure.unit}".rstrip().replace(" ", "\N{NO-BREAK SPACE}")


def _enumerated(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMED
    shown = [*names[:MOST_NAMED], f"{_count(more)} more"] if more > 0 else names
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _count(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)
