"""The folder of a comparison: its runs, their jobs and logs, and `comparison.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from app.common.errors import Problem, UserError
from app.common.files import cannot_write, finite, write_text
from app.common.progress import PROGRESS_LOG, TIME_WIDTH
from app.common.reading import read_json, read_yaml, refuse_links
from app.common.renamed import current
from app.experiments.engines.processes import MODULE, Job, last_lines
from app.experiments.matrix import Combination, PlannedRun, baseline_of
from app.experiments.parsing import ParsedRun
from app.experiments.spec import ComparisonSpec, Tune
from app.results.run.store import COMPARISON

FIT = (*MODULE, "app.cli", "fit")
"""`rampart fit`."""


class State(Enum):
    """Progress of a run."""

    NEW = "to be run"
    PARTLY = "to be resumed"
    FINISHED = "finished"


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder that holds the runs of a comparison."""

    path: Path

    def run(self, name: str) -> Path:
        return self.path / name

    def log(self, name: str) -> Path:
        """File with the output of a run."""
        return self.path / ".logs" / f"{name}.log"

    def run_lock(self, name: str) -> Path:
        """File that the process of a run keeps locked."""
        return self.path / ".logs" / f"{name}.lock"

    def state(self, name: str) -> State:
        if (self.run(name) / "summary.json").is_file():
            return State.FINISHED
        return State.PARTLY if (self.run(name) / "config.yaml").is_file() else State.NEW

    def claim(self) -> None:
        """Make the folder; refused where it is a single run, or cannot be written."""
        try:
            if (self.path / "config.yaml").is_file() or self.path.is_file():
                raise UserError.of(
                    f"{self.path} is not the folder of a comparison",
                    "its files would be mixed with the runs of the comparison",
                    "choose another --name or --root",
                )
            (self.path / ".logs").mkdir(parents=True, exist_ok=True)
            refuse_links(self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def job(self, planned: PlannedRun, parsed: ParsedRun, group: str) -> Job:
        """The job of a planned run; trackers group runs by `group`, the name of the comparison."""
        name, begun = planned.name, self.state(planned.name) is State.PARTLY
        bar = "--trainer.enable_progress_bar"
        quiet = () if bar in planned.arguments else (bar, "false")
        tracked = parsed.config.get("tracking") != "disabled"
        figures = () if tracked else ("--run.figures", "false")  # the report draws its own
        place = ("--run.root", str(self.path), "--run.name", name, *figures, "--group", group)
        return Job(
            name=name,
            combination=planned.combination,
            command=(*FIT, *planned.arguments, *quiet, *place),
            log=self.log(name),
            lock=self.run_lock(name),
            summary=self.run(name) / "summary.json",
            rounds=parsed.rounds,
            begun=begun,
            workers=_workers(parsed.config) or (_workers(self.config(name)) if begun else None),
            home=Path.cwd(),
        )

    def problems(self, runs: Sequence[PlannedRun], parsed: Mapping[Combination, ParsedRun]) -> Iterator[Problem]:
        """Existing runs with other settings than the comparison now asks for."""
        recorded = {record["run"]: record for record in self._recorded_runs()}
        for planned in runs:
            if self.state(planned.name) is State.NEW:
                continue
            before = recorded.get(planned.name, {}).get("arguments", list(planned.arguments))
            changed = parsed[planned.combination].differs_in(self.config(planned.name))
            if not changed and before == list(planned.arguments):
                continue
            difference = f"{', '.join(changed)} differ" if changed else _difference(before, planned.arguments)
            folder = self.run(planned.name)
            yield Problem(
                f"{folder} was made with other settings than the comparison now asks for ({difference})",
                "the table would mix two experiments",
                f"delete {folder} to run it again, take the change back, or choose another --name",
            )

    def left_over(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Existing runs of an earlier version of the comparison that this one no longer asks for."""
        names = {planned.name for planned in runs}
        earlier = [record["run"] for record in self._recorded_runs()]
        return [name for name in earlier if name not in names and self.state(name) is not State.NEW]

    def holds(self, spec: ComparisonSpec, runs: tuple[PlannedRun, ...]) -> bool:
        """Whether `comparison.json` is what `write` would write."""
        try:
            return bool(read_json(self.path / COMPARISON) == json.loads(self._record(spec, runs)))
        except (OSError, ValueError):
            return False

    def write(self, spec: ComparisonSpec, runs: tuple[PlannedRun, ...]) -> None:
        """Write `comparison.json`; existing runs of an earlier version keep their entries."""
        try:
            write_text(self.path / COMPARISON, self._record(spec, runs))
        except OSError as error:
            raise cannot_write(self.path / COMPARISON, error) from error

    def _record(self, spec: ComparisonSpec, runs: tuple[PlannedRun, ...]) -> str:
        kept = set(self.left_over(runs))
        earlier = [record for record in self._recorded_runs() if record["run"] in kept]
        method, defense = baseline_of(spec, runs)
        records = [
            {"run": planned.name, **asdict(planned.labels), "arguments": list(planned.arguments)} for planned in runs
        ]
        record = {
            "name": spec.name,
            "purpose": spec.purpose,
            "scale": spec.scale,
            "baseline": {"method": method, "defense": defense},
            "cells": records + earlier,
            "published": list(spec.published),
            **({} if spec.tune is None else {"tune": _plain(spec.tune)}),
        }
        return json.dumps(finite(record), indent=2, default=str) + "\n"

    def rounds_done(self, name: str) -> int:
        """Rounds that a run has recorded."""
        try:
            return (self.run(name) / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def last_progress(self, name: str) -> str:
        """What a run that has trained all its rounds does now, by the last line of its log; empty where unknown."""
        lines = last_lines(self.run(name) / PROGRESS_LOG, 1)
        text = lines[0][TIME_WIDTH:] if lines else ""
        return "" if text.startswith("round ") else text

    def config(self, name: str) -> Mapping[str, Any]:
        """Saved configuration of a run; empty where it cannot be read."""
        try:
            config = current(read_yaml(self.run(name) / "config.yaml"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}
        return config if isinstance(config, Mapping) else {}

    def _recorded_runs(self) -> list[dict[str, Any]]:
        """Runs in `comparison.json`; none where there is no such file."""
        try:
            record = read_json(self.path / COMPARISON)
        except (OSError, ValueError):
            return []
        return record.get("cells", []) if isinstance(record, dict) else []


def _plain(tune: Tune) -> dict[str, Any]:
    return {**vars(tune), "space": {name: repr(span) for name, span in tune.space.items()}}


def _workers(config: Mapping[str, Any]) -> int | None:
    """Worker threads that a configuration asks for, None where that is left to the program."""
    workers = (config.get("model") or {}).get("workers")
    return workers if isinstance(workers, int) else None


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Arguments that came or went, in words."""
    gone = [part for part in before if part not in now]
    new = [part for part in now if part not in before]
    parts = [f"no longer {' '.join(gone)}"] * bool(gone) + [f"now {' '.join(new)}"] * bool(new)
    return ", ".join(parts) or "the same options in another order"
