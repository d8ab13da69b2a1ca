"""`scripts/bench scale`: how time and memory of every phase grow with the clients and with the parameters."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from app.benchmarks.measurements import BenchmarkRow, Table, progress
from app.benchmarks.work import SyntheticImages
from app.federation.all_clients import AllClients
from app.federation.channels.base import Message
from app.federation.evaluation import Evaluation
from app.federation.execution.executors import ExecutorKind
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.federation.plan_audit.audit import audit
from app.federation.reports import PhaseClock
from app.federation.transcript import TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.models.base import DataShape
from app.models.mlp import MLP
from app.results.text_table import text_table
from datamodules.split import Holdout

GOAL = 1.05
"""Largest growth exponent of a phase."""

REPEATS = 3
"""Processes in which every size is timed; the least of their values counts, since neighbours only add to it."""

FREED_IS_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Settings of the allocator under which a phase does not reuse what an earlier one has freed, which would hide it."""

NEGLIGIBLE = 0.02, 4.0
"""CPU seconds and MB up to which a phase is too small for its growth to be told from constant costs and noise."""

MEMORY_ALONE = "adding a vector to another, once per client"
"""What is timed beside the phases, to tell how much of their growth is that of the memory; it has no goal."""

SHAPE = DataShape(1, 8, 8, 10)
SAMPLES = 4
"""Samples of a client: two to train with, two to test."""


@dataclass(frozen=True)
class Size:
    """A federation of half wide, half narrow clients with an MLP of one hidden layer."""

    clients: int
    parameters: int  # about, of the whole network
    executor: ExecutorKind

    @property
    def hidden(self) -> int:
        return max(2, round(self.parameters / (SHAPE.height * SHAPE.width + SHAPE.classes + 1)))


@dataclass
class Meter(PhaseClock):
    """CPU seconds and peak memory by phase, where a phase may be entered several times."""

    now: Callable[[], float] = time.process_time
    megabytes: dict[str, float] = field(default_factory=dict)
    _highest: float = 0.0

    @contextmanager
    def memory(self, name: str) -> Iterator[None]:
        """Also the largest resident memory within it, beyond that at its start; Linux only."""
        outer = max(self._highest, _status("VmHWM"))  # of the phase around this one, until now
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest value so far
        before, self._highest = _status("VmRSS"), 0.0
        with self.phase(name):
            yield
        highest = max(self._highest, _status("VmHWM"))
        self.megabytes[name], self._highest = highest - before, max(outer, highest)


class MeteredRecorder(TranscriptRecorder):
    """Records the only round, then evaluates all clients and reads the transcript as attacks do, all metered."""

    def __init__(self, folder: Path, meter: Meter) -> None:
        super().__init__(folder, TranscriptSettings(last=1), announce=False)
        self._meter = meter

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        with self._meter.phase("transcript"):
            super().on_round_start(trainer, federation, plan)

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        with self._meter.phase("transcript"):
            super().on_message(trainer, federation, message)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        with self._meter.phase("transcript"):
            super().on_train_epoch_end(trainer, pl_module)
        with self._meter.memory("evaluation"):
            AllClients(pl_module, 0).scores()
        with self._meter.memory("attacks' reading"):
            for upload in self._transcript.server_view().uploads(1):
                _ = upload.index, upload.payload


def measured(size: Size) -> Meter:
    """One round of a federation, its plan, and everything that is done with its transcript."""
    meter = Meter()
    federation = FederatedModule(
        net=lambda shape: MLP(shape, hidden=(size.hidden,)),
        capacities=[(1.0, 0.5)[client % 2] for client in range(size.clients)],
        local=LocalTraining(batch_size=SAMPLES),
        evaluation=Evaluation(clients=False),
        executor=size.executor,
    )
    federation.clock = PhaseClock(now=time.process_time)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = SyntheticImages(size.clients, SAMPLES, SHAPE, tests=100)
    data.holdout = Holdout(clients=0.5, shadow=0, population=0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            callbacks=[MeteredRecorder(Path(folder), meter)],
            **quiet,
        )
        with meter.memory("the whole round"):
            trainer.fit(federation, datamodule=data)
    seconds = federation.clock.seconds
    meter.seconds |= {"training": seconds["clients"], "aggregation": seconds["channel"] + seconds["server"]}
    with meter.memory("the plan's audit"):
        audit((federation.plan_of(round_) for round_ in range(2)), federation.space)
    _add_alone(meter, size.clients, federation.space.size)
    return meter


def _add_alone(meter: Meter, clients: int, coordinates: int) -> None:
    """What the memory alone costs: a phase that reads and writes more than caches hold grows faster than its work."""
    total, vector = torch.zeros(coordinates, dtype=torch.float64), torch.ones(coordinates)
    with meter.phase(MEMORY_ALONE):
        for _ in range(clients):
            total += vector


def print_phases(*size: Any) -> None:
    """Measure one size in this process, and print the meter as JSON in one line."""
    meter = measured(Size(*size))
    print(json.dumps([meter.seconds, meter.megabytes]))


@dataclass(frozen=True)
class GrowthTable(Table):
    """Phases with their seconds or megabytes at the largest size, and how they have grown towards it."""

    def __str__(self) -> str:
        head = ("", self.unit, "exponent", "goal", "met", "")
        rows = [(row.name, f"{row.value:.3f}", row.cells[4], *row.cells[6:]) for row in self.rows]
        return "\n".join([self.title, text_table(head, rows, left=(0, 5), rule=False), *self.remarks])


def scale_tables(quick: bool) -> Iterator[Table]:
    """Growth with clients and with parameters."""
    clients = (10, 100, 1000) if quick else (10, 100, 1000, 10_000)
    parameters = (10**4, 10**5) if quick else (10**4, 10**5, 10**6, 10**7)
    repeats = 1 if quick else REPEATS
    yield from _growth("clients", clients, lambda number: Size(number, 10**4, "auto"), repeats)
    yield from _growth("parameters", parameters, lambda number: Size(10, number, "sequence"), repeats)


def _growth(what: str, numbers: Sequence[int], size: Callable[[int], Size], repeats: int) -> Iterator[Table]:
    """Tables of time and of memory; the exponent is the slope between the two largest sizes, in logarithms.

    Smaller sizes are shown, and left out of the slope: constant costs dominate them.
    """
    found = [_measured_alone(size(number), repeats) for number in numbers]
    for place, (unit, least) in enumerate(zip(("CPU s", "MB"), NEGLIGIBLE, strict=True)):
        rows = tuple(_row(name, numbers, [one[place][name] for one in found], least) for name in found[-1][place])
        title = f"{unit} of a round by {what}: {', '.join(f'{number:,}' for number in numbers)}"
        remark = "exponent: slope of the logarithm between the two largest sizes, where constant costs matter least"
        yield GrowthTable(title, unit, "exponent", rows, (remark,))


def _row(name: str, numbers: Sequence[int], values: Sequence[float], least: float) -> BenchmarkRow:
    remark = ", ".join(f"{value:.3f}" for value in values)
    if values[-1] <= least:
        return BenchmarkRow(name, values[-1], min(values), math.nan, math.nan, None, f"{remark} (negligible)")
    exponent = math.log(values[-1] / max(values[-2], least / 10)) / math.log(numbers[-1] / numbers[-2])
    goal = None if name == MEMORY_ALONE else GOAL
    return BenchmarkRow(name, values[-1], min(values), math.nan, exponent, goal, remark)


def _measured_alone(size: Size, repeats: int) -> list[dict[str, float]]:
    """Least seconds of a size by phase over several processes, and megabytes in one that returns freed memory."""
    progress(f"scale: {size.clients:,} clients, about {size.parameters:,} parameters")
    times = [_measured_in_process(size, {})[0] for _ in range(repeats)]
    _, megabytes = _measured_in_process(size, FREED_IS_RETURNED)
    return [{phase: min(one[phase] for one in times) for phase in times[0]}, megabytes]


def _measured_in_process(size: Size, environment: Mapping[str, str]) -> list[dict[str, float]]:
    arguments = f"{size.clients}, {size.parameters}, {size.executor!r}"
    code = f"from app.benchmarks.scale import print_phases; print_phases({arguments})"
    command, variables = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)  # noqa: S603
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _status(name: str) -> float:
    """Resident memory of this process, now (VmRSS) or at most (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
