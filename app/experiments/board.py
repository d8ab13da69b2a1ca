"""Live progress of a comparison in the terminal, with the estimated time left."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from app.experiments.folder import ComparisonFolder
from app.experiments.matrix import Combination
from app.experiments.processes import Job, last_lines
from app.experiments.supervisor import BUSY


@dataclass(frozen=True)
class Running:
    """A run at work.

    Attributes:
        combination: dataset, method and defense.
        elapsed: seconds since it started.
        fraction: rounds done since then, as a fraction of those that were left; in [0, 1], None where unknown.
    """

    combination: Combination
    elapsed: float
    fraction: float | None


def seconds_left(
    waiting: Sequence[Combination], running: Sequence[Running], ended: Sequence[tuple[Combination, float]], workers: int
) -> float | None:
    """Seconds until everything is done, None where nothing is known yet.

    A run is taken to last as long as those of the same combination did, else as long as all did on average; where none
    has ended, progress in rounds is all there is.

    Args:
        waiting: runs that have not started.
        running: runs at work.
        ended: runs that have finished, with the seconds each took.
        workers: runs at a time, 1 or more.
    """
    known = [seconds for _, seconds in ended]
    known = known or [one.elapsed / one.fraction for one in running if one.fraction]
    if not known:
        return None
    rest = [max(0.0, _typical(one.combination, ended, known) - one.elapsed) for one in running]
    ahead = [_typical(combination, ended, known) for combination in waiting]
    return max(sum(rest + ahead) / workers, max(rest, default=0.0))


def in_words(seconds: float) -> str:
    """A duration such as `40 s`, `3 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _typical(combination: Combination, ended: Sequence[tuple[Combination, float]], known: Sequence[float]) -> float:
    same = [seconds for other, seconds in ended if other == combination] or known
    return sum(same) / len(same)


REDRAWN = 0.5
"""Seconds between two pictures of the line."""


@dataclass(frozen=True)
class Failure:
    """A run that did not finish.

    Attributes:
        job: its job.
        code: exit code of its process.
    """

    job: Job
    code: int

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in last_lines(self.job.log))
        why = "another process still works on it" if self.code == BUSY else f"exit code {self.code}"
        return f"failed {self.job.name} ({why}); the end of {self.job.log}:{lines}"


@dataclass(frozen=True)
class _Begun:
    """When a run started, in seconds, and with how many rounds done."""

    job: Job
    time: float
    rounds: int


class Board:
    """Keeps count of runs, and tells about them."""

    def __init__(
        self, folder: ComparisonFolder, jobs: Sequence[Job], done: int, workers: int, out: TextIO | None = None
    ) -> None:
        """A board for some jobs.

        Args:
            folder: where runs record their rounds.
            jobs: what is to be run.
            done: runs that were finished before.
            workers: runs at a time.
            out: where to write; the terminal by default.
        """
        self.failures: list[Failure] = []
        self.interrupted: list[Job] = []
        self._folder, self._workers, self._out = folder, workers, out or sys.stdout
        self._waiting, self._running = {job.name: job for job in jobs}, dict[str, _Begun]()
        self._done, self._total = done, done + len(jobs)
        self._ended: list[tuple[Combination, float]] = []
        self._live, self._drawn, self._shown = self._out.isatty(), 0.0, ""

    def started(self, job: Job) -> None:
        """A job has started."""
        self._waiting.pop(job.name, None)
        rounds = self._folder.rounds_done(job.name)
        self._running[job.name] = _Begun(job, time.monotonic(), rounds)
        if not self._live:
            self._say(f"resumed {job.name} after round {rounds}" if rounds else f"started {job.name}")

    def ended(self, job: Job, code: int, stopping: bool = False) -> None:
        """A job has ended.

        Args:
            job: the job.
            code: exit code of its process.
            stopping: whether it was asked to.
        """
        self._waiting.pop(job.name, None)
        begun = self._running.pop(job.name, None)
        seconds = time.monotonic() - begun.time if begun else 0.0
        if job.summary.is_file() and code == 0:
            self._done += 1
            self._ended.append((job.combination, seconds))
            if not self._live:
                self._say(f"finished {job.name} in {in_words(seconds)}; {self.status()}")
        elif stopping:
            self.interrupted.append(job)
        else:
            self.failures.append(Failure(job, code))
            self._say(str(self.failures[-1]))

    def tick(self) -> None:
        """Redraw the line, where there is one."""
        if self._live and time.monotonic() - self._drawn > REDRAWN:
            self._drawn = time.monotonic()
            width = shutil.get_terminal_size().columns - 1
            self._shown = self.status()[:width]
            self._out.write(f"\r\x1b[K{self._shown}")
            self._out.flush()

    def close(self) -> None:
        """Nothing follows; leave the terminal clean."""
        if self._live and self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def status(self) -> str:
        """Everything in one line."""
        parts = [f"{self._done} of {self._total} done"]
        parts += [f"{len(self.failures)} failed"] * bool(self.failures)
        left = self._left()
        parts += [] if left is None or not (self._running or self._waiting) else [f"about {in_words(left)} left"]
        running = [self._progress(begun) for begun in self._running.values()]
        parts += [f"running {', '.join(running)}"] * bool(running)
        return "; ".join(parts)

    def _progress(self, begun: _Begun) -> str:
        done, rounds = self._folder.rounds_done(begun.job.name), begun.job.rounds
        if rounds and done >= rounds:
            return f"{begun.job.name} (closing)"
        return f"{begun.job.name} (round {done}{f' of {rounds}' if rounds else ''})"

    def _left(self) -> float | None:
        running = [self._running_now(begun) for begun in self._running.values()]
        waiting = [job.combination for job in self._waiting.values()]
        return seconds_left(waiting, running, self._ended, self._workers)

    def _running_now(self, begun: _Begun) -> Running:
        ahead = (begun.job.rounds or 0) - begun.rounds
        since = self._folder.rounds_done(begun.job.name) - begun.rounds
        fraction = min(1.0, max(0.0, since / ahead)) if ahead > 0 else None
        return Running(begun.job.combination, time.monotonic() - begun.time, fraction)

    def _say(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        self._out.flush()
