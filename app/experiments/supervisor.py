"""Runs a command that ends with its parent process, however that ends, and keeps a file locked until then.

`python -m app.experiments.supervisor PARENT LOCK CORES -- COMMAND ...`: an interrupt is passed on to the command and
all its processes, SIGHUP too, as an interrupt; a request to terminate, and the end of the parent, kill them.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

PATIENCE = 30.0
"""Seconds to wait for an earlier process of the same run, which may be about to end."""

PAUSE = 0.2
"""Seconds between two looks at the parent."""

REPEAT = 5.0
"""Seconds after which a running command is interrupted again: Python loses an interrupt during a destructor."""

BUSY = 75
"""Exit code where an earlier process of the same run is still alive."""


def main(arguments: Sequence[str]) -> int:
    """Run and watch the command; returns its exit code, 128 and the signal's number where a signal ended it."""
    parent, lock, cores = int(arguments[0]), Path(arguments[1]), arguments[2]
    command = arguments[4:]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    with lock.open("a+") as file:
        if not _acquired(file, parent):
            print(f"another process ({lock.read_text().strip()}) still works on this run", flush=True)
            return BUSY
        return _watched(command, parent, file)


def _acquired(file: IO[str], parent: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and os.getppid() == parent:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE)
    return False


def _watched(command: Sequence[str], parent: int, file: IO[str]) -> int:
    """The command's processes inherit the lock, so that it is free only when all of them are gone."""
    child = subprocess.Popen(command, start_new_session=True, pass_fds=(file.fileno(),))  # noqa: S603  our own command
    interrupted = math.inf

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = time.monotonic()
        _signal(child.pid, signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    signal.signal(signal.SIGTERM, lambda *_: _signal(child.pid, signal.SIGKILL))
    file.truncate(0)
    file.write(f"{child.pid}\n")
    file.flush()
    while True:
        try:
            code = child.wait(PAUSE)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() - interrupted > REPEAT:
                interrupt()
            if os.getppid() != parent:
                _signal(child.pid, signal.SIGKILL)
    _signal(child.pid, signal.SIGKILL)  # helpers that the command left behind
    return code if code >= 0 else 128 - code


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
