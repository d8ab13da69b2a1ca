"""Report of membership inference: a table with remarks for the terminal, clients and samples as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from app.attacks.findings import ReportedNumber
from app.common.files import csv_text
from app.common.wording import counted
from app.metrics.intervals import Estimate, Interval
from app.metrics.leakage import KnownThreshold, Leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.roc import FPR_TARGETS
from app.metrics.vulnerability import ClientRow, sample_table
from app.result import Cell, PlainTable
from app.results.attacks.headline import Headline, headlines
from app.results.attacks.wording import grouped, rate_name, tpr_at
from app.results.text_table import bullet, text_table

if TYPE_CHECKING:
    from app.results.attacks.membership import AttackRecord

MOST_EXPOSED = 100
"""Samples that are listed of each result."""

CONDITION_COLUMNS = ("label", "attack", "target", "adaptation", "protocol", "adversary", "shadows")
NUMBER_COLUMNS = (
    *("members", "nonmembers", "auc", "auc_low", "auc_high", *map(rate_name, FPR_TARGETS)),
    *("balanced_accuracy", "balanced_accuracy_low", "balanced_accuracy_high", "worst_client_auc", "seconds"),
)

INVERTED = "the AUC lies below chance beyond its interval: the score or the labels are probably swapped"


def table(records: Sequence[AttackRecord]) -> str:
    """One aligned row per result, the strongest ones, leakage by width, why results are missing, and remarks."""
    if not records:
        return "no attack was run"
    blocks = {
        "N/A:": grouped(_reasons(records), len(records), labels_first=True),
        "as the paper reports it:": [
            f"{record.label}: {'; '.join(map(_reported, record.figures))}" for record in records if record.figures
        ],
        "remarks:": grouped(_remarks(records), len(records)),
    }
    parts = ["\n".join([title, *map(bullet, texts)]) for title, texts in blocks.items() if texts]
    strongest = "\n".join(map(_headline, headlines(records)))
    return "\n\n".join([_grid(records), *([strongest] if strongest else []), *_width_grid(records), *parts])


def rows(records: Iterable[AttackRecord]) -> PlainTable:
    """One row of plain values per result."""
    cells = [
        [
            *(getattr(record if name == "label" else record.conditions, name) for name in CONDITION_COLUMNS),
            *map(record.numbers.get, NUMBER_COLUMNS),
            record.leakage.reason if isinstance(record.leakage, NotAvailable) else None,
        ]
        for record in records
    ]
    return PlainTable((*CONDITION_COLUMNS, *NUMBER_COLUMNS, "reason"), cells)


def clients_csv(records: Iterable[AttackRecord]) -> str:
    """Content of `clients.csv`: one line per result and client; rates and areas are fractions."""
    names = ("auc", "low", "high", *(f"tpr@{100 * target:g}%" for target in FPR_TARGETS))
    lines = [[record.label, *_client_cells(row)] for record in records for row in record.clients]
    return csv_text([["label", "client", "size", "members", "nonmembers", *names, "reason"], *lines])


def samples_csv(scores_by_label: Mapping[str, MembershipScores], most: int = MOST_EXPOSED) -> str:
    """Content of `vulnerable.csv`: the `most` most exposed members of every result, the most exposed first."""
    lines: list[list[Cell]] = [["label", "client", "sample", "score", "exposure"]]
    for label, scores in scores_by_label.items():
        exposed = sample_table(scores)
        columns = (exposed.clients, exposed.samples, exposed.scores, exposed.exposure)
        lines += [[label, *row] for row in zip(*(column[:most].tolist() for column in columns), strict=True)]
    return csv_text([[None if cell != cell else cell for cell in line] for line in lines])  # NaN as an empty cell


def decimals(interval: Interval | NotAvailable, most: int, scale: float = 1.0) -> int:
    """Decimals that show two digits of half the interval, `most` at most; one fewer than `most` without an interval."""
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
    """One row per result, and how to read it."""
    level = _confidence(records)
    rates = [f"TPR %\n@{100 * target:g}%" for target in FPR_TARGETS]
    numbers = ["members /\nnon-m.", f"AUC\n[{level}]", *rates, f"bal. acc. %\n[{level}]", "worst AUC\n(client)"]
    reading = (
        "chance: AUC 0.5, TPR = FPR (@ is the FPR), balanced accuracy 50 %; it is taken at the attacker's own threshold"
    )
    table = text_table(["attack", "target", "adversary", *numbers], list(map(_cells, records)), left=range(3))
    return f"{table}\n{reading}"


def _headline(headline: Headline) -> str:
    record, target = headline.record, headline.record.conditions.read_target
    attack = record.label.removesuffix(f".{target}")
    line = f"strongest: {attack} on {target}, AUC {auc_text(headline.leakage.auc)}"
    if not headline.rivals:
        return line
    return f"{line}, an attacker who {'knows' if headline.informed else 'does not know'} the defense"


def _confidence(records: Sequence[AttackRecord]) -> str:
    measured = [record.leakage.auc.interval for record in records if isinstance(record.leakage, Leakage)]
    levels = {interval.confidence for interval in measured if isinstance(interval, Interval)} or {0.95}
    return "/".join(f"{100 * level:g}" for level in sorted(levels)) + " %"


def _cells(record: AttackRecord) -> list[str]:
    conditions, leakage, worst = record.conditions, record.leakage, record.worst_client
    attack = record.label.removesuffix(f".{conditions.read_target}")
    words = [attack, conditions.read_target, conditions.adversary]
    last = "–" if worst is None else f"{auc_text(worst[1].auc, bounds=False)} ({worst[0]})"
    if isinstance(leakage, NotAvailable):
        return [*words, *["N/A"] * (3 + len(FPR_TARGETS)), last]
    known = "–"
    if isinstance(leakage.known, KnownThreshold):
        known = percent_text(leakage.known.decision.balanced_accuracy, leakage.known.balanced_accuracy)
    rates = [_rate(leakage, target) for target in FPR_TARGETS]
    return [*words, f"{leakage.members}/{leakage.nonmembers}", auc_text(leakage.auc), *rates, known, last]


def _rate(leakage: Leakage, target: float) -> str:
    entry = tpr_at(leakage, target)
    return "N/A" if entry is None else percent_text(entry.decision.tpr, entry.tpr_at_target, bounds=False)


def _reasons(records: Sequence[AttackRecord]) -> list[tuple[str, str]]:
    return [(record.leakage.reason, record.label) for record in records if isinstance(record.leakage, NotAvailable)]


def _remarks(records: Sequence[AttackRecord]) -> list[tuple[str, str]]:
    """Text and label of every note, and of every number that is missing beside others."""
    remarks = [(note, record.label) for record in records for note in record.notes]
    for record in records:
        if isinstance(leakage := record.leakage, Leakage):
            parts = (leakage.auc.interval, *leakage.tpr, leakage.known)
            remarks += [(part.reason, record.label) for part in parts if isinstance(part, NotAvailable)]
            remarks += [(INVERTED, record.label)] if leakage.inverted else []
    return remarks


def _width_grid(records: Sequence[AttackRecord]) -> list[str]:
    """AUC by width, one line per result and one column per width; nothing where all clients train one width."""
    having = [record for record in records if record.capacities]
    widths = {row.rate: row.clients for record in having for row in record.capacities}
    if not having:
        return []
    rates = sorted(widths, reverse=True)
    head = ["AUC by width:", *(f"{rate:g} ({counted(widths[rate], 'client')})" for rate in rates)]
    cells = [[record.label, *_width_cells(record, rates)] for record in having]
    text = text_table(head, cells, left=range(len(head)), rule=False)
    reasons = [
        bullet(f"{record.label}, width {row.rate:g}: {row.leakage.reason}")
        for record in having
        for row in record.capacities
        if isinstance(row.leakage, NotAvailable)
    ]
    return ["\n".join([text, *reasons])]


def _width_cells(record: AttackRecord, rates: Sequence[float]) -> list[str]:
    by_rate = {row.rate: row.leakage for row in record.capacities}
    leakages = (by_rate.get(rate) for rate in rates)
    return [auc_text(leakage.auc) if isinstance(leakage, Leakage) else "N/A" for leakage in leakages]


def _reported(number: ReportedNumber) -> str:
    """A number as a paper reports it: percent with one decimal, others with three, and its range over clients."""
    form = ".1f" if "%" in number.name else ".3f"
    values = [value for _, value in number.per_client if not math.isnan(value)]
    value = "N/A" if math.isnan(number.value) else format(number.value, form)
    if not values:
        return f"{number.name} = {value}"
    spread = f"{format(min(values), form)} to {format(max(values), form)}"
    return f"{number.name} = {value} (mean over {counted(len(values), 'client')}, {spread})"


def _client_cells(row: ClientRow) -> list[Cell]:
    leakage = row.leakage
    if isinstance(leakage, NotAvailable):
        return [row.client, row.size, *[None] * (5 + len(FPR_TARGETS)), leakage.reason]
    interval = leakage.auc.interval
    ends = (interval.low, interval.high) if isinstance(interval, Interval) else (None, None)
    rates = [entry and entry.decision.tpr for entry in (tpr_at(leakage, target) for target in FPR_TARGETS)]
    return [row.client, row.size, leakage.members, leakage.nonmembers, leakage.auc.value, *ends, *rates, None]
