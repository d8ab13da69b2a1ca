"""What attacks found in a run, as pictures need it: the strongest one, and how it went over the rounds."""

from __future__ import annotations

from app.metrics.leakage import Leakage
from app.results.attack_headline import Headline, headlines
from app.results.store import RunRecord

TARGETS = {"uploads": "what single clients send", "global": "the released model"}
"""What is attacked, in words."""


def headline(run: RunRecord, kind: str) -> Headline | None:
    """The strongest result on one kind of target, `uploads` or `global`; None where no number was measured."""
    return next((one for one in headlines(run.attacks) if one.kind == kind), None)


def auc_by_round(run: RunRecord, kind: str) -> dict[int, float]:
    """Largest AUC of the audits after every attacked round, counted from 1; the end of the run included.

    Args:
        run: a finished run.
        kind: of the target: `uploads` or `global`.
    """
    last = int(run.final.get("round", len(run.rounds)))
    found: dict[int, float] = {}
    for record in run.attacks:
        target, _, when = record.conditions.target.partition("@")
        if target == kind and record.conditions.protocol == "audit" and isinstance(record.leakage, Leakage):
            round_ = int(when) if when.isdecimal() else last
            found[round_] = max(found.get(round_, 0.0), record.leakage.auc.value)
    return dict(sorted(found.items()))
