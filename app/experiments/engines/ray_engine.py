"""Runs jobs on a Ray cluster: one task per run, which Ray repeats where its worker dies; the run then resumes.

All nodes need this program and the folder of the comparison under the same paths.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from app.common.errors import UserError
from app.experiments.board import Board
from app.experiments.engines.gpus import runs_at_a_time, trained_on
from app.experiments.engines.processes import PAUSE, Job, Resources, StopRequest, cores, work

RETRIES = 3
"""Repetitions of a run whose worker dies."""

ATTEMPTS = 3
"""Attempts to start a cluster of this machine: Ray gives up after half a minute where the machine is busy."""


class RayEngine:
    """Runs jobs as tasks of a Ray cluster.

    Args:
        address: of an existing cluster; without one, a cluster of this machine alone is started, which listens on the
            loopback device only and ends with this process.
        workers: runs at a time, None for one per GPU or for every two cores.
        gpus_per_run: GPUs of each run, below 1 where several share one; None for one where the cluster has any.
    """

    def __init__(self, address: str | None, workers: int | None, gpus_per_run: float | None = None) -> None:
        self._ray = _ray()
        self._connect(address)
        self._per_run = gpus_per_run
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        total = int(sum(node.get("CPU", 0) for node in nodes))
        self._gpus = int(sum(node.get("GPU", 0) for node in nodes))
        widest = int(max((node.get("CPU", 1) for node in nodes), default=1))
        self.workers = workers or self._gpus or max(1, total // 2)
        if gpus_per_run is not None:
            most = self._most(gpus_per_run, [int(node.get("GPU", 0)) for node in nodes])
            self.workers = min(workers or most, most)
        self._threads = max(1, min(total // self.workers, widest))

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs in their order; returns when none is left, or when the running ones have ended after a stop."""
        stop.arm()  # Ray takes over some signals
        gpus = int(self._gpus > 0) if self._per_run is None else self._per_run
        task = self._ray.remote(num_cpus=self._threads, num_gpus=gpus, max_retries=RETRIES)(work)
        share = Resources(self._threads, trained_on=trained_on(self._per_run))
        cancelled = False
        try:
            tasks = {task.remote(job, share): job for job in jobs}
            sizes = {job.name: _size(job) for job in jobs}
            while tasks:
                if stop.requested and (not cancelled or stop.urgent):
                    for one in tasks:
                        self._ray.cancel(one, force=stop.urgent)
                    cancelled = True
                done, _ = self._ray.wait(list(tasks), num_returns=1, timeout=PAUSE)
                _report_started(tasks.values(), sizes, board)
                for one in done:
                    board.ended(tasks.pop(one), self._code(one), stop.requested)
                board.tick()
        finally:
            self._ray.shutdown()

    def _most(self, per_run: float, machines: Sequence[int]) -> int:
        """Runs at a time for which the GPUs suffice; the cluster is let go where they do not suffice for one."""
        try:
            return runs_at_a_time(per_run, machines)
        except UserError:
            self._ray.shutdown()
            raise

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what the user has set for GPUs is kept
        here = {"num_cpus": len(cores()), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        where: dict[str, Any] = {"address": "local", **here} if address is None else {"address": address}
        for attempt in range(ATTEMPTS, 0, -1):
            try:
                self._ray.init(**where, log_to_driver=False, logging_level="ERROR")
                return
            except Exception as error:  # Ray raises exceptions of any class, also where the machine is only busy
                self._ray.shutdown()
                if attempt == 1 or address is not None:
                    raise _unreachable(address, error) from error

    def _code(self, task: Any) -> int:
        """Exit code of an ended task; 137 where its worker died time and again, 130 where it was cancelled."""
        try:
            return int(self._ray.get(task))
        except self._ray.exceptions.TaskCancelledError:
            return 130
        except self._ray.exceptions.RayError:
            return 137


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise UserError.of(
            "Ray is not installed",
            "runs cannot be sent to a cluster",
            "install it with `pip install 'rampart-fl[ray]'`, or leave out --engine",
        ) from error
    return ray


def _unreachable(address: str | None, error: Exception) -> UserError:
    where = "no Ray cluster could be started here" if address is None else f"there is no Ray cluster at {address}"
    remedy = "correct --address, start a cluster with `ray start --head`, or leave out --engine to run without Ray"
    return UserError.of(f"{where}: {str(error).strip() or type(error).__name__}", "no run starts", remedy)


def _size(job: Job) -> int:
    return job.log.stat().st_size if job.log.exists() else 0


def _report_started(jobs: Any, sizes: dict[str, int], board: Board) -> None:
    """A job has started when its log has grown."""
    for job in jobs:
        if job.name in sizes and _size(job) > sizes[job.name]:
            del sizes[job.name]
            board.started(job)
