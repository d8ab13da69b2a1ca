"""Comparisons in files, and tiny programs in the place of runs."""

import io
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml

from app.common.errors import UserError
from app.experiments.board import Board
from app.experiments.engines.processes import Job
from app.experiments.folder import ComparisonFolder
from app.experiments.reading import read_spec

SMALL = {"base": ["demo"], "datasets": {"digits": None}, "methods": ["fedavg", "heterofl"]}
"""Two runs."""

PROGRAM = textwrap.dedent(
    """
    import os, pathlib, signal, sys, time
    folder, behaviour = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").touch()
    with (folder / "seen").open("a") as file:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        print(os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ["WANDB_TAGS"], cores, sys.argv[3:], file=file)
    if behaviour == "fail":
        print("first line")
        sys.exit("the reason")
    if behaviour == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "slow":
        try:
            time.sleep(120)
        except KeyboardInterrupt:
            (folder / "interrupted").touch()
            sys.exit(130)
    if behaviour == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (folder / "ignoring").touch()
        time.sleep(120)
    (folder / "metrics.jsonl").write_text('{"round": 1}\\n')
    (folder / "summary.json").write_text("{}")
    """
)
"""Takes a run's folder and what to do: `finish`, `fail`, `crash`, `slow` or `stubborn`."""


def write(folder: Path, content: dict | str, name: str = "mine") -> Path:
    """A comparison's file."""
    path = folder / f"{name}.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    path.write_text("# What it is for.\n" + text)
    return path


def spec_of(folder: Path, **changes):
    """The small comparison with some keys changed."""
    return read_spec(str(write(folder, {**SMALL, **changes})))


def problems_of(folder: Path, **changes) -> list[str]:
    """Everything that is wrong with the small comparison with some keys changed."""
    with pytest.raises(UserError) as error:
        spec_of(folder, **changes)
    return [str(problem) for problem in error.value.problems]


def fake_job(folder: ComparisonFolder, name: str, behaviour: str = "finish", **options) -> Job:
    """A job that runs the tiny program."""
    run = folder.run(name)
    return Job(
        name=name,
        combination=("digits", name, "none"),
        command=(sys.executable, "-c", PROGRAM, str(run), behaviour),
        log=folder.log(name),
        lock=folder.run_lock(name),
        summary=run / "summary.json",
        rounds=1,
        **options,
    )


def board_of(folder: ComparisonFolder, jobs: list[Job], workers: int = 1) -> tuple[Board, io.StringIO]:
    """A board that writes into a text."""
    out = io.StringIO()
    return Board(folder, jobs, 0, workers, out), out


def comes(condition, seconds: float = 60.0) -> bool:
    """Whether something becomes true within some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
