"""Columns of attacks: the strongest one on every kind of target, reconstruction, and every attack by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from app.metrics.intervals import Interval
from app.metrics.leakage import Leakage, TprAtFpr
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.results.attacks.headline import headline_rank, target_kind
from app.results.attacks.membership_files import AttackRecord, tpr_at
from app.results.attacks.reconstruction_files import ReconstructionRecord
from app.results.comparison.rows import NOT_RUN, Column, RowRuns, SeedValues, absent
from app.results.comparison.table import Measure
from app.results.run.store import RunRecord

TARGETS = ((0.01, "1"), (0.001, "01"))
"""False positive rates of the headline, and how keys name them."""

KINDS = {"global": "the released model", "uploads": "what clients upload"}
"""Kinds of targets in words."""

ADAPTIVE = "adaptive"
"""Mark of an attacker who knows the defense."""

Pick = Callable[[RowRuns], str | NotAvailable]
Measured = Callable[[Leakage], tuple[float, Interval | NotAvailable] | NotAvailable]


def leakage_columns(cells: Sequence[RowRuns]) -> tuple[Column, ...]:
    """All columns of attacks that were run on some cell; headlines first."""
    records = [record for cell in cells for run in cell.runs for record in run.attacks]
    kinds = sorted({target_kind(record) for record in records})
    rebuilt = sorted({record.label for cell in cells for run in cell.runs for record in run.reconstructions})
    columns = [column for kind in kinds for column in _headline_columns(kind)]
    columns += [_share_column("recovered_share", "recovered", lambda cell: _most_recovered(cell, rebuilt))]
    columns += [_attack_column(label) for label in sorted({record.label for record in records})]
    if len(rebuilt) > 1:
        columns += [_share_column(f"recovered:{label}", label, _always(label)) for label in rebuilt]
    return tuple(columns)


def headline_label(cell: RowRuns, kind: str) -> str | NotAvailable:
    """The strongest attack on one kind of target: that of the largest mean AUC over the seeds.

    Choosing the largest of every seed instead would take the luckiest attack of each and call their mean an attack.
    Attacks that gave a number for fewer seeds than others do not compete.

    Args:
        cell: the runs.
        kind: `global` or `uploads`.
    """
    records = [record for run in cell.runs for record in run.attacks if target_kind(record) == kind]
    measured = [record for record in records if isinstance(record.leakage, Leakage)]
    if not measured:
        return _reason(records)
    rank = min(map(headline_rank, measured))
    areas: dict[str, list[float]] = {}
    for record in measured:
        if headline_rank(record) == rank and isinstance(record.leakage, Leakage):
            areas.setdefault(record.label, []).append(record.leakage.auc.value)
    most = max(map(len, areas.values()))
    return min((label for label in areas if len(areas[label]) == most), key=lambda label: (-fmean(areas[label]), label))


def record_of(run: RunRecord, label: str) -> AttackRecord | None:
    """A run's result of that label; None where there is none."""
    return next((record for record in run.attacks if record.label == label), None)


def _headline_columns(kind: str) -> tuple[Column, ...]:
    where = KINDS.get(kind, kind)
    area = f"area under the ROC curve of the strongest attack on {where}, 0 to 1; 0.5 is chance"
    strongest: Pick = lambda cell: headline_label(cell, kind)  # noqa: E731
    return (
        _column(Measure(f"{kind}_auc", f"AUC {kind}", area, "leakage", "", 1.0, 3, True), strongest, _auc, True),
        *(_rate_column(kind, target, name, strongest) for target, name in TARGETS),
    )


def _rate_column(kind: str, target: float, name: str, strongest: Pick) -> Column:
    where, rate = KINDS.get(kind, kind), f"{100 * target:g} %"
    meaning = f"share of members that the strongest attack on {where} finds at {rate} false alarms, 0 to 100 %"
    measure = Measure(f"{kind}_tpr{name}", f"TPR@{rate} {kind}", meaning, "leakage", "%", 100, 2, True)
    return _column(measure, strongest, lambda leakage: _rate(leakage, target), False)


def _attack_column(label: str) -> Column:
    meaning = f"area under the ROC curve of {label}, 0 to 1; 0.5 is chance"
    return _column(Measure(f"auc:{label}", label, meaning, "leakage", "", 1.0, 3, True), _always(label), _auc, False)


def _column(measure: Measure, pick: Pick, measured: Measured, headline: bool) -> Column:
    """A number of one result per cell.

    Args:
        measure: what is shown.
        pick: label of the result.
        measured: the number and its interval.
        headline: whether the attack is named beside the number, and its scores may be compared.
    """

    def series(cell: RowRuns) -> SeedValues | NotAvailable:
        label = pick(cell)
        return label if isinstance(label, NotAvailable) else _series(cell, label, measured, headline)

    return Column(measure, series)


def _series(cell: RowRuns, label: str, measured: Measured, headline: bool) -> SeedValues | NotAvailable:
    records = {run.labels.seed: record for run in cell.runs if (record := record_of(run, label)) is not None}
    found = {seed: measured(record.leakage) for seed, record in records.items() if isinstance(record.leakage, Leakage)}
    present = {seed: each for seed, each in found.items() if not isinstance(each, NotAvailable)}
    if not present:
        reasons = [each for each in found.values() if isinstance(each, NotAvailable)]
        return reasons[0] if reasons else _reason(records.values())
    shown = records[next(iter(present))].conditions
    adaptive = (ADAPTIVE,) if shown.adaptation else ()
    name = label.removesuffix(f".{shown.read_target}")
    return SeedValues(
        {seed: value for seed, (value, _) in present.items()},
        _only([interval for _, interval in present.values()]),
        (name, *adaptive) if headline else (),
        label if headline else "",
        absent(cell, present) if headline else (),
    )


def _only(intervals: Sequence[Interval | NotAvailable]) -> Interval | None:
    """The interval of a single run."""
    return intervals[0] if len(intervals) == 1 and isinstance(intervals[0], Interval) else None


def _auc(leakage: Leakage) -> tuple[float, Interval | NotAvailable]:
    return leakage.auc.value, leakage.auc.interval


def _rate(leakage: Leakage, target: float) -> tuple[float, Interval] | NotAvailable:
    found = tpr_at(leakage, target)
    if isinstance(found, TprAtFpr):
        return found.decision.tpr, found.tpr_at_target
    refused = [each for each in leakage.tpr if isinstance(each, NotAvailable)]
    told = [each for each in refused if f"TPR at {target:.3g} FPR" in each.reason]
    return told[0] if told else NotAvailable(f"the TPR at {100 * target:g} % FPR was not measured")


def _share_column(key: str, title: str, pick: Pick) -> Column:
    meaning = (
        "share of the attacked images that a reconstruction shows (Pearson correlation of 0.98 or more), 0 to 100 %"
    )
    measure = Measure(key, title, meaning, "leakage", "%", 100, 1, True)

    def series(cell: RowRuns) -> SeedValues | NotAvailable:
        label = pick(cell)
        return label if isinstance(label, NotAvailable) else _shares(cell, label)

    return Column(measure, series)


def _most_recovered(cell: RowRuns, labels: Sequence[str]) -> str | NotAvailable:
    """The reconstruction with the largest mean share over the seeds."""
    found = {label: shares for label in labels if isinstance(shares := _shares(cell, label), SeedValues)}
    if not found:
        return _missing_share([record for run in cell.runs for record in run.reconstructions])
    return max(found, key=lambda label: (len(found[label].by_seed), fmean(found[label].by_seed.values())))


def _shares(cell: RowRuns, label: str) -> SeedValues | NotAvailable:
    records = {run.labels.seed: record for run in cell.runs for record in run.reconstructions if record.label == label}
    results = {seed: record.result for seed, record in records.items()}
    found = {seed: result.oracle for seed, result in results.items() if isinstance(result, Reconstruction)}
    if not found:
        return _missing_share(records.values())
    return SeedValues(
        {seed: oracle.recovered_share.value for seed, oracle in found.items()},
        _only([oracle.recovered_share.interval for oracle in found.values()]),
        (label,),
        notes=absent(cell, found),
        images=(sum(oracle.recovered for oracle in found.values()), sum(oracle.of for oracle in found.values())),
    )


def _missing_share(records: Iterable[ReconstructionRecord]) -> NotAvailable:
    reasons = [record.result.reason for record in records if isinstance(record.result, NotAvailable)]
    return NotAvailable("; ".join(dict.fromkeys(reasons))) if reasons else NOT_RUN


def _reason(records: Iterable[AttackRecord]) -> NotAvailable:
    """Why results have no number: what hides the view before what broke down."""
    missing = [record for record in records if isinstance(record.leakage, NotAvailable)]
    if not missing:
        return NOT_RUN
    told = [record for record in missing if not record.failed] or missing
    reasons = [record.leakage.reason for record in told if isinstance(record.leakage, NotAvailable)]
    return NotAvailable("; ".join(dict.fromkeys(reasons)))


def _always(label: str) -> Pick:
    return lambda cell: label
