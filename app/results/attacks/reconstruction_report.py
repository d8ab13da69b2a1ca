"""Reconstructions in words: a table for the terminal with reasons and remarks, and its rows as plain values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from app.attacks.reconstruction.base import ReconstructionFinding
from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import RECOVERED, Reconstruction, Similarity
from app.results.attacks.reconstruction_files import ReconstructionRecord

Result = ReconstructionFinding | ReconstructionRecord
Cell = str | int | float | None

LINE = 118
"""Longest line of the table."""

MOST_LETTERS = 40
"""Letters of a label in a picture."""

WORDS = (0, 1, 9)
"""Columns of the table that hold words; the others hold numbers."""

HEAD = (
    *("result", "clients", "images", "recovered", "Pearson", "", "blind", "PSNR dB", "", "strongest guess"),
    *("", "", "", "% [95 %]", "mean", "best", "mean", "mean", "best", "(mean Pearson)"),
)

EXPLAINED = (
    f"recovered: Pearson {RECOVERED:g} or more; means are over all images, one candidate for one image; PSNR has data "
    "range 1; blind: candidates the attacker would choose without the truth; intervals take images for independent"
)

NO_BETTER = "on average no better than guessing: the mean Pearson does not exceed that of the strongest guess"

CONDITION_COLUMNS = ("label", "attack", "adversary", "sees", "round")
NUMBER_COLUMNS = (
    *("images", "candidates", "recovered", "share", "share_low", "share_high", "pearson", "pearson_best"),
    *("blind_pearson", "psnr", "psnr_best", "ssim", "ssim_best", "strongest_null", "seconds"),
)
COLUMNS = (*CONDITION_COLUMNS, "clients", *NUMBER_COLUMNS, "null", "reason")
"""Columns of `rows`."""


def table(results: Iterable[Result]) -> str:
    """One aligned row per result, below it why there is none where it is missing, then remarks."""
    records = records_of(results)
    if not records:
        return "no reconstruction was tried"
    remarks = [*map(_item, _remarks(records))]
    explained = textwrap.fill(EXPLAINED, LINE)
    return "\n\n".join([_grid(records), explained, *(["\n".join(["remarks:", *remarks])] if remarks else [])])


def rows(results: Iterable[Result]) -> list[list[Cell]]:
    """One row of plain values per result, in the order of COLUMNS; None where there is none."""
    return [
        [
            *(getattr(record.conditions, name) for name in CONDITION_COLUMNS),
            ", ".join(map(str, record.conditions.clients)),
            *map(record.numbers.get, NUMBER_COLUMNS),
            _null_name(record),
            record.result.reason if isinstance(record.result, NotAvailable) else None,
        ]
        for record in records_of(results)
    ]


def records_of(results: Iterable[Result]) -> list[ReconstructionRecord]:
    """All results in one form, in their order."""
    return [one if isinstance(one, ReconstructionRecord) else ReconstructionRecord.of(one) for one in results]


def short(label: str) -> str:
    """A label without its middle where it is long."""
    return label if len(label) <= MOST_LETTERS else f"{label[: MOST_LETTERS - 18]}...{label[-15:]}"


def _grid(records: Sequence[ReconstructionRecord]) -> str:
    """Two lines of header, a ruler, and the results; a label that is too long for the line stands above its row."""
    half = len(HEAD) // 2
    cells = [[*HEAD[:half]], [*HEAD[half:]], *map(_cells, records)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = LINE - sum(widths[1:]) - 2 * (half - 1)
    labels = [len(line[0]) for line in cells if len(line[0]) <= room]
    widths[0] = max(labels)
    lines = [_line(line, widths) for line in cells[:2]]
    lines.append("-" * (sum(widths) + 2 * (half - 1)))
    for line, record in zip(cells[2:], records, strict=True):
        fits = len(line[0]) <= widths[0]
        lines += [] if fits else [line[0]]
        lines.append(_line(line if fits else ["", *line[1:]], widths))
        lines += [_reason(record)] if isinstance(record.result, NotAvailable) else []
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.ljust(width) if place in WORDS else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def _cells(record: ReconstructionRecord) -> list[str]:
    """One line of the table."""
    front, found = [record.label, _clients(record.conditions.clients)], record.result
    if isinstance(found, NotAvailable):
        return [*front, *["N/A"] * 8]
    oracle, guess = found.oracle, found.strongest_null
    pearson = (f"{value:.3f}" for value in (oracle.pearson_mean, oracle.pearson_best, found.blind.pearson_mean))
    decibels = (f"{value:.1f}" for value in (oracle.psnr_mean, oracle.psnr_best))
    guessed = "–" if guess is None else f"{guess.name} {guess.similarity.pearson_mean:.3f}"
    return [*front, str(oracle.of), _recovered(oracle), *pearson, *decibels, guessed]


def _clients(clients: Sequence[int]) -> str:
    """Their ids, or their number where they are many."""
    named = ", ".join(map(str, clients))
    return named if len(named) <= 8 else f"{len(clients)} of them"


def _recovered(found: Similarity) -> str:
    """Percent with interval: `85 [64, 95]`."""
    share = found.recovered_share
    assert isinstance(share.interval, Interval)
    return f"{100 * share.value:.0f} [{100 * share.interval.low:.0f}, {100 * share.interval.high:.0f}]"


def _null_name(record: ReconstructionRecord) -> str | None:
    guess = record.result.strongest_null if isinstance(record.result, Reconstruction) else None
    return None if guess is None else guess.name


def _reason(record: ReconstructionRecord) -> str:
    assert isinstance(record.result, NotAvailable)
    told = f"failed: {record.result.reason}" if record.failed else record.result.reason
    return textwrap.fill(told, LINE, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


def _remarks(records: Sequence[ReconstructionRecord]) -> list[str]:
    """Every distinct remark once, with the labels it concerns."""
    concerned: dict[str, list[str]] = {}
    for record in records:
        weak = isinstance(record.result, Reconstruction) and record.result.beats_guessing is False
        for text in (*([NO_BETTER] if weak else []), *record.conditions.notes):
            concerned.setdefault(text, []).append(record.label)
    every = len(records)
    return [
        f"{text} ({'all results' if 1 < every == len(labels) else ', '.join(labels)})"
        for text, labels in concerned.items()
    ]


def _item(text: str) -> str:
    return textwrap.fill(
        text, LINE, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
