"""Live progress of a comparison in the terminal, with the estimated time left."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from app.common.progress import in_words
from app.experiments.engines.processes import Job, last_lines
from app.experiments.engines.supervisor import BUSY
from app.experiments.folder import ComparisonFolder
from app.experiments.matrix import Combination


@dataclass(frozen=True)
class Running:
    """A run in progress."""

    combination: Combination
    elapsed: float  # seconds since it started
    # rounds done since then, as a fraction of those that were left; in [0, 1], None where unknown
    fraction: float | None


def seconds_left(
    waiting: Sequence[Combination], running: Sequence[Running], ended: Sequence[tuple[Combination, float]], workers: int
) -> float | None:
    """Estimated seconds until all runs have ended, None where nothing is known yet.

    A run is assumed to take the mean time of the ended runs of its combination, otherwise of all ended runs; before the
    first run has ended, the estimate extrapolates from the rounds done. `ended` holds the seconds of finished runs,
    `workers` is the number of runs at a time.
    """
    durations = [seconds for _, seconds in ended]
    durations = durations or [one.elapsed / one.fraction for one in running if one.fraction]
    if not durations:
        return None

    def typical(combination: Combination) -> float:
        same = [seconds for other, seconds in ended if other == combination] or durations
        return sum(same) / len(same)

    rest = [max(0.0, typical(one.combination) - one.elapsed) for one in running]
    ahead = [typical(combination) for combination in waiting]
    return max(sum(rest + ahead) / workers, max(rest, default=0.0))


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, with the exit code of its process."""

    job: Job
    code: int

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in last_lines(self.job.log))
        reason = "another process still works on it" if self.code == BUSY else f"exit code {self.code}"
        return f"failed {self.job.name} ({reason}); the end of {self.job.log}:{lines}"


@dataclass(frozen=True)
class _Started:
    """A run with the time at which it started, in seconds, and the rounds done by then."""

    job: Job
    time: float
    rounds: int


class Board:
    """Counts runs and reports their progress.

    Args:
        folder: where runs record their rounds.
        jobs: runs to be made.
        done: number of runs that were finished before.
        workers: runs at a time.
        out: where to write; the terminal by default.
    """

    def __init__(
        self, folder: ComparisonFolder, jobs: Sequence[Job], done: int, workers: int, out: TextIO | None = None
    ) -> None:
        self.failures: list[Failure] = []
        self.interrupted: list[Job] = []
        self._folder, self._workers, self._out = folder, workers, out or sys.stdout
        self._waiting, self._running = {job.name: job for job in jobs}, dict[str, _Started]()
        self._done, self._total = done, done + len(jobs)
        self._ended: list[tuple[Combination, float]] = []
        self._live, self._drawn = self._out.isatty(), 0.0

    def started(self, job: Job) -> None:
        self._waiting.pop(job.name, None)
        rounds = self._folder.rounds_done(job.name)
        self._running[job.name] = _Started(job, time.monotonic(), rounds)
        if not self._live:
            self._print(f"resumed {job.name} after round {rounds}" if rounds else f"started {job.name}")

    def ended(self, job: Job, code: int, stopping: bool = False) -> None:
        """Record the end of a job with its exit code; `stopping` where it was asked to stop."""
        self._waiting.pop(job.name, None)
        started = self._running.pop(job.name, None)
        seconds = time.monotonic() - started.time if started else 0.0
        if job.summary.is_file() and code == 0:
            self._done += 1
            self._ended.append((job.combination, seconds))
            if not self._live:
                self._print(f"finished {job.name} in {in_words(seconds)}; {self.status()}")
        elif stopping:
            self.interrupted.append(job)
        else:
            self.failures.append(Failure(job, code))
            self._print(str(self.failures[-1]))

    def tick(self) -> None:
        """Redraw the status line of a terminal."""
        if self._live and time.monotonic() - self._drawn > 0.5:  # seconds between two updates
            self._drawn = time.monotonic()
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{self.status()[:width]}")

    def close(self) -> None:
        """Clear the status line."""
        if self._live and self._drawn:
            self._write("\r\x1b[K")

    def status(self) -> str:
        """Counts, estimated time left and running jobs in one line."""
        parts = [f"{self._done} of {self._total} done"]
        parts += [f"{len(self.failures)} failed"] * bool(self.failures)
        now = [self._running_now(started) for started in self._running.values()]
        left = seconds_left([job.combination for job in self._waiting.values()], now, self._ended, self._workers)
        parts += [] if left is None or not (self._running or self._waiting) else [f"about {in_words(left)} left"]
        running = [self._progress(started) for started in self._running.values()]
        parts += [f"running {', '.join(running)}"] * bool(running)
        return "; ".join(parts)

    def _progress(self, started: _Started) -> str:
        name, rounds = started.job.name, started.job.rounds
        done = self._folder.rounds_done(name)
        if rounds and done >= rounds:
            return f"{name} ({self._folder.last_progress(name) or 'closing'})"
        return f"{name} (round {done}{f' of {rounds}' if rounds else ''})"

    def _running_now(self, started: _Started) -> Running:
        ahead = (started.job.rounds or 0) - started.rounds
        since = self._folder.rounds_done(started.job.name) - started.rounds
        fraction = min(1.0, max(0.0, since / ahead)) if ahead > 0 else None
        return Running(started.job.combination, time.monotonic() - started.time, fraction)

    def _print(self, text: str) -> None:
        self._write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
