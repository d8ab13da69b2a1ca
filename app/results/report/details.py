"""What belongs to each row beside its numbers: its runs, its budgets, its channels, its attacks, its remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from app.metrics.leakage import Leakage
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.privacy.statements import ChannelStatement, PrivacyStatement
from app.results.attacks.membership_report import auc_text
from app.results.comparison.table import ComparisonTable, Row
from app.results.report.footnotes import Footnotes
from app.results.report.markup import Html, items, joined, plain_table, tag, text
from app.results.report.threats import ROLES, SHORT
from app.results.run.store import RunRecord, Store


def run_section(store: Store, table: ComparisonTable) -> Html:
    """One part per row that opens on demand."""
    return joined(
        _row(row, runs, place)
        for place, row in enumerate(table.rows)
        if (runs := [run for run in store.runs if _belongs(run, row)])
    )


def remarks_id(place: int) -> str:
    """Id of the remarks on a row.

    Args:
        place: of the row in the table, counted from 0.
    """
    return f"remarks-{place}"


def _belongs(run: RunRecord, row: Row) -> bool:
    labels = run.labels
    return (labels.dataset, labels.method, labels.defense) == (row.dataset, row.method, row.defense)


def _row(row: Row, runs: Sequence[RunRecord], place: int) -> Html:
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    title = tag("summary", tag("span", row.name, class_="name"), f" on {row.dataset}, {count}")
    notes = Footnotes(f"run-{place}")
    parts = (
        _runs(runs),
        _part("Privacy budget", _once(map(_budget, chain.from_iterable(run.budgets for run in runs)))),
        _part("Channel", _once(map(_channel, chain.from_iterable(run.channels for run in runs)))),
        _attacks(runs, notes),
        _reconstructions(runs, notes),
        notes.listed(),
        tag("div", _part("Remarks", _once([*row.notes, *_remarks(runs)])), id=remarks_id(place)),
    )
    return tag("details", title, *parts, class_="run")


def _runs(runs: Sequence[RunRecord]) -> Html:
    head = ("Run", "Seed", "Rounds", "Clients", "Configuration")
    rows = [
        (run.name, run.labels.seed, len(run.rounds), len(run.clients), tag("code", run.path / "config.yaml"))
        for run in runs
    ]
    return plain_table(head, rows, "Runs")


def _part(title: str, entries: Iterable[object]) -> Html:
    listed = items(entries)
    return joined((tag("h4", title), listed)) if listed else Html("")


def _once(entries: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(entries))


def _budget(budget: PrivacyStatement) -> str:
    told = [
        budget.line(),
        f"against {budget.against}",
        f"neighbours: {budget.adjacency}",
        f"sampling: {budget.sampling}",
        f"accountant: {budget.accountant}",
        f"noise {budget.noise:.3g}, clipping norm {budget.clip:.3g}",
        *budget.notes,
    ]
    return "; ".join(told)


def _channel(channel: ChannelStatement) -> str:
    leaks = [f"accepted: {leak}" for leak in channel.accepted]
    return "; ".join([channel.line(), f"relies on: {channel.trusts}", *leaks, *channel.notes])


def _attacks(runs: Sequence[RunRecord], notes: Footnotes) -> Html:
    """AUC of every attack, one column per run."""
    return _by_run(
        "Membership inference: AUC with its 95 % interval over samples; chance is 0.5",
        runs,
        [
            {one.label: (ROLES[one.conditions.adversary].title, _auc(one.leakage, notes)) for one in run.attacks}
            for run in runs
        ],
    )


def _reconstructions(runs: Sequence[RunRecord], notes: Footnotes) -> Html:
    """Images recovered by every attack, one column per run."""
    return _by_run(
        "Reconstruction: images recovered, of all that were attacked",
        runs,
        [
            {
                one.label: (ROLES[SHORT[one.conditions.adversary]].title, _recovered(one.result, notes))
                for one in run.reconstructions
            }
            for run in runs
        ],
    )


def _by_run(caption: str, runs: Sequence[RunRecord], found: Sequence[Mapping[str, tuple[str, Html]]]) -> Html:
    """A table of results by label, with who attacked; nothing where there is no result."""
    adversaries = {label: adversary for results in found for label, (adversary, _) in results.items()}
    if not adversaries:
        return Html("")
    rows = [
        (label, adversary, *(results[label][1] if label in results else "not run" for results in found))
        for label, adversary in adversaries.items()
    ]
    return plain_table(("Attack", "Adversary", *(f"seed {run.labels.seed}" for run in runs)), rows, caption)


def _auc(leakage: Leakage | NotAvailable, notes: Footnotes) -> Html:
    return notes.link(leakage.reason, "N/A") if isinstance(leakage, NotAvailable) else text(auc_text(leakage.auc))


def _recovered(result: Reconstruction | NotAvailable, notes: Footnotes) -> Html:
    if isinstance(result, NotAvailable):
        return notes.link(result.reason, "N/A")
    return text(f"{result.oracle.recovered} of {result.oracle.of}")


def _remarks(runs: Sequence[RunRecord]) -> Iterator[str]:
    """What could not be read, and every remark on results of attacks once, with the results it concerns."""
    concerned: dict[str, list[str]] = {}
    for run in runs:
        yield from (f"{run.name}: {note}" for note in run.notes)
        told = [(one.label, one.notes) for one in run.attacks]
        told += [(one.label, one.conditions.notes) for one in run.reconstructions]
        for label, notes in told:
            for note in notes:
                concerned.setdefault(note, []).append(label)
    yield from (f"{note} ({', '.join(dict.fromkeys(labels))})" for note, labels in concerned.items())
