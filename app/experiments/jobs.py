"""Cells as processes: the command of each, its share of the machine, and how it is started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import app
from app.experiments.folder import ComparisonFolder, State
from app.experiments.matrix import Cell, Combination
from app.experiments.parsing import ParsedRun
from app.results.run_folder import NAME_VARIABLE

FIT = (sys.executable, "-P", "-m", "app.cli", "fit")
"""`rampart fit`; modules in the working folder do not get in the way of ours."""

ROOT = Path(app.__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Share:
    """A worker's part of the machine.

    Attributes:
        threads: threads that it may keep busy, 1 or more.
        cores: cores that it is bound to; empty for any, where it is told the number of threads instead.
        device: value of CUDA_VISIBLE_DEVICES, None to leave it alone.
    """

    threads: int
    cores: tuple[int, ...] = ()
    device: str | None = None


@dataclass(frozen=True)
class Job:
    """A cell, ready to be run.

    Attributes:
        name: the run's name.
        combination: dataset, method and defense.
        command: program and arguments, without the share of the machine.
        log: where everything it prints goes.
        lock: file that its process keeps locked.
        summary: file that shows that it has finished.
        rounds: rounds that it takes, None where unknown.
        begun: whether an earlier process has begun it.
        workers: worker threads that it was begun with or asks for, None where that is left open.
        home: working folder, which relative paths start from.
    """

    name: str
    combination: Combination
    command: tuple[str, ...]
    log: Path
    lock: Path
    summary: Path
    rounds: int | None = None
    begun: bool = False
    workers: int | None = None
    home: Path = Path()


def make_job(
    cell: Cell,
    folder: ComparisonFolder,
    parsed: Mapping[Combination, ParsedRun],
    group: str,
    program: Sequence[str] = FIT,
) -> Job:
    """The job of a cell.

    Args:
        cell: the cell.
        folder: where its run is kept.
        parsed: what each combination is run with.
        group: name of the comparison, by which trackers group its runs.
        program: command that takes the arguments of `rampart fit`.
    """
    run = parsed[cell.combination]
    quiet = () if "--trainer.enable_progress_bar" in cell.arguments else ("--trainer.enable_progress_bar", "false")
    place = ("--run.root", str(folder.path), "--run.name", cell.name, "--group", group)
    begun = folder.state(cell.name) is State.PARTLY
    asked = (run.config.get("model") or {}).get("workers")
    return Job(
        name=cell.name,
        combination=cell.combination,
        command=(*program, *cell.arguments, *quiet, *place),
        log=folder.log(cell.name),
        lock=folder.run_lock(cell.name),
        summary=folder.run(cell.name) / "summary.json",
        rounds=run.rounds,
        begun=begun,
        workers=asked or (folder.saved_workers(cell.name) if begun else None),
        home=Path.cwd(),
    )


def start(job: Job, share: Share) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own; it ends when this process ends.

    To be called in the main thread. The output is added to the job's log, after a line with the command.

    Args:
        job: what to run.
        share: part of the machine that it gets.
    """
    command = [*job.command, *_worker_option(job, share)]
    cores = ",".join(map(str, share.cores))
    leash = [sys.executable, "-P", "-m", "app.experiments.leash", str(os.getpid()), str(job.lock), cores, "--"]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        return subprocess.Popen(  # noqa: S603  our own command
            [*leash, *command],
            cwd=job.home,
            env=_environment(job, share),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def last_lines(log: Path, count: int = 8) -> list[str]:
    """The last lines of a log that are not empty."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-count:]


def cores() -> tuple[int, ...]:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _worker_option(job: Job, share: Share) -> tuple[str, ...]:
    """A run goes on with the number of threads it was begun with; bound to cores, it counts them itself."""
    open_ = job.workers is None and not job.begun and not share.cores
    workers = share.threads if open_ else job.workers
    return () if workers is None else ("--model.workers", str(workers))


def _environment(job: Job, share: Share) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != NAME_VARIABLE}
    paths = [path for path in (environment.get("PYTHONPATH"), str(ROOT)) if path]
    environment |= dict.fromkeys(THREADS, str(share.threads))
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "WANDB_TAGS": ",".join(job.combination)}
    return environment | ({} if share.device is None else {"CUDA_VISIBLE_DEVICES": share.device})
