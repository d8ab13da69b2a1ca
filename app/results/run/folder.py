"""The folder of a run: its files, and whether a run may write to it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from app.common.errors import UserError
from app.common.files import (
    LIST,
    append_text,
    cannot_write,
    cell_text,
    csv_text,
    finite,
    hold_lock,
    private_folder,
    write_json,
    write_text,
)
from app.common.ranges import Count
from app.common.reading import read_json, read_text, read_yaml, refuse_links
from app.common.renamed import current
from app.results.run.ledger import LEDGER
from app.results.run.manifest import delete_run, delete_temporary, start_list
from app.results.run.naming import named_folder

NAME_VARIABLE = "RAMPART_RUN_NAME"
"""Tells the processes that Lightning starts for further devices which folder the first one chose."""

LOCK = ".lock"
"""File that the process which writes to a run's folder keeps locked."""

_held: dict[Path, IO[str]] = {}
"""Locks of this process, by folder."""


@dataclass(frozen=True)
class RunSettings:
    """Where a run is kept.

    Attributes:
        root: folder that holds all runs.
        name: name of the run's folder, such as mine or exp/mine; an unfinished run of that name is resumed. Without a
            name, a new folder is made.
        overwrite: start afresh although a run of that name exists; the files it wrote are deleted, others are kept.
        figures: draw figures as PNG files; without them, a report still draws its own, as it does of a comparison's
            runs.
        until: stop after so many rounds as if interrupted; without it, the same command goes on to the last round.
    """

    root: str = "runs"
    name: str | None = None
    overwrite: bool = False
    figures: bool = True
    until: Count | None = None


class RunFolder:
    """Paths and files of one run.

    `config.yaml` (complete, replayable), `metrics.jsonl` (one line per round), `clients.csv` (one line per round and
    client), `cost.jsonl` (seconds and bytes per round), `cost.json`, `summary.json` (written last: the run is
    finished), `progress.log` (what is being done, line by line), `plan.json`, `ledger.jsonl` (what costs privacy
    budget, before it is released), `partition.csv`, figures, `checkpoints/`, `transcript/`, `attacks/`. Only the user
    may open them. A folder is data from anywhere: no link in it is followed, and one process at a time writes to it
    (`.lock`).
    """

    def __init__(self, path: Path, figures: bool = True, until: int | None = None) -> None:
        self.path, self.figures, self.until = path, figures, until

    @classmethod
    def choose(cls, settings: RunSettings, stem: str) -> RunFolder:
        """The folder the settings ask for; an unnamed run gets `stem` and the time as its name.

        Raises:
            UserError: where the name leads out of the root or no folder can have it; in a further process that was not
                started by the first one, where the run has no name.
        """
        new = f"{stem}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')[:-3]}"
        name = (new if _first_process() else os.environ.get(NAME_VARIABLE)) if settings.name is None else settings.name
        if name is None:
            raise UserError.of(
                "this process is one of several that were started apart, and the run has no name",
                "every process would write into a folder of its own",
                "pass the same --run.name to all processes",
            )
        path = named_folder(settings.root, name)
        os.environ[NAME_VARIABLE] = name
        return cls(path, settings.figures, settings.until)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    @property
    def name(self) -> str:
        return self.path.name

    def cache(self) -> Path:
        """Folder beside the run in which shadow models are kept for all runs there; refused where it is a link."""
        cache = self.path.parent / ".cache"
        for folder in (cache, cache / "shadows"):
            if folder.is_symlink():
                raise UserError.of(
                    f"{folder} is a link to {folder.readlink()}",
                    "files there would be read and written by attacks",
                    "delete the link, or keep the runs there: --run.root",
                )
        return cache

    def claim(self, config: Mapping[str, Any], overwrite: bool) -> None:
        """Take the folder for a run with this configuration until `release`, or say why that is not possible."""
        try:
            if (self.path / LIST).is_file():
                self.lock()  # first, since another process may be deleting the run
            if self.path.exists():
                self._refuse_foreign()
            private_folder(self.path)
            self.lock()
            refuse_links(self.path)
            self.cache()
            start_list(self.path)
            delete_temporary(self.path)
            kept = [name for name in delete_run(self.path) if name != LOCK] if overwrite else []
        except OSError as error:
            raise cannot_write(Path(error.filename or self.path), error) from error
        if self.finished and _rounds(config) <= _rounds(self._saved_config()):
            raise UserError.of(
                f"the run {self.path} is finished",
                "starting it again would overwrite its results",
                "choose another --run.name, give it more rounds (--trainer.max_epochs), or pass --run.overwrite true",
            )
        self._refuse_other_config(config)
        try:
            (self.path / "summary.json").unlink(missing_ok=True)
            write_text(self.path / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if kept:
            rank_zero_warn(f"{self.path} also holds what no run has written; it is kept: {', '.join(kept)}")

    def lock(self) -> None:
        """Keep other processes from writing to the folder; nothing happens where this process does already.

        Raises:
            UserError: where another process is writing.
        """
        place = self.path.resolve()
        if (file := _held.get(place)) is not None and _is_at(file, self.path / LOCK):
            return
        try:
            _held[place] = hold_lock(self.path / LOCK)
        except BlockingIOError as error:
            raise UserError.of(
                f"another process ({error.strerror}) is writing to {self.path}",
                "rounds and results of both would be mixed in one folder",
                "wait for it or stop it, or choose another --run.name",
            ) from error
        except OSError as error:
            raise cannot_write(self.path / LOCK, error) from error

    def release(self) -> None:
        """Let other processes write to the folder."""
        if (file := _held.pop(self.path.resolve(), None)) is not None:
            file.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the folder in this context; see `lock`."""
        held = self.path.resolve() in _held
        self.lock()
        try:
            yield
        finally:
            if not held:
                self.release()

    def _refuse_foreign(self) -> None:
        own = {LOCK, LIST}  # a process that was killed at once leaves no more
        if not self.path.is_dir() or ({each.name for each in self.path.iterdir()} - own and not self._holds_run()):
            raise UserError.of(
                f"{self.path} is not a run of this program",
                "its files would be mixed with those of the run",
                "choose another --run.name or --run.root",
            )

    def _holds_run(self) -> bool:
        try:
            config = read_yaml(self.path / "config.yaml")
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return False
        return isinstance(config, Mapping) and {"trainer", "model", "data", "tracking"} <= set(config)

    def _saved_config(self) -> Mapping[str, Any]:
        """The configuration the run was started with; empty where it cannot be read."""
        try:
            return current(read_yaml(self.path / "config.yaml")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}

    def _refuse_other_config(self, config: Mapping[str, Any]) -> None:
        saved, before = self.path / "config.yaml", self._saved_config()
        if not before:
            return
        parts = ("seed_everything", "model", "data", "defenses", "attacks", "defense_order")
        changed = [part for part in parts if _comparable(part, before) != _comparable(part, config)]
        if _precision(before) != _precision(config):
            changed.append("trainer.precision")
        resumable = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        if changed and (resumable or (self.path / LEDGER).is_file()):
            raise UserError.of(
                f"{self.path} holds a run with another configuration ({', '.join(changed)} differ)",
                "resuming it would mix two experiments",
                f"repeat it with --config {saved}, choose another --run.name, or pass --run.overwrite true",
            )

    def forget_after(self, round_: int) -> None:
        """Drop what was recorded after `round_` rounds: a resumed run records those rounds again."""
        for name in ("metrics.jsonl", "cost.jsonl"):
            path = self.path / name
            if path.is_file():
                lines = [line for line in read_text(path).splitlines() if _round_of(line) <= round_]
                write_text(path, "".join(line + "\n" for line in lines))
        path = self.path / "clients.csv"
        if path.is_file():
            header, *rows = list(csv.reader(io.StringIO(read_text(path), newline=""))) or [[]]
            # a row cut short by a crash may show another round than its own
            whole = [row for row in rows if len(row) == len(header) and int(row[0]) <= round_]
            texts = [[cell_text(cell) for cell in row] for row in (header, *whole)]
            write_text(path, csv_text(texts if whole else []))

    def forget_metrics(self, forgotten: Callable[[int, str], bool]) -> None:
        """Drop metrics by round (from 1) and name: those that a shorter run measured at its end."""
        records = self.read_lines("metrics.jsonl")
        kept = [
            {name: value for name, value in record.items() if not forgotten(int(record["round"]), name)}
            for record in records
        ]
        if kept != records:
            write_text(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def append_json(self, name: str, record: Mapping[str, Any]) -> None:
        append_text(self.path / name, json.dumps(finite(record)) + "\n")

    def append_rows(self, name: str, header: list[str], rows: Iterable[list[Any]]) -> None:
        """Add rows to a CSV file, with a header where the file is new."""
        path = self.path / name
        new = not path.exists() or path.stat().st_size == 0
        append_text(path, csv_text([*([header] if new else []), *rows]))

    def withheld(self) -> list[str]:
        """Metrics that trackers must not get, as `plan.json` says; none where there is no such file."""
        path = self.path / "plan.json"
        try:
            return list(read_json(path).get("withheld", [])) if path.is_file() else []
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise UserError.of(
                f"{path} cannot be read: {error}",
                "it is unknown which metrics must not be tracked",
                "take it from a copy, or set `tracking: disabled` in the run's config.yaml",
            ) from error

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        write_json(self.path / name, record)

    def update_summary(self, part: str, record: Mapping[str, Any]) -> None:
        """Replace one part of the summary of a finished run; a run that goes on writes its summary at its end."""
        if self.finished:
            summary = read_json(self.path / "summary.json")
            self.write_json("summary.json", {**summary, part: dict(record)})

    def read_lines(self, name: str, last: float = math.inf) -> list[dict[str, Any]]:
        """Records of a JSON-lines file up to a round; none where there is no file."""
        path = self.path / name
        lines = read_text(path).splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if _round_of(line) <= last]


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at a path: a deleted folder may have been made again."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _round_of(line: str) -> float:
    try:
        return float(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a crash
        return math.inf


def _comparable(part: str, config: Mapping[str, Any]) -> str:
    """Text that is equal for equal settings; defenses and attacks act in their order, so it counts."""
    value = config.get(part)
    if part in ("defenses", "attacks"):
        value = list((value or {}).items())
    return json.dumps(value, sort_keys=True, default=str)


def _rounds(config: Mapping[str, Any]) -> float:
    """Rounds that a configuration asks for; a run without an end has infinitely many."""
    planned = (config.get("trainer") or {}).get("max_epochs")
    return math.inf if planned is None or planned < 0 else float(planned)


def _precision(config: Mapping[str, Any]) -> str:
    return str((config.get("trainer") or {}).get("precision"))


def _first_process() -> bool:
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    return rank == 0 and os.environ.get("NODE_RANK", "0") == "0"
