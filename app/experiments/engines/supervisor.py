"""Watches over a run: it ends with its parent process, however that ends, and keeps a file locked until then.

`python -m app.experiments.engines.supervisor PARENT LOCK CORES -- COMMAND ...`: an interrupt is passed on to the
command and all its processes, SIGHUP too, as an interrupt; a request to terminate and the end of the parent kill them.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NoReturn

PATIENCE = 30.0
"""Seconds to wait for an earlier process of the same run, which may be about to end."""

PAUSE = 0.05
"""Seconds between two looks at the run and the parent."""

REPEAT = 5.0
"""Seconds after which a running command is interrupted again: Python loses an interrupt during a destructor."""

BUSY = 75
"""Exit code where an earlier process of the same run is still alive."""

REQUESTS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Signals that ask to stop."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run and watch the command; exits with its exit code, 128 and the signal's number where a signal ended it."""
    parent, lock, cores = int(arguments[0]), Path(arguments[1]), arguments[2]
    command = arguments[4:]
    supervise(lock, parent, map(int, cores.split(",")) if cores else ())
    os.execvp(command[0], list(command))  # noqa: S606  our own command


def supervise(lock: Path, parent: int, cores: Iterable[int]) -> None:
    """Fork the process of a run, in a group of its own, and watch it; returns in that process only.

    This process exits with the exit code of the run, 128 and the signal's number where a signal ended it, or `BUSY`.
    The run's processes inherit the lock, so that it is free only when all of them are gone.
    """
    if (bound := set(cores)) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, bound)
    with lock.open("a+") as file:
        if not _acquired(file, parent):
            print(f"another process ({lock.read_text().strip()}) still works on this run", flush=True)
            os._exit(BUSY)
        held = os.dup(file.fileno())
    os.set_inheritable(held, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)  # until both processes know what to do about them
    if run := os.fork():
        os._exit(_watched(run, parent, held))
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored, as in a background job
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)


def _acquired(file: IO[str], parent: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and os.getppid() == parent:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE)
    return False


def _watched(run: int, parent: int, lock: int) -> int:
    """Watch a process until it ends; returns its exit code."""
    with contextlib.suppress(OSError):  # the run has done so itself
        os.setpgid(run, run)
    interrupted = math.inf

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = time.monotonic()
        _signal(run, signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    signal.signal(signal.SIGTERM, lambda *_: _signal(run, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    os.truncate(lock, 0)
    os.write(lock, f"{run}\n".encode())
    while (ended := os.waitpid(run, os.WNOHANG)) == (0, 0):
        if time.monotonic() - interrupted > REPEAT:
            interrupt()
        if os.getppid() != parent:
            _signal(run, signal.SIGKILL)
        time.sleep(PAUSE)
    _signal(run, signal.SIGKILL)  # helpers that the run left behind
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code >= 0 else 128 - code


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    main(sys.argv[1:])
