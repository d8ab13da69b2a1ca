"""How the settings of a row of a comparison were chosen: every trial with its settings and its validation accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from app.common.errors import UserError
from app.common.files import write_json
from app.common.reading import read_json

TUNING = ".tuning"
"""Folder of a comparison with the trials of its rows."""


@dataclass(frozen=True)
class Trial:
    """One run of a row with settings of its own, trained like the others and evaluated on the validation split."""

    number: int  # from 0, which is the recipe as it stands
    settings: Mapping[str, Any]  # options that differ from the recipe
    # `complete` after all rounds, `stopped` after some of them because it was among the worse half, else `failed`
    state: Literal["complete", "stopped", "failed"]
    rounds: int  # rounds trained
    accuracy: float  # on the validation split after these rounds, in [0, 1]; NaN where there is none
    seconds: float  # wall-clock seconds of its rounds


@dataclass(frozen=True)
class TunedRow:
    """The trials of a row, and which of them was chosen."""

    dataset: str
    method: str
    defense: str
    seed: int  # of all trials
    asked: Mapping[str, str]  # what was searched in every row, by option, in words that are equal for equal requests
    searched: Mapping[str, str]  # what was searched in this row, by option
    recipe: Mapping[str, Any]  # values of these options without tuning
    trials: tuple[Trial, ...]  # by number
    chosen: int  # number of the trial whose settings the row's runs have

    @property
    def completed(self) -> int:
        """Trials that have a result, those that were stopped included."""
        return sum(trial.state != "failed" for trial in self.trials)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The chosen options; empty where the recipe was best."""
        return self.trials[self.chosen].settings

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all trials, one after the other."""
        return sum(trial.seconds for trial in self.trials)

    def gain(self) -> float:
        """Validation accuracy of the chosen trial minus that of the recipe; NaN where one of them has none."""
        return self.trials[self.chosen].accuracy - self.trials[0].accuracy


def best(trials: Iterable[Trial]) -> int:
    """Number of the complete trial with the highest validation accuracy, of equal ones the first; 0 for none."""
    complete = [trial for trial in trials if trial.state == "complete" and not math.isnan(trial.accuracy)]
    return max(complete, key=lambda trial: (trial.accuracy, -trial.number)).number if complete else 0


def write_tuned(path: Path, row: TunedRow, **also: Any) -> None:
    """Write the record of a row, with further parts that `read_tuned` leaves out."""
    write_json(path, {**asdict(row), **also})


def read_tuned(path: Path) -> TunedRow:
    """The record of a row.

    Raises:
        UserError: where it cannot be read.
    """
    try:
        record = read_json(path)
        trials = tuple(_trial(trial) for trial in record["trials"])
        row = TunedRow(**{name: record[name] for name in TunedRow.__dataclass_fields__} | {"trials": trials})
        row.trials[row.chosen]
        return row
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        cause = f"{path} cannot be read: {error}"
        raise UserError.of(cause, "it is unknown which settings were chosen", "delete it to conclude again") from error


def _trial(record: Mapping[str, Any]) -> Trial:
    accuracy = record["accuracy"]
    return Trial(**{**record, "accuracy": math.nan if accuracy is None else float(accuracy)})


def tuned_rows(comparison: Path) -> tuple[TunedRow, ...]:
    """The rows of a comparison that were tuned; records that cannot be read are left out."""
    found = []
    for path in sorted((comparison / TUNING).glob("*.json")):
        try:
            found.append(read_tuned(path))
        except UserError:
            continue
    return tuple(found)
