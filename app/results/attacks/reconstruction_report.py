"""Report of reconstructions: a table with reasons and remarks for the terminal, and its rows as plain values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import RECOVERED, Reconstruction, Similarity
from app.result import PlainTable
from app.results.attacks.wording import grouped
from app.results.text_table import bullet, table_lines

if TYPE_CHECKING:
    from app.results.attacks.reconstruction import ReconstructionRecord

LINE = 118
"""Longest line of the table."""

HEAD = (
    *("result", "clients", "images", "recovered\n% [95 %]", "Pearson\nmean", "\nbest", "blind\nmean"),
    *("PSNR dB\nmean", "\nbest", "strongest guess\n(mean Pearson)"),
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


def table(records: Sequence[ReconstructionRecord]) -> str:
    """One aligned row per result, below it why there is none where it is missing, then remarks."""
    if not records:
        return "no reconstruction was tried"
    remarks = [bullet(text, LINE) for text in grouped(_remarks(records), len(records))]
    explained = textwrap.fill(EXPLAINED, LINE)
    return "\n\n".join([_grid(records), explained, *(["\n".join(["remarks:", *remarks])] if remarks else [])])


def rows(records: Iterable[ReconstructionRecord]) -> PlainTable:
    """One row of plain values per result."""
    cells = [
        [
            *(getattr(record.conditions, name) for name in CONDITION_COLUMNS),
            ", ".join(map(str, record.conditions.clients)),
            *map(record.numbers.get, NUMBER_COLUMNS),
            _null_name(record),
            record.result.reason if isinstance(record.result, NotAvailable) else None,
        ]
        for record in records
    ]
    return PlainTable((*CONDITION_COLUMNS, "clients", *NUMBER_COLUMNS, "null", "reason"), cells)


def _grid(records: Sequence[ReconstructionRecord]) -> str:
    """One row per result; below it the reason where it is not available."""
    lines = table_lines(HEAD, list(map(_cells, records)), left=(0, 1, len(HEAD) - 1), limit=LINE)
    reasons = [[_reason(record)] if isinstance(record.result, NotAvailable) else [] for record in records]
    start = len(lines) - len(records)
    rows = [text for line, reason in zip(lines[start:], reasons, strict=True) for text in (line, *reason)]
    return "\n".join([*lines[:start], *rows])


def _cells(record: ReconstructionRecord) -> list[str]:
    front, result = [record.label, _clients(record.conditions.clients)], record.result
    if isinstance(result, NotAvailable):
        return [*front, *["N/A"] * 8]
    best, guess = result.oracle, result.strongest_null
    pearson = (f"{value:.3f}" for value in (best.pearson_mean, best.pearson_best, result.blind.pearson_mean))
    decibels = (f"{value:.1f}" for value in (best.psnr_mean, best.psnr_best))
    guessed = "–" if guess is None else f"{guess.name} {guess.similarity.pearson_mean:.3f}"
    return [*front, str(best.of), _recovered(best), *pearson, *decibels, guessed]


def _clients(clients: Sequence[int]) -> str:
    """Ids of the clients, or their number where there are many."""
    named = ", ".join(map(str, clients))
    return named if len(named) <= 8 else f"{len(clients)} of them"


def _recovered(similarity: Similarity) -> str:
    """Percent with interval: `85 [64, 95]`."""
    share = similarity.recovered_share
    assert isinstance(share.interval, Interval)
    return f"{100 * share.value:.0f} [{100 * share.interval.low:.0f}, {100 * share.interval.high:.0f}]"


def _null_name(record: ReconstructionRecord) -> str | None:
    guess = record.result.strongest_null if isinstance(record.result, Reconstruction) else None
    return None if guess is None else guess.name


def _reason(record: ReconstructionRecord) -> str:
    assert isinstance(record.result, NotAvailable)
    reason = f"failed: {record.result.reason}" if record.failed else record.result.reason
    return textwrap.fill(reason, LINE, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


def _remarks(records: Sequence[ReconstructionRecord]) -> list[tuple[str, str]]:
    remarks = []
    for record in records:
        weak = isinstance(record.result, Reconstruction) and record.result.beats_guessing is False
        texts = (*([NO_BETTER] if weak else []), *record.conditions.notes)
        remarks += [(text, record.label) for text in texts]
    return remarks
