"""Leakage for figures: the strongest attack of every run, and AUC over rounds."""

from __future__ import annotations

from dataclasses import replace

from app.metrics.leakage import Leakage
from app.results.attacks.headline import target_kind
from app.results.attacks.membership import AttackRecord
from app.results.comparison.leakage_columns import KINDS, headline_label, record_of
from app.results.comparison.rows import RowRuns
from app.results.run.store import RunRecord

TARGETS = {kind: KINDS[kind] for kind in ("uploads", "global")}
"""What is attacked, in words."""


def strongest(row_runs: RowRuns, kind: str) -> list[tuple[RunRecord, AttackRecord]]:
    """Every run with its result of the attack that the table shows for the row; empty where there is no number.

    Args:
        row_runs: the runs of a row.
        kind: of the target: `uploads` or `global`.
    """
    label = headline_label(row_runs, kind)
    if not isinstance(label, str):
        return []
    records = [(run, record_of(run, label)) for run in row_runs.runs]
    return [(run, record) for run, record in records if record is not None and isinstance(record.leakage, Leakage)]


def auc_by_round(row_runs: RowRuns, kind: str) -> list[dict[int, float]]:
    """AUC of every seed after every attacked round, counted from 1; the end of the run included.

    In every round it is that of the attack with the largest mean over the seeds, as in the table.

    Args:
        row_runs: the runs of a row.
        kind: of the target: `uploads` or `global`.
    """
    seeds: list[dict[int, float]] = [{} for _ in row_runs.runs]
    for round_ in sorted({_round(run, record) for run in row_runs.runs for record in _audits(run, kind)}):
        runs = [_only_round(run, kind, round_) for run in row_runs.runs]
        for run, record in strongest(replace(row_runs, runs=tuple(runs)), kind):
            if isinstance(record.leakage, Leakage):
                seeds[runs.index(run)][round_] = record.leakage.auc.value
    return [seed for seed in seeds if seed]


def _audits(run: RunRecord, kind: str) -> list[AttackRecord]:
    return [record for record in run.attacks if target_kind(record) == kind and record.conditions.protocol == "audit"]


def _round(run: RunRecord, record: AttackRecord) -> int:
    """Round after which a target was attacked, counted from 1."""
    when = record.conditions.target.partition("@")[2]
    return int(when) if when.isdecimal() else int(run.final.get("round", len(run.rounds)))


def _only_round(run: RunRecord, kind: str, round_: int) -> RunRecord:
    """The run with the attacks after that round alone."""
    return replace(run, attacks=tuple(record for record in _audits(run, kind) if _round(run, record) == round_))
