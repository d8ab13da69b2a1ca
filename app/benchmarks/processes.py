"""Competitors in processes of their own, all with the settings that this application gives its process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from app.benchmarks.work import Competitor, Run, Work
from app.federation.execution.distributed import keep_freed_memory, spare_driver_lookups

METHOD = "forkserver"
"""How processes are started."""


@dataclass(frozen=True)
class Contender:
    """A competitor with its best setting, and the process that it runs in."""

    competitor: Competitor
    process: ProcessPoolExecutor
    remark: str = ""  # which setting was the best of which

    def run(self, work: Work, rounds: int) -> Run:
        return self.process.submit(self.competitor, work, rounds).result()


def new_processes(count: int, start: Callable[..., Any] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """Processes that do not share memory with this one; each calls `start` with the arguments first."""
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(["app.benchmarks.__main__"])  # imports once, not once per process
    return ProcessPoolExecutor(count, context, initializer=_prepare, initargs=(start, *arguments))


def _prepare(start: Callable[..., Any] | None, *arguments: Any) -> None:
    """Settings of a process that hold until it ends, so that they must be the same for all competitors."""
    keep_freed_memory()
    spare_driver_lookups()
    if start is not None:
        start(*arguments)
