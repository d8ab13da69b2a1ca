"""Results of the attacks in words: a table for the terminal, remarks, and tables of clients and samples as CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from app.attacks.findings import Finding, ReportedNumber
from app.files import csv_text
from app.metrics.intervals import Estimate, Interval
from app.metrics.leakage import KnownThreshold, Leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import FPR_TARGETS
from app.metrics.vulnerability import ClientRow, sample_table
from app.results.attacks.headline import Headline, headlines
from app.results.attacks.membership_files import AttackRecord, rate_name, tpr_at

Result = Finding | AttackRecord
Cell = str | int | float | None

LINE = 110
"""Longest line of remarks."""

MOST_EXPOSED = 100
"""Samples that are listed of each result."""

WORDS = 3
"""Columns of the table that hold words; the others hold numbers."""

CONDITION_COLUMNS = ("label", "attack", "target", "adaptation", "protocol", "adversary", "shadows")
NUMBER_COLUMNS = (
    *("members", "nonmembers", "auc", "auc_low", "auc_high", *map(rate_name, FPR_TARGETS)),
    *("balanced_accuracy", "balanced_accuracy_low", "balanced_accuracy_high", "worst_client_auc", "seconds"),
)
COLUMNS = (*CONDITION_COLUMNS, *NUMBER_COLUMNS, "reason")
"""Columns of `rows`."""

INVERTED = "the AUC lies below chance beyond its interval: the score or the labels are probably swapped"


def table(results: Iterable[Result]) -> str:
    """One aligned row per result, the strongest ones, leakage by width, why results are missing, and remarks."""
    records = records_of(results)
    if not records:
        return "no attack was run"
    blocks = {
        "N/A:": _grouped(_reasons(records), records, labels_first=True),
        "as the paper reports it:": [f"{record.label}: {_figures(record)}" for record in records if record.figures],
        "remarks:": _grouped(_remarks(records), records),
    }
    parts = ["\n".join([title, *map(_item, texts)]) for title, texts in blocks.items() if texts]
    strongest = "\n".join(map(_headline, headlines(records)))
    return "\n\n".join([_grid(records), *([strongest] if strongest else []), *_width_grid(records), *parts])


def rows(results: Iterable[Result]) -> list[list[Cell]]:
    """One row of plain values per result, in the order of COLUMNS; None where there is none."""
    return [
        [
            *(getattr(record if name == "label" else record.conditions, name) for name in CONDITION_COLUMNS),
            *map(record.numbers.get, NUMBER_COLUMNS),
            record.leakage.reason if isinstance(record.leakage, NotAvailable) else None,
        ]
        for record in records_of(results)
    ]


def clients_csv(results: Iterable[Result]) -> str:
    """Content of `clients.csv`: one line per result and client; rates and areas are fractions."""
    names = ("auc", "low", "high", *(f"tpr@{100 * target:g}%" for target in FPR_TARGETS))
    lines = [[record.label, *_client_cells(row)] for record in records_of(results) for row in record.clients]
    return csv_text([["label", "client", "size", "members", "nonmembers", *names, "reason"], *lines])


def samples_csv(scores_by_label: Mapping[str, MembershipScores], most: int = MOST_EXPOSED) -> str:
    """Content of `vulnerable.csv`: the most exposed members of every result, the most exposed first.

    Args:
        scores_by_label: scores of every result, by label.
        most: members listed per result.
    """
    lines: list[list[Cell]] = [["label", "client", "sample", "score", "exposure"]]
    for label, scores in scores_by_label.items():
        found = sample_table(scores)
        columns = (found.clients, found.samples, found.scores, found.exposure)
        lines += [[label, *row] for row in zip(*(column[:most].tolist() for column in columns), strict=True)]
    return csv_text([[None if cell != cell else cell for cell in line] for line in lines])  # NaN as an empty cell


def records_of(results: Iterable[Result]) -> list[AttackRecord]:
    """All results in one form, in their order."""
    return [result if isinstance(result, AttackRecord) else AttackRecord.of(result) for result in results]


def decimals(interval: Interval | NotAvailable, most: int, scale: float = 1.0) -> int:
    """Decimals a value deserves: those that show two digits of half its interval; one fewer than most without any.

    Args:
        interval: of the value.
        most: decimals at most.
        scale: unit of the interval in the unit shown, such as 100 for percent.
    """
    if isinstance(interval, NotAvailable):
        return most - 1
    if interval.half_width <= 0:
        return most
    return min(most, max(0, 1 - math.floor(math.log10(scale * interval.half_width))))


def auc_text(auc: Estimate, bounds: bool = True) -> str:
    """An area with as many digits as its interval deserves, at most three: `0.873 [.861, .884]`."""
    digits = decimals(auc.interval, 3)
    return f"{auc.value:.{digits}f}" + (f" {_bounds(auc.interval, digits)}" if bounds else "")


def percent_text(value: float, interval: Interval | NotAvailable, bounds: bool = True) -> str:
    """A rate, 0 to 1, in percent with as many digits as its interval deserves, at most two: `61.2 [59.8, 62.5]`."""
    digits = decimals(interval, 2, 100)
    return f"{100 * value:.{digits}f}" + (f" {_bounds(interval, digits, 100)}" if bounds else "")


def _bounds(interval: Interval | NotAvailable, digits: int, scale: float = 1.0) -> str:
    if isinstance(interval, NotAvailable):
        return "[N/A]"
    low, high = (f"{scale * end:.{digits}f}" for end in (interval.low, interval.high))
    return f"[{low}, {high}]" if scale != 1 else f"[{low.removeprefix('0')}, {high.removeprefix('0')}]"


def _grid(records: Sequence[AttackRecord]) -> str:
    """Header, ruler, one line per result, and how to read them."""
    sure = _confidence(records)
    rates = [f"@{100 * target:g}%" for target in FPR_TARGETS]
    head = [
        ["attack", "target", "adversary", "members /", "AUC", *["TPR %"] * len(rates), "bal. acc. %", "worst AUC"],
        ["", "", "", "non-m.", f"[{sure}]", *rates, f"[{sure}]", "(client)"],
    ]
    cells = [*head, *map(_cells, records)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust] * WORDS + [str.rjust] * (len(widths) - WORDS)
    lines = [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)) for row in cells
    ]
    reading = (
        "chance: AUC 0.5, TPR = FPR (@ is the FPR), balanced accuracy 50 %; it is taken at the attacker's own threshold"
    )
    return "\n".join(line.rstrip() for line in (*lines[:2], "-" * len(lines[0]), *lines[2:], reading))


def _headline(headline: Headline) -> str:
    """The strongest result on one kind of target."""
    record, target = headline.record, headline.record.conditions.read_target
    attack = record.label.removesuffix(f".{target}")
    told = f"strongest: {attack} on {target}, AUC {auc_text(headline.leakage.auc)}"
    if not headline.rivals:
        return told
    return f"{told}, an attacker who {'knows' if headline.informed else 'does not know'} the defense"


def _confidence(records: Sequence[AttackRecord]) -> str:
    measured = [record.leakage.auc.interval for record in records if isinstance(record.leakage, Leakage)]
    levels = {interval.confidence for interval in measured if isinstance(interval, Interval)} or {0.95}
    return "/".join(f"{100 * level:g}" for level in sorted(levels)) + " %"


def _cells(record: AttackRecord) -> list[str]:
    """One line of the table."""
    conditions, found, worst = record.conditions, record.leakage, record.worst_client
    attack = record.label.removesuffix(f".{conditions.read_target}")
    words = [attack, conditions.read_target, conditions.adversary]
    last = "–" if worst is None else f"{auc_text(worst[1].auc, bounds=False)} ({worst[0]})"
    if isinstance(found, NotAvailable):
        return [*words, *["N/A"] * (3 + len(FPR_TARGETS)), last]
    known = "–"
    if isinstance(found.known, KnownThreshold):
        known = percent_text(found.known.decision.balanced_accuracy, found.known.balanced_accuracy)
    rates = [_rate(found, target) for target in FPR_TARGETS]
    return [*words, f"{found.members}/{found.nonmembers}", auc_text(found.auc), *rates, known, last]


def _rate(leakage: Leakage, target: float) -> str:
    entry = tpr_at(leakage, target)
    return "N/A" if entry is None else percent_text(entry.decision.tpr, entry.tpr_at_target, bounds=False)


def _reasons(records: Sequence[AttackRecord]) -> list[tuple[str, str]]:
    """Text and label of everything that is not available as a whole."""
    return [(record.leakage.reason, record.label) for record in records if isinstance(record.leakage, NotAvailable)]


def _remarks(records: Sequence[AttackRecord]) -> list[tuple[str, str]]:
    """Text and label of every note, and of every number that is missing beside others."""
    found = [(note, record.label) for record in records for note in record.notes]
    for record in records:
        if isinstance(leakage := record.leakage, Leakage):
            parts = (leakage.auc.interval, *leakage.tpr, leakage.known)
            found += [(part.reason, record.label) for part in parts if isinstance(part, NotAvailable)]
            found += [(INVERTED, record.label)] if leakage.inverted else []
    return found


def _grouped(
    texts: Sequence[tuple[str, str]], records: Sequence[AttackRecord], labels_first: bool = False
) -> list[str]:
    """Every distinct text once, with the labels it concerns."""
    concerned: dict[str, list[str]] = {}
    for text, label in texts:
        concerned.setdefault(text, []).append(label)
    lines = []
    for text, labels in concerned.items():
        names = "all results" if 1 < len(records) == len(labels) else ", ".join(labels)
        lines.append(f"{names}: {text}" if labels_first else f"{text} ({names})")
    return lines


def _width_grid(records: Sequence[AttackRecord]) -> list[str]:
    """AUC by width, one line per result and one column per width; nothing where all clients train one width."""
    having = [record for record in records if record.capacities]
    widths = {row.rate: row.clients for record in having for row in record.capacities}
    if not having:
        return []
    rates = sorted(widths, reverse=True)
    head = ["AUC by width:", *(f"{rate:g} ({_number(widths[rate], 'client')})" for rate in rates)]
    lines = [head, *([record.label, *_width_cells(record, rates)] for record in having)]
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() for line in lines]
    reasons = [
        _item(f"{record.label}, width {row.rate:g}: {row.leakage.reason}")
        for record in having
        for row in record.capacities
        if isinstance(row.leakage, NotAvailable)
    ]
    return ["\n".join([*text, *reasons])]


def _width_cells(record: AttackRecord, rates: Sequence[float]) -> list[str]:
    found = {row.rate: row.leakage for row in record.capacities}
    known = (found.get(rate) for rate in rates)
    return [auc_text(leakage.auc) if isinstance(leakage, Leakage) else "N/A" for leakage in known]


def _figures(record: AttackRecord) -> str:
    return "; ".join(map(_figure, record.figures))


def _figure(figure: ReportedNumber) -> str:
    """A number of a paper: percent with one decimal, others with three, and its spread over clients."""
    form = ".1f" if "%" in figure.name else ".3f"
    values = [value for _, value in figure.per_client if not math.isnan(value)]
    value = "N/A" if math.isnan(figure.value) else format(figure.value, form)
    if not values:
        return f"{figure.name} = {value}"
    spread = f"{format(min(values), form)} to {format(max(values), form)}"
    return f"{figure.name} = {value} (mean over {_number(len(values), 'client')}, {spread})"


def _client_cells(row: ClientRow) -> list[Cell]:
    found = row.leakage
    if isinstance(found, NotAvailable):
        return [row.client, row.size, *[None] * (5 + len(FPR_TARGETS)), found.reason]
    ends = (
        (found.auc.interval.low, found.auc.interval.high) if isinstance(found.auc.interval, Interval) else (None, None)
    )
    rates = [entry and entry.decision.tpr for entry in (tpr_at(found, target) for target in FPR_TARGETS)]
    return [row.client, row.size, found.members, found.nonmembers, found.auc.value, *ends, *rates, None]


def _item(text: str) -> str:
    return textwrap.fill(
        text, LINE, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
