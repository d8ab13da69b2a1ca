"""The folder of a comparison: its runs, their logs, `comparison.json`, and who is at work there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from app.errors import Problem, UserError
from app.experiments.matrix import Combination, PlannedRun, baseline_of
from app.experiments.parsed import ParsedRun
from app.experiments.spec import ComparisonSpec
from app.renamed import current
from app.results.run.folder import cannot_write, finite, write_text
from app.results.run.store import COMPARISON


class State(Enum):
    """How far a run has come."""

    NEW = "to be run"
    PARTLY = "to be resumed"
    FINISHED = "finished"


@dataclass(frozen=True)
class ComparisonFolder:
    """Where the runs of a comparison lie.

    Attributes:
        path: the folder.
    """

    path: Path

    def run(self, name: str) -> Path:
        """Folder of a run."""
        return self.path / name

    def log(self, name: str) -> Path:
        """File with everything that a run printed."""
        return self.path / ".logs" / f"{name}.log"

    def run_lock(self, name: str) -> Path:
        """File that the process of a run keeps locked."""
        return self.path / ".logs" / f"{name}.lock"

    def state(self, name: str) -> State:
        """How far a run has come."""
        if (self.run(name) / "summary.json").is_file():
            return State.FINISHED
        return State.PARTLY if (self.run(name) / "config.yaml").is_file() else State.NEW

    def claim(self) -> None:
        """Make the folder, or say why it cannot be one of a comparison.

        Raises:
            UserError: where it is a single run, or cannot be written.
        """
        if (self.path / "config.yaml").is_file() or self.path.is_file():
            raise UserError.of(
                f"{self.path} is not the folder of a comparison",
                "its files would be mixed with the runs of the comparison",
                "choose another --name or --root",
            )
        try:
            (self.path / ".logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from working on the same comparison; the system frees the lock however this process ends.

        Raises:
            UserError: where another process is at work.
        """
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise UserError.of(
                    f"another `rampart compare` (process {file.read().strip() or 'unknown'}) works on {self.path}",
                    "every run would be made twice, in one folder",
                    "wait for it or stop it, or choose another --name",
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def problems(self, cells: Sequence[PlannedRun], parsed: Mapping[Combination, ParsedRun]) -> Iterator[Problem]:
        """Runs that are there, but with other settings than the comparison now asks for."""
        before = {cell["run"]: cell for cell in self._told().get("cells", [])}
        for cell in cells:
            if self.state(cell.name) is State.NEW:
                continue
            stored = before.get(cell.name, {}).get("arguments")
            changed = parsed[cell.combination].differs_in(self._config(cell.name))
            if not changed and (stored is None or stored == list(cell.arguments)):
                continue
            what = f" ({', '.join(changed)} differ)" if changed else f" ({_difference(stored, cell.arguments)})"
            yield Problem(
                f"{self.run(cell.name)} was made with other settings than the comparison now asks for{what}",
                "the table would mix two experiments",
                f"delete {self.run(cell.name)} to run it again, take the change back, or choose another --name",
            )

    def left_over(self, cells: Sequence[PlannedRun]) -> list[str]:
        """Runs of an earlier version of the comparison that this one no longer asks for."""
        names = {cell.name for cell in cells}
        earlier = [cell["run"] for cell in self._told().get("cells", [])]
        return [name for name in earlier if name not in names and self.state(name) is not State.NEW]

    def write(self, spec: ComparisonSpec, cells: tuple[PlannedRun, ...]) -> None:
        """Write `comparison.json`; runs of an earlier version keep their places in it as long as they are there."""
        kept = set(self.left_over(cells))
        earlier = [cell for cell in self._told().get("cells", []) if cell["run"] in kept]
        method, defense = baseline_of(spec, cells)
        record = {
            "name": spec.name,
            "purpose": spec.purpose,
            "scale": spec.scale,
            "baseline": {"method": method, "defense": defense},
            "cells": [_record(cell) for cell in cells] + earlier,
            "published": list(spec.published),
        }
        try:
            write_text(self.path / COMPARISON, json.dumps(finite(record), indent=2, default=str) + "\n")
        except OSError as error:
            raise cannot_write(self.path / COMPARISON, error) from error

    def rounds_done(self, name: str) -> int:
        """Rounds that a run has recorded."""
        try:
            return (self.run(name) / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def saved_workers(self, name: str) -> int | None:
        """Worker threads that a run was begun with, None where that was left to the program."""
        workers = (self._config(name).get("model") or {}).get("workers")
        return workers if isinstance(workers, int) else None

    def _config(self, name: str) -> Mapping[str, Any]:
        """Configuration of a run; empty where it cannot be read."""
        try:
            config = current(yaml.safe_load((self.run(name) / "config.yaml").read_text()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}
        return config if isinstance(config, Mapping) else {}

    def _told(self) -> dict[str, Any]:
        """What `comparison.json` holds; empty where there is none."""
        try:
            told = json.loads((self.path / COMPARISON).read_text())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}


def _record(cell: PlannedRun) -> dict[str, Any]:
    return {"run": cell.name, **asdict(cell.labels), "arguments": list(cell.arguments)}


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Arguments that came or went, in words."""
    gone = [part for part in before if part not in now]
    new = [part for part in now if part not in before]
    parts = [f"no longer {' '.join(gone)}"] * bool(gone) + [f"now {' '.join(new)}"] * bool(new)
    return ", ".join(parts) or "the same options in another order"
