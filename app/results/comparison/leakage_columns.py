"""Leakage columns: the strongest attack on every kind of target, reconstruction, and every single attack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from app.metrics.intervals import Interval
from app.metrics.leakage import Leakage, TprAtFpr
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction
from app.results.attacks.headline import headline_rank, target_kind
from app.results.attacks.membership import AttackRecord
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.attacks.wording import tpr_at
from app.results.comparison.rows import NOT_RUN, Column, RowRuns, SeedValues, seeds_without_number
from app.results.comparison.table import Measure
from app.results.run.store import RunRecord

TARGETS = ((0.01, "1"), (0.001, "01"))
"""False positive rates, and their names in keys."""

KINDS = {"global": "the released model", "uploads": "uploads"}
"""Kinds of targets, in words."""

ADAPTIVE = "adaptive"
"""Mark of an attacker who knows the defense."""

Pick = Callable[[RowRuns], str | NotAvailable]
Measured = Callable[[Leakage], tuple[float, Interval | NotAvailable] | NotAvailable]


def leakage_columns(rows: Sequence[RowRuns]) -> tuple[Column, ...]:
    """Columns of all attacks that ran on some row; the strongest ones first."""
    records = [record for row_runs in rows for run in row_runs.runs for record in run.attacks]
    kinds = sorted({target_kind(record) for record in records})
    rebuilt = sorted({record.label for row_runs in rows for run in row_runs.runs for record in run.reconstructions})
    columns = [column for kind in kinds for column in _headline_columns(kind)]
    columns += [
        _share_column("recovered_share", "recovered images", lambda row_runs: _most_recovered(row_runs, rebuilt))
    ]
    columns += [_attack_column(label) for label in sorted({record.label for record in records})]
    if len(rebuilt) > 1:
        columns += [_share_column(f"recovered:{label}", label, _always(label)) for label in rebuilt]
    return tuple(columns)


def headline_label(row_runs: RowRuns, kind: str) -> str | NotAvailable:
    """The strongest attack on one kind of target: that of the largest mean AUC over the seeds.

    Choosing it for every seed would favour the luckiest attack of each. Attacks with a number for fewer seeds than
    others do not compete.

    Args:
        row_runs: the runs.
        kind: `global` or `uploads`.
    """
    records = [record for run in row_runs.runs for record in run.attacks if target_kind(record) == kind]
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
    strongest: Pick = lambda row_runs: headline_label(row_runs, kind)  # noqa: E731
    return (
        _column(Measure(f"{kind}_auc", f"AUC {kind}", area, "leakage", "", 1.0, 3, True), strongest, _auc, True),
        *(_rate_column(kind, target, name, strongest) for target, name in TARGETS),
    )


def _rate_column(kind: str, target: float, name: str, strongest: Pick) -> Column:
    where, rate = KINDS.get(kind, kind), f"{100 * target:g} %"
    meaning = (
        f"share of members that the strongest attack on {where} finds at a false positive rate of {rate}, 0 to 100 %"
    )
    measure = Measure(f"{kind}_tpr{name}", f"TPR@{rate} {kind}", meaning, "leakage", "%", 100, 2, True)
    return _column(measure, strongest, lambda leakage: _rate(leakage, target), False)


def _attack_column(label: str) -> Column:
    meaning = f"area under the ROC curve of {label}, 0 to 1; 0.5 is chance"
    return _column(Measure(f"auc:{label}", label, meaning, "leakage", "", 1.0, 3, True), _always(label), _auc, False)


def _column(measure: Measure, pick: Pick, measured: Measured, headline: bool) -> Column:
    """A number of one attack per row.

    Args:
        measure: what is shown.
        pick: label of the attack.
        measured: the number and its interval.
        headline: whether the attack is named beside the number, and rows may be compared by its scores.
    """

    def read(row_runs: RowRuns) -> SeedValues | NotAvailable:
        label = pick(row_runs)
        return label if isinstance(label, NotAvailable) else _seed_values(row_runs, label, measured, headline)

    return Column(measure, read)


def _seed_values(row_runs: RowRuns, label: str, measured: Measured, headline: bool) -> SeedValues | NotAvailable:
    records = {run.labels.seed: record for run in row_runs.runs if (record := record_of(run, label)) is not None}
    numbers = {
        seed: measured(record.leakage) for seed, record in records.items() if isinstance(record.leakage, Leakage)
    }
    present = {seed: each for seed, each in numbers.items() if not isinstance(each, NotAvailable)}
    if not present:
        reasons = [each for each in numbers.values() if isinstance(each, NotAvailable)]
        return reasons[0] if reasons else _reason(records.values())
    shown = records[next(iter(present))].conditions
    adaptive = (ADAPTIVE,) if shown.adaptation else ()
    name = label.removesuffix(f".{shown.read_target}")
    return SeedValues(
        {seed: value for seed, (value, _) in present.items()},
        _only([interval for _, interval in present.values()]),
        (name, *adaptive) if headline else (),
        label if headline else "",
        seeds_without_number(row_runs, present) if headline else (),
    )


def _only(intervals: Sequence[Interval | NotAvailable]) -> Interval | None:
    """The interval of a single run."""
    return intervals[0] if len(intervals) == 1 and isinstance(intervals[0], Interval) else None


def _auc(leakage: Leakage) -> tuple[float, Interval | NotAvailable]:
    return leakage.auc.value, leakage.auc.interval


def _rate(leakage: Leakage, target: float) -> tuple[float, Interval] | NotAvailable:
    rate = tpr_at(leakage, target)
    if isinstance(rate, TprAtFpr):
        return rate.decision.tpr, rate.tpr_at_target
    missing = [each for each in leakage.tpr if isinstance(each, NotAvailable)]
    reasons = [each for each in missing if f"TPR at {target:.3g} FPR" in each.reason]
    return reasons[0] if reasons else NotAvailable(f"the TPR at {100 * target:g} % FPR was not measured")


def _share_column(key: str, title: str, pick: Pick) -> Column:
    meaning = "share of the attacked images that were reconstructed (Pearson correlation of 0.98 or more), 0 to 100 %"
    measure = Measure(key, title, meaning, "leakage", "%", 100, 1, True)

    def read(row_runs: RowRuns) -> SeedValues | NotAvailable:
        label = pick(row_runs)
        return label if isinstance(label, NotAvailable) else _shares(row_runs, label)

    return Column(measure, read)


def _most_recovered(row_runs: RowRuns, labels: Sequence[str]) -> str | NotAvailable:
    """The reconstruction with the largest mean share over the seeds."""
    measured = {label: shares for label in labels if isinstance(shares := _shares(row_runs, label), SeedValues)}
    if not measured:
        return _missing_share([record for run in row_runs.runs for record in run.reconstructions])
    return max(measured, key=lambda label: (len(measured[label].by_seed), fmean(measured[label].by_seed.values())))


def _shares(row_runs: RowRuns, label: str) -> SeedValues | NotAvailable:
    records = {
        run.labels.seed: record for run in row_runs.runs for record in run.reconstructions if record.label == label
    }
    matches = {seed: each.result.oracle for seed, each in records.items() if isinstance(each.result, Reconstruction)}
    if not matches:
        return _missing_share(records.values())
    return SeedValues(
        {seed: match.recovered_share.value for seed, match in matches.items()},
        _only([match.recovered_share.interval for match in matches.values()]),
        (label,),
        notes=seeds_without_number(row_runs, matches),
        images=(sum(match.recovered for match in matches.values()), sum(match.of for match in matches.values())),
    )


def _missing_share(records: Iterable[ReconstructionRecord]) -> NotAvailable:
    reasons = [record.result.reason for record in records if isinstance(record.result, NotAvailable)]
    return NotAvailable("; ".join(dict.fromkeys(reasons))) if reasons else NOT_RUN


def _reason(records: Iterable[AttackRecord]) -> NotAvailable:
    """Why attacks have no number: hidden views before failures."""
    missing = [record for record in records if isinstance(record.leakage, NotAvailable)]
    if not missing:
        return NOT_RUN
    chosen = [record for record in missing if not record.failed] or missing
    reasons = [record.leakage.reason for record in chosen if isinstance(record.leakage, NotAvailable)]
    return NotAvailable("; ".join(dict.fromkeys(reasons)))


def _always(label: str) -> Pick:
    return lambda row_runs: label
