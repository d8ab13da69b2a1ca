"""What attacks found, as pictures need it: the table's strongest attack in every run, and leakage over the rounds."""

from __future__ import annotations

from app.metrics.leakage import Leakage
from app.results.attack_files import AttackRecord
from app.results.attack_headline import target_kind
from app.results.comparison.cells import Cell
from app.results.comparison.leakage_columns import KINDS, headline_label, record_of
from app.results.store import RunRecord

TARGETS = {kind: KINDS[kind] for kind in ("uploads", "global")}
"""What is attacked, in words."""


def strongest(cell: Cell, kind: str) -> list[tuple[RunRecord, AttackRecord]]:
    """Every run with its result of the attack that the table shows for the row; none where there is no number.

    Args:
        cell: the runs of a row.
        kind: of the target: `uploads` or `global`.
    """
    label = headline_label(cell, kind)
    if not isinstance(label, str):
        return []
    found = [(run, record_of(run, label)) for run in cell.runs]
    return [(run, record) for run, record in found if record is not None and isinstance(record.leakage, Leakage)]


def auc_by_round(run: RunRecord, kind: str) -> dict[int, float]:
    """Largest AUC of the audits after every attacked round, counted from 1; the end of the run included.

    Args:
        run: a finished run.
        kind: of the target: `uploads` or `global`.
    """
    last = int(run.final.get("round", len(run.rounds)))
    found: dict[int, float] = {}
    for record in run.attacks:
        if (
            target_kind(record) == kind
            and record.conditions.protocol == "audit"
            and isinstance(record.leakage, Leakage)
        ):
            when = record.conditions.target.partition("@")[2]
            round_ = int(when) if when.isdecimal() else last
            found[round_] = max(found.get(round_, 0.0), record.leakage.auc.value)
    return dict(sorted(found.items()))
