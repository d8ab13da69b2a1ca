"""Details of every row as data for the template: its runs, guarantees, channels, attacks, own results and remarks."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.privacy.statements import ChannelStatement, PrivacyStatement
from app.result import Cell, Measurement, fits_file
from app.results.attacks.membership_report import auc_text
from app.results.comparison.table import ComparisonTable, Row
from app.results.report.notes import NoteLink, PageNotes
from app.results.report.table import remarks_id
from app.results.report.threats import ROLES, SHORT
from app.results.run.store import RunRecord, Store

Result = tuple[str, str | NoteLink]
"""Adversary and result of an attack on one run."""

MEMBERSHIP = "Membership inference: AUC with its 95 % interval over samples; chance is 0.5"
RECONSTRUCTION = "Reconstruction: images recovered, of all that were attacked"

LARGEST = 10**6
"""Bytes of a figure that the page holds, at most."""


@dataclass(frozen=True)
class AttackTable:
    """Results of attacks: label, adversary, and one result per run."""

    caption: str
    rows: tuple[tuple[str, str, tuple[str | NoteLink, ...]], ...]


@dataclass(frozen=True)
class MeasurementPart:
    """Results of one label, of attacks and recorders of the user's own."""

    # caption, heads and rows: the numbers with one column per run, then the own tables of the runs
    tables: tuple[tuple[str, list[str], list[list[str]]], ...]
    figures: tuple[tuple[str, str], ...]  # caption, and the image as a data URL


@dataclass(frozen=True)
class RowDetails:
    """Everything about a row beside its numbers."""

    row: Row  # the row
    runs: tuple[RunRecord, ...]  # its runs
    lists: dict[str, list[str]]  # titled lists of statements; those without an entry are left out
    attacks: tuple[AttackTable, ...]  # results of attacks
    measurements: tuple[MeasurementPart, ...]  # results of attacks and recorders of the user's own
    notes: PageNotes  # footnotes of these results
    remarks: list[str]  # remarks on the row, its runs and their attacks
    remarks_id: str  # id of the remarks

    @property
    def seed_heads(self) -> list[str]:
        """Heads of the columns of the runs."""
        return list(map(_head, self.runs))


def row_details(store: Store, table: ComparisonTable) -> list[RowDetails]:
    """Details of all rows that have runs."""
    details = []
    for number, row in enumerate(table.rows):
        place = (row.dataset, row.method, row.defense)
        runs = [run for run in store.runs if (run.labels.dataset, run.labels.method, run.labels.defense) == place]
        if runs:
            details.append(_details(row, runs, number))
    return details


def _details(row: Row, runs: Sequence[RunRecord], number: int) -> RowDetails:
    notes = PageNotes(prefix=f"run-{number}")
    attacks = [
        _attack_table(MEMBERSHIP, [_membership(run, notes) for run in runs]),
        _attack_table(RECONSTRUCTION, [_reconstruction(run, notes) for run in runs]),
    ]
    lists = {
        "Privacy budget": [_budget(budget) for run in runs for budget in run.budgets],
        "Measured epsilon": [text for run in runs for text in run.measured],
        "Channel": [_channel(channel) for run in runs for channel in run.channels],
    }
    return RowDetails(
        row,
        tuple(runs),
        {title: list(dict.fromkeys(entries)) for title, entries in lists.items() if entries},
        tuple(each for each in attacks if each.rows),
        tuple(_measurements(runs)),
        notes,
        list(dict.fromkeys([*row.notes, *_remarks(runs)])),
        remarks_id(number),
    )


def _budget(budget: PrivacyStatement) -> str:
    parts = [
        budget.line(),
        f"against {budget.against}",
        f"neighbours: {budget.adjacency}",
        f"sampling: {budget.sampling}",
        f"accountant: {budget.accountant}",
        f"noise {budget.noise:.3g}, clipping norm {budget.clip:.3g}",
    ]
    return "; ".join([*parts, *budget.notes])


def _channel(channel: ChannelStatement) -> str:
    accepted = [f"accepted: {leak}" for leak in channel.accepted]
    return "; ".join([channel.line(), f"relies on: {channel.trusts}", *accepted, *channel.notes])


def _membership(run: RunRecord, notes: PageNotes) -> dict[str, Result]:
    def auc(leakage: Leakage | NotAvailable) -> str | NoteLink:
        return notes.link(leakage.reason, "N/A") if isinstance(leakage, NotAvailable) else auc_text(leakage.auc)

    return {record.label: (ROLES[record.conditions.adversary].title, auc(record.leakage)) for record in run.attacks}


def _reconstruction(run: RunRecord, notes: PageNotes) -> dict[str, Result]:
    def recovered(result: Reconstruction | NotAvailable) -> str | NoteLink:
        if isinstance(result, NotAvailable):
            return notes.link(result.reason, "N/A")
        return f"{result.oracle.recovered} of {result.oracle.of}"

    return {
        record.label: (ROLES[SHORT[record.conditions.adversary]].title, recovered(record.result))
        for record in run.reconstructions
    }


def _attack_table(caption: str, runs: Sequence[Mapping[str, Result]]) -> AttackTable:
    adversaries = {label: adversary for results in runs for label, (adversary, _) in results.items()}
    rows = [
        (label, adversary, tuple(results[label][1] if label in results else "not run" for results in runs))
        for label, adversary in adversaries.items()
    ]
    return AttackTable(caption, tuple(rows))


def _measurements(runs: Sequence[RunRecord]) -> Iterator[MeasurementPart]:
    found = [{result.label: result for result in run.measurements} for run in runs]
    for label in sorted({label for results in found for label in results}):
        pairs = [(run, results[label]) for run, results in zip(runs, found, strict=True) if label in results]
        tables = [(label, ["Number", *map(_head, runs)], _number_rows([results.get(label) for results in found]))]
        tables += [
            (f"{label}, {_head(run)}", list(result.columns), [list(map(_cell, row)) for row in result.rows])
            for run, result in pairs
        ]
        figures = [(f"{label}, {_head(run)}", url) for run, _ in pairs if (url := _figure(run, label))]
        yield MeasurementPart(tuple(each for each in tables if each[2]), tuple(figures))


def _number_rows(results: Sequence[Measurement | None]) -> list[list[str]]:
    """One row per number, with its name and its value in every run."""
    numbers = [None if result is None else result.numbers for result in results]
    names = dict.fromkeys(name for own in numbers for name in own or ())
    return [
        [name, *("not run" if own is None else _cell(own[name]) if name in own else "N/A" for own in numbers)]
        for name in names
    ]


def _head(run: RunRecord) -> str:
    return f"seed {run.labels.seed}"


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figure(run: RunRecord, label: str) -> str | None:
    """The figure of a result as a data URL; None where there is none, it is large, or it lies outside the run."""
    path = run.path / Measurement.folder / f"{label}.png"
    try:
        own = fits_file(label) and path.resolve().is_relative_to(run.path.resolve()) and path.is_file()
        if not own or path.stat().st_size > LARGEST:
            return None
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    except (OSError, RuntimeError):  # not readable, or links that lead to each other
        return None


def _remarks(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Files that could not be read, and every remark on attacks once, with the results that it concerns."""
    concerned: dict[str, list[str]] = {}
    for run in runs:
        yield from (f"{run.name}: {note}" for note in run.notes)
        remarks = [(record.label, record.notes) for record in run.attacks]
        remarks += [(record.label, record.conditions.notes) for record in run.reconstructions]
        remarks += [(result.label, result.notes) for result in run.measurements]
        for label, notes in remarks:
            for note in notes:
                concerned.setdefault(note, []).append(label)
    yield from (f"{note} ({', '.join(dict.fromkeys(labels))})" for note, labels in concerned.items())
