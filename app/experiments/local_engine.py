"""Runs on this machine: a fixed number at a time, each with cores, and where there are some a GPU, of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.experiments.board import Board
from app.experiments.processes import Job, Resources, cores, start
from app.experiments.stopping import StopRequest

PAUSE = 0.1
"""Seconds between two looks at the processes."""

Starter = Callable[[Job, Resources], subprocess.Popen[bytes]]


@dataclass(frozen=True, eq=False)
class _AtWork:
    job: Job
    share: Resources
    process: subprocess.Popen[bytes]


class LocalEngine:
    """Runs jobs in processes of this machine."""

    def __init__(self, shares: Sequence[Resources], starter: Starter = start) -> None:
        """An engine.

        Args:
            shares: one for each run at a time.
            starter: starts a process.
        """
        self._shares, self._start = tuple(shares), starter

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs; returns when none is left, or when those at work have ended after a request to stop.

        Args:
            jobs: in the order in which to start them.
            board: is told what happens.
            stop: tells whether to stop.
        """
        waiting, free, running = deque(jobs), deque(self._shares), list[_AtWork]()
        asked = False
        try:
            while running or (waiting and not stop.asked):
                while waiting and free and not stop.asked:
                    job, share = waiting.popleft(), free.popleft()
                    running.append(_AtWork(job, share, self._start(job, share)))
                    board.started(job)
                if stop.asked and (not asked or stop.urgent):
                    _signal(running, signal.SIGTERM if asked else signal.SIGINT)
                    asked = True
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.append(one.share)
                    board.ended(one.job, one.process.returncode, stop.asked)
                board.tick()
                time.sleep(PAUSE)
        finally:
            _signal(running, signal.SIGTERM)
            for one in running:
                one.process.wait()


def local_shares(workers: int, available: Sequence[int], devices: Sequence[str] = ()) -> tuple[Resources, ...]:
    """The machine in equal parts, so that all workers together keep every core busy and none twice.

    Args:
        workers: parts, 1 or more.
        available: numbers of the cores; with more workers than cores, some share one.
        devices: GPUs, dealt in turn.
    """
    count, bound = len(available), hasattr(os, "sched_setaffinity")
    shares = []
    for at in range(workers):
        own = tuple(available[at * count // workers : (at + 1) * count // workers]) or (available[at % count],)
        device = devices[at % len(devices)] if devices else None
        shares.append(Resources(max(1, count // workers), own if bound else (), device))
    return tuple(shares)


def default_workers(cells: int, devices: Sequence[str]) -> int:
    """One run per GPU, else one for every two cores; never more than there are cells, at least 1."""
    return max(1, min(cells, len(devices) or len(cores()) // 2))


def gpus() -> tuple[str, ...]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return tuple(named[:count] if named else map(str, range(count)))


def _signal(running: Sequence[_AtWork], number: int) -> None:
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(number)
