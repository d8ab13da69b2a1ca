"""`scripts/bench audit`: what an audited comparison takes beside its training, from the first start to the demo."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from app.benchmarks.measurements import BenchmarkRow, Table, measured_row, progress, seconds_of
from app.benchmarks.shadows import shadow_tables
from app.common.array_files import read_arrays
from app.metrics.leakage import measure_leakage
from app.metrics.membership import MembershipScores
from app.metrics.vulnerability import client_table

PYTHON = (sys.executable, "-P", "-m")
RAMPART = (*PYTHON, "app.cli")
GOAL = "the goal"

COMMANDS = ("--version", "list", "report --help")
"""Commands that print something at once."""

TINY: dict[str, Any] = {
    "base": ["demo"],
    "datasets": {"digits": None},
    "methods": ["fedavg"],
    "set": {"trainer.max_epochs": 1, "tracking": "disabled"},
}
"""A comparison whose runs do next to nothing."""

WHITE_BOX = "--attacks.membership.attacks", '["yeom", "lira-online", "nasr"]'
"""Options of a run of the demo with the white-box attack, which the demo leaves out."""

Phases = Mapping[str, Mapping[str, float]]
"""Calls and CPU seconds of every phase of a run."""


def audit_tables(quick: bool) -> Iterator[Table]:
    """Start-up, shadows, the phases of one run, metrics, and the demo as a whole; `quick`: the demo with one seed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        yield _commands(1 if quick else 3)
        yield _starts(root, 2 if quick else 4)
        yield next(shadow_tables(quick))
        first, second = (_phases(root, name) for name in ("first", "second"))
        yield _phase_table(first, second)
        yield _metrics(6_000 if quick else 60_000)
        yield from _demo(root, quick, first["shadows"]["seconds"] / first["shadows"]["calls"])


def _commands(repeats: int) -> Table:
    """Wall-clock seconds of commands that only print."""
    rows = []
    for command in COMMANDS:
        progress(f"rampart {command}")
        seconds = [seconds_of(partial(_run, *command.split())) for _ in range(repeats)]
        rows.append(_against(f"rampart {command}", seconds, 1.0))
    return Table("commands that only print", "s", GOAL, tuple(rows))


def _starts(root: Path, seeds: int) -> Table:
    """Seconds from the start of a run in a comparison until its folder has its configuration."""
    spec = root / "starts.yaml"
    spec.write_text(yaml.safe_dump({**TINY, "seeds": list(range(seeds))}))
    command = (*RAMPART, "compare", "--config", str(spec), "--jobs", "1", "--root", str(root))
    progress(f"{seeds} runs of a comparison start")
    seconds = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("started "):
                seconds.append(_seconds_until(root / "starts" / line.split()[1] / "config.yaml", process))
    rows = [_against("first run", seconds[0], 0.5), _against("later runs", seconds[1:], 0.5)]
    return Table("start of a run in a comparison, until its folder is made", "s", GOAL, tuple(rows))


def _seconds_until(file: Path, process: subprocess.Popen[str]) -> float:
    started = time.perf_counter()
    while not file.is_file() and process.poll() is None:
        time.sleep(0.002)
    return time.perf_counter() - started


def _phases(root: Path, name: str) -> Phases:
    """What the phases of the demo's first run take, with a white-box attack.

    A second run beside it finds its shadows and controls.
    """
    progress(f"a run of the demo, the {name} time")
    place, file = root / "runs", root / f"{name}.json"
    plan = _run("compare", "--config", "demo", "--dry", "--root", str(root))
    arguments = shlex.split(plan[plan.index("--config ") :].splitlines()[0])
    options = ("--run.root", str(place), "--run.name", name, "--trainer.enable_progress_bar", "false")
    _run("fit", *arguments, *WHITE_BOX, *options, program=(*PYTHON, "app.benchmarks.phases", str(file)))
    phases: Phases = json.loads(file.read_text())
    return phases


def _phase_table(first: Phases, second: Phases) -> Table:
    """CPU seconds of every phase, with those of training as the reference, and what has a goal."""
    training = first["training"]["seconds"]
    goals = {("controls", "first"): 3.0, ("controls", "second"): 0.1}
    rows = []
    for phase in first:
        for name, phases in (("first", first), ("second", second)):
            calls, seconds = int(phases[phase]["calls"]), phases[phase]["seconds"]
            goal = goals.get((phase, name))
            remark = f"{calls} calls" if calls else ""
            rows.append(measured_row(f"{phase}, {name} time", seconds, training, goal and goal / training, (), remark))
    return Table("phases of one run of the demo, CPU seconds", "s", "training", tuple(rows))


def _metrics(count: int) -> Table:
    """Seconds of all metrics of one attack, and of the same for each of 100 clients."""
    progress(f"metrics of {count:,} rows")
    generator = np.random.default_rng(0)
    members = np.arange(count) % 2 == 0
    scores = MembershipScores.of(generator.normal(members * 0.5, 1.0), members, clients=np.arange(count) // 2 % 100)
    sizes = dict.fromkeys(range(100), count // 200)
    rows = (
        _against("AUC with bootstrap, ROC, rates", seconds_of(lambda: measure_leakage(scores)), 1.0),
        _against("the same of 100 clients", seconds_of(lambda: client_table(scores, sizes)), 1.0),
    )
    return Table(f"metrics of {count:,} rows", "s", GOAL, rows)


def _demo(root: Path, quick: bool, seconds_per_shadow: float) -> Iterator[Table]:
    """The demo against its training and the training of every shadow that it needs, once."""
    progress("the demo")
    seeds = ("--seeds", "0") if quick else ()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = seconds_of(lambda: _run("compare", "--config", "demo", "--jobs", "2", "--root", str(root), *seeds))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    costs = [json.loads(file.read_text()) for file in (root / "demo").glob("*/cost.json")]
    shadows = _kept_shadows(root / "demo")
    training = sum(cost["cpu_seconds"] for cost in costs)
    least = training + shadows * seconds_per_shadow
    rows = (
        measured_row("training of all runs", training, least),
        measured_row(f"training of {shadows} shadows, each once", least - training, least),
        measured_row("the whole demo, wall clock", wall, least, 1.5, [cpu]),
    )
    remarks = [f"the goal of the whole demo is 120 s: {wall:.0f} s"] * (not quick)
    if saved := _saved(costs):
        remarks.append(saved)
    yield Table(f"the demo, {len(costs)} runs, two at a time", "s", "training and shadows", rows, tuple(remarks))


def _saved(costs: Sequence[Mapping[str, float]]) -> str:
    """Shadows that runs have trained and reused; empty where they do not say."""
    counts = [sum(cost.get(f"attack_phase/shadows_{one}", 0) for cost in costs) for one in ("trained", "reused")]
    return f"{counts[0]:.0f} shadow models trained, {counts[1]:.0f} reused" if any(counts) else ""


def _kept_shadows(root: Path) -> int:
    """Shadow models in the cache of some runs, those of controls included."""
    return sum("vectors" in read_arrays(file) for file in (root / ".cache" / "shadows").glob("*.npz"))


def _against(name: str, seconds: float | Sequence[float], goal: float) -> BenchmarkRow:
    """A row whose goal is in seconds: its ratio is a multiple of that."""
    return measured_row(name, seconds, goal, 1.0, (), f"{goal:g} s")


def _run(*arguments: str, program: Sequence[str] = RAMPART) -> str:
    """What a command prints; refused where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"rampart {' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout
