"""Processes of runs: the job of each, its share of the machine, how it is started, and requests to stop.

Nothing heavy is imported here, since the workers of a cluster load this module before each run.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import app

ROOT = Path(app.__file__).parents[1]
PAUSE = 0.2
"""Seconds between two looks at a process."""

MODULE = (sys.executable, "-P", "-m")
"""Runs a module of ours; modules in the working folder do not shadow it."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Resources:
    """A worker's share of the machine."""

    threads: int  # threads that it may keep busy, 1 or more
    # cores that it is bound to; empty for any, in which case it is passed the number of threads
    cores: tuple[int, ...] = ()
    device: str | None = None  # value of CUDA_VISIBLE_DEVICES, None to leave it alone
    trained_on: int | None = None  # devices that a run trains on, None to leave that to its settings


@dataclass(frozen=True)
class Job:
    """A planned run with its command and files."""

    name: str
    combination: tuple[str, str, str]  # dataset, method and defense
    command: tuple[str, ...]  # program and arguments, without the share of the machine
    log: Path  # file that its output is appended to
    lock: Path  # file that its process keeps locked
    summary: Path  # file that exists when it has finished
    rounds: int | None = None
    begun: bool = False  # whether an earlier process has begun it
    workers: int | None = None  # worker threads that it was begun with or asks for, None where that is left open
    home: Path = Path()  # working folder, which relative paths start from


class Process(Protocol):
    """What is used of a started process."""

    def poll(self) -> int | None:
        """The exit code, None as long as it runs."""

    def wait(self) -> int:
        """The exit code, as soon as it has ended."""

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""


class StopRequest:
    """Counts interrupts (Ctrl-C) and requests to terminate while it is entered.

    Attributes:
        count: requests so far; after the second one, runs are no longer waited for.
    """

    def __init__(self) -> None:
        self.count = 0
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self.arm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Take over the signals, also from a library that has taken them over meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM):
            previous = signal.signal(number, self._count)
            self._previous.setdefault(number, previous)

    @property
    def requested(self) -> bool:
        return self.count > 0

    @property
    def urgent(self) -> bool:
        """Whether runs are no longer waited for: they get a minute to end by themselves."""
        return self.count > 1 or (self.requested and time.monotonic() - self._since > 60)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self._since = self._since or time.monotonic()
        self.count += 1


def start(job: Job, share: Resources) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own; it ends when this process ends.

    To be called in the main thread. The output is appended to the job's log, after a line with the command.
    """
    return spawned(job, share, logged_command(job, share))


def logged_command(job: Job, share: Resources) -> tuple[str, ...]:
    """The command of a job with its share of the machine, after it was written to the job's log."""
    command = (*job.command, *_worker_option(job, share), *_device_option(share))
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
    return command


def spawned(job: Job, share: Resources, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process for a job that runs a command, which stands in its log already."""
    cores = ",".join(map(str, share.cores))
    supervisor = (*MODULE, "app.experiments.engines.supervisor", str(os.getpid()), str(job.lock), cores)
    with job.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603  our own command
            [*supervisor, "--", *command],
            cwd=job.home,
            env=environment(job, share),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def work(job: Job, share: Resources) -> int:
    """Run a job to its end; returns its exit code. An interrupt is passed on, and the end of the run waited for."""
    process = start(job, share)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(PAUSE)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return process.wait()


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


def _worker_option(job: Job, share: Resources) -> tuple[str, ...]:
    """A resumed run keeps its number of threads; a run that is bound to cores counts them itself."""
    undecided = job.workers is None and not job.begun and not share.cores
    workers = share.threads if undecided else job.workers
    return () if workers is None else ("--model.workers", str(workers))


def _device_option(share: Resources) -> tuple[str, ...]:
    return () if share.trained_on is None else ("--trainer.devices", str(share.trained_on))


def environment(job: Job, share: Resources) -> dict[str, str]:
    """The environment variables of a run."""
    # every run has an id of its own, also where a sweep has given one to the comparison
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_RUN_ID"}
    paths = [path for path in (environment.get("PYTHONPATH"), str(ROOT)) if path]
    environment |= dict.fromkeys(THREADS, str(share.threads))
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "WANDB_TAGS": ",".join(job.combination)}
    return environment | ({} if share.device is None else {"CUDA_VISIBLE_DEVICES": share.device})
