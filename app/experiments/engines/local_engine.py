"""Runs jobs on this machine: a fixed number at a time, each with cores of its own and, where there is one, a GPU."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from app.experiments.board import Board
from app.experiments.engines.gpus import dealt_gpus, runs_at_a_time, trained_on
from app.experiments.engines.preloaded import FIT, Preloaded
from app.experiments.engines.processes import Job, Process, Resources, StopRequest, cores

PAUSE = 0.1
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, eq=False)
class _RunningJob:
    job: Job
    share: Resources
    process: Process


class LocalEngine:
    """Runs jobs in processes of this machine, one at a time for each share.

    Args:
        shares: of the machine.
        modules: imported once, before the first job starts.
    """

    def __init__(self, shares: Sequence[Resources], modules: Sequence[str] = FIT) -> None:
        self._shares, self._modules = tuple(shares), modules

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs in their order; returns when none is left, or when the running ones have ended after a stop."""
        with Preloaded(self._modules) as preloaded:
            self._run(deque(jobs), preloaded, board, stop)

    def _run(self, waiting: deque[Job], preloaded: Preloaded, board: Board, stop: StopRequest) -> None:
        free, running, interrupted = deque(self._shares), list[_RunningJob](), False
        try:
            while running or (waiting and not stop.requested):
                while waiting and free and not stop.requested:
                    job, share = waiting.popleft(), free.popleft()
                    running.append(_RunningJob(job, share, preloaded.start(job, share)))
                    board.started(job)
                if stop.requested and (not interrupted or stop.urgent):
                    _signal(running, signal.SIGTERM if interrupted else signal.SIGINT)
                    interrupted = True
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.append(one.share)
                    board.ended(one.job, one.process.wait(), stop.requested)
                board.tick()
                time.sleep(PAUSE)
        finally:
            _signal(running, signal.SIGTERM)
            for one in running:
                one.process.wait()


def local_shares(
    workers: int, available: Sequence[int], devices: Sequence[str] = (), per_run: float | None = None
) -> tuple[Resources, ...]:
    """Equal shares of the machine: all workers together use every available core, and GPUs are dealt in turn.

    With more workers than cores, some share one. `per_run` is the number of GPUs of each run, one by default; where it
    is below 1, several share one.
    """
    count, bound = len(available), hasattr(os, "sched_setaffinity")
    shares = []
    for part in range(workers):
        own = tuple(available[part * count // workers : (part + 1) * count // workers]) or (available[part % count],)
        device = dealt_gpus(part, devices, per_run)
        shares.append(Resources(max(1, count // workers), own if bound else (), device, trained_on(per_run)))
    return tuple(shares)


def workers_for(jobs: int, wanted: int | None, devices: Sequence[str], per_run: float | None = None) -> int:
    """Runs at a time: as many as wanted, else one per GPU or for every two cores; never more than there are jobs.

    Where a run has a number of GPUs of its own, never more than the GPUs suffice for.
    """
    if per_run is not None:
        most = runs_at_a_time(per_run, [len(devices)])
        return max(1, min(jobs, most, wanted or most))
    return max(1, min(jobs, wanted or len(devices) or len(cores()) // 2))


def _signal(running: Sequence[_RunningJob], number: int) -> None:
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(number)
