"""Progress of long work: a bar on a terminal, lines elsewhere, and the same lines in a file of the run's folder.

Work is a `Step`, or items that are tracked (`track`). Lines are written within `reported` only: a run or a command
enters it and says where they go. On a terminal there are bars in any case, as long as nobody has asked for silence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TextIO, TypeVar

from tqdm import tqdm

from app.common.files import append_text

T = TypeVar("T")

PROGRESS_LOG = "progress.log"
"""File in a run's folder that lines of progress are added to."""

TIME_WIDTH = len("2000-01-01 00:00:00 ")
"""Characters of the time before a line in that file."""

PAUSE = 10.0
"""Seconds between two lines of one step."""


@dataclass(frozen=True)
class Output:
    """Where progress goes.

    Attributes:
        bars: whether bars may be shown on a terminal.
        stream: where lines are printed; None for nowhere.
        log: file that lines are added to, with the time of day; None for none.
    """

    bars: bool = True
    stream: TextIO | None = None
    log: Path | None = None

    def write(self, line: str) -> None:
        """Print a line and add it to the file, as far as they can be written: no run fails for its progress."""
        if self.stream is not None:
            with suppress(OSError, ValueError):
                print(line, file=self.stream, flush=True)
        self.keep(line)

    def keep(self, line: str) -> None:
        """Add a line to the file only."""
        if self.log is not None:
            with suppress(OSError):
                append_text(self.log, f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {line}\n")


_OUTPUT: ContextVar[Output | None] = ContextVar("output", default=None)


def output() -> Output:
    """Where progress goes now."""
    return _OUTPUT.get() or Output()


@contextmanager
def reported(shown: bool, log: Path | None = None) -> Iterator[None]:
    """Within it, steps report their progress; where one is entered within another, the outer one decides.

    Args:
        shown: on the terminal, as bars where it is one and as lines where output goes to a file or pipe.
        log: file that lines are added to.
    """
    if _OUTPUT.get() is not None:
        yield
        return
    lines = shown and not sys.stderr.isatty()
    token = _OUTPUT.set(Output(shown, sys.stdout if lines else None, log))
    try:
        yield
    finally:
        _OUTPUT.reset(token)


class Step:
    """Long work of so many parts, to be used as a context; `update` counts the parts done.

    Lines are written when it starts, every ten seconds and when it ends; those of work that is mostly short only after
    `delay` seconds. An error that leaves it is noted with what was being done.

    Args:
        what: the work, such as `shadow federations`.
        total: number of its parts; None where that is unknown.
        unit: of the parts, such as `epochs`.
        delay: seconds before the bar, or the first line; 0 for a line at once.
        shown: whether a bar may be shown.
    """

    def __init__(
        self, what: str, total: int | None = None, unit: str = "", delay: float = 1.0, shown: bool = True
    ) -> None:
        self.what, self.total, self.unit, self.delay = what, total, unit, delay
        self.done = 0
        self._output = output()
        self._started = time.monotonic()
        self._written = -PAUSE if delay else self._started
        self._any, self._last = False, -1
        disable = None if self._output.bars and shown else True
        suffix = f" {unit}" if unit else "it"
        self._bar = tqdm(desc=what, total=total, unit=suffix, delay=delay, leave=False, disable=disable)

    def __enter__(self) -> Step:
        if not self.delay:
            self._write(self.line())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if error is not None:
            error.add_note(self.line())
        elif self._any and self.done != self._last:
            self._write(self.line())

    def update(self, count: int = 1) -> None:
        """Count parts as done."""
        self.done += count
        self._bar.update(count)
        now = time.monotonic()
        if now - self._started >= self.delay and now - self._written >= PAUSE:
            self._write(self.line())

    def begin(self, part: str) -> None:
        """Say which part comes next, at once."""
        self._bar.set_postfix_str(part)
        self._write(self.line(part))

    def line(self, part: str = "") -> str:
        """What is done, how many of how many, and how much time is left at the pace so far."""
        number = self.done + bool(part)
        counted = "" if self.total is None else f"{number} of {self.total}{f' {self.unit}' if self.unit else ''}"
        parts = [counted, part, self._left()]
        details = ", ".join(text for text in parts if text)
        return f"{self.what}: {details}" if details else self.what

    def _left(self) -> str:
        if not self.done or self.total is None or self.done >= self.total:
            return ""
        return f"about {in_words((time.monotonic() - self._started) / self.done * (self.total - self.done))} left"

    def _write(self, line: str) -> None:
        self._any, self._written, self._last = True, time.monotonic(), self.done
        self._output.write(line)


def track(
    items: Iterable[T],
    what: str,
    unit: str = "",
    *,
    total: int | None = None,
    name: Callable[[T], str] | None = None,
    delay: float = 1.0,
) -> Iterator[T]:
    """The items, whose progress is that of a `Step`; with `name`, each is named in a line when it begins."""
    count = len(items) if total is None and isinstance(items, Sized) else total
    with Step(what, count, unit, delay if name is None else 1.0) as step:
        for item in items:
            if name is not None:
                step.begin(name(item))
            yield item
            step.update()


def in_words(seconds: float) -> str:
    """A duration such as `40 s`, `3 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
