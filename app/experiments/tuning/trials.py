"""What a trial has come to, from the files of its run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.results.run.tuned import Trial

ACCURACY = ("clients/received_common/mean", "server/accuracy")
"""Metrics that settings are chosen by, the first that there is: the accuracy that the report compares rows by."""


def read_trial(run: Path, rounds: int | None = None) -> Trial:
    """The end of a trial, without its number and settings.

    Args:
        run: its folder.
        rounds: look at so many rounds only; None for all.
    """
    metrics = [each for each in _lines(run / "metrics.jsonl") if rounds is None or each["round"] <= rounds]
    costs = [each for each in _lines(run / "cost.jsonl") if rounds is None or each["round"] <= rounds]
    measured = [value for each in metrics if (value := _accuracy(each)) is not None]
    return Trial(
        number=0,
        settings={},
        state="complete",
        rounds=len(metrics),
        accuracy=measured[-1] if measured else math.nan,
        seconds=sum(each.get("seconds/total") or 0.0 for each in costs),
    )


def _accuracy(metrics: Mapping[str, Any]) -> float | None:
    return next((float(metrics[name]) for name in ACCURACY if metrics.get(name) is not None), None)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file; a line that a killed process has cut short is left out."""
    records = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records
