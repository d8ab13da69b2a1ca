"""A stand-in for a Weights & Biases run, and a reader of the files that real ones leave offline."""

import json
import os
import struct
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

LISTED = wandb.util.working_set
"""The function of W&B that finds installed packages."""

BLOCK, HEAD = 32768, 7
"""Bytes of a block of the log, and of the head of the file and of every piece of a record."""


class Experiment:
    """Stands in for a W&B run and keeps what it is told."""

    def __init__(self):
        self.axes, self.logged, self.settings, self.results, self.ended = {}, [], {}, {}, None
        self.config = self.summary = self

    def define_metric(self, name, step_metric=None):
        """The x axis of a metric."""
        self.axes[name] = step_metric

    def update(self, values, allow_val_change=None):
        """Configuration (which may change on resume) or summary."""
        (self.results if allow_val_change is None else self.settings).update(values)

    def log(self, values):
        """One step."""
        self.logged.append(values)

    def finish(self, exit_code):
        """The end."""
        self.ended = exit_code


@cache
def installed_packages():
    """What W&B lists in every run."""
    return tuple(LISTED())


@pytest.fixture
def no_wandb_settings(monkeypatch):
    """No variable of W&B is set, and what a test sets is taken back.

    Runs begin sooner: packages are listed once, and what would start jobs on clusters is not loaded.
    """
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(wandb.util, "working_set", installed_packages)
    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "_detect_and_apply_job_inputs", lambda run: None)


@dataclass(frozen=True)
class OfflineRun:
    """What `wandb sync` would upload from a folder."""

    folder: Path
    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    artifacts: list[Any]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Steps that are rounds; W&B adds the number of the round to other steps too."""
        return [step for step in self.history if "cost/round" in step]

    def logged(self, name: str) -> list[Any]:
        """Values of a metric, table or image, in order."""
        return [step[name] for step in self.history if name in step]


def offline_run(folder: Path) -> OfflineRun:
    """The only offline run in a folder, which has ended."""
    [part] = (folder / "wandb").glob("offline-run-*")
    [log] = part.glob("run-*.wandb")
    records = _ended(log)
    runs = [record.run for record in records if record.HasField("run")]
    values: dict[str, dict[str, Any]] = {"config": {}, "summary": {}}
    history = []
    for record in records:
        if record.HasField("history"):
            history.append(_items(record.history.item))
        for kind, known in values.items():
            if record.HasField(kind):
                known |= _items(getattr(record, kind).update)
    artifacts = [record.artifact for record in records if record.HasField("artifact")]
    return OfflineRun(part, runs[0], values["config"], history, values["summary"], artifacts)


def _ended(log: Path) -> list[Any]:
    """All records, within 20 seconds: W&B's own process writes them out after the run has ended."""
    deadline = time.monotonic() + 20
    while True:
        records = [Record.FromString(data) for data in _pieces(log.read_bytes())]
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < deadline, f"{log} has no end"
        time.sleep(0.02)


def _pieces(data: bytes):
    """Records of a log in LevelDB's format: pieces with a checksum, none of which spans two blocks."""
    assert data[:HEAD] == struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    place, record = HEAD, b""
    while place + HEAD <= len(data):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + HEAD : place + HEAD + length]
        if len(piece) < length:
            return
        assert checksum == zlib.crc32(piece, zlib.crc32(bytes([kind])))
        place += HEAD + length
        record = piece if kind in (1, 2) else record + piece  # whole or first, or a further one
        if kind in (1, 4):  # whole or last
            yield record


def _items(items) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): _value(item.value_json) for item in items}


def _value(text: str) -> Any:
    """W&B writes NaN in quotes or without."""
    value = json.loads(text)
    return float("nan") if value == "NaN" else value
