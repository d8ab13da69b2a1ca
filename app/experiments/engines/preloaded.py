"""Starts runs from a process that has imported what they need: a run then starts at once instead of after seconds.

That process forks one supervisor per run, which forks the run (`supervisor.py`). It is our own and not the fork server
of `multiprocessing`, of which a program has only one: that one imports the caller's main module into every process,
prefers modules of the working folder to ours, and takes over the threads of the caller instead of those of a run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from app.common.leaving import leave  # isort: skip  before all libraries
from app.experiments.engines.processes import MODULE, Job, Process, Resources, environment, logged_command, spawned
from app.experiments.engines.supervisor import supervise

FIT = ("app.commands.fit", "app.federation.execution.vectorised", "wandb")
"""Modules that a run imports. A function `preload` of a module does what else all runs would do, such as parsers."""

PAUSE = 0.05
"""Seconds between two looks at the processes."""


class Request(NamedTuple):
    """What is to be run, and how."""

    command: Sequence[str]
    environment: dict[str, str]
    home: Path  # working folder
    log: Path  # file that output is appended to
    lock: Path  # file that is kept locked
    cores: tuple[int, ...]  # cores to be bound to; empty for any


class Preloaded:
    """Starts jobs from one process that has imported some modules; by themselves where there can be no such process.

    Args:
        modules: those to be imported.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None
        self._threads = 0  # that libraries of the process were loaded for
        self._codes: dict[int, int] = {}  # exit codes by process

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._channel is not None and self._server is not None:
            self._channel.close()
            self._server.wait()

    def start(self, job: Job, share: Resources) -> Process:
        """Start a job in a session of its own; it ends when this process ends. To be called in the main thread."""
        command = logged_command(job, share)
        if self._channel is None and sys.platform == "linux":  # libraries of other systems do not survive a fork
            self._channel = self._launch(job, share)
        if self._channel is None or share.threads != self._threads:
            return spawned(job, share, command)
        try:
            self._channel.send(Request(command, environment(job, share), job.home, job.log, job.lock, share.cores))
            while (message := self._channel.recv())[1] is not None:
                self._codes.update([message])
        except (EOFError, OSError):  # a module cannot be imported, which the run then says itself
            return spawned(job, share, command)
        return _Forked(message[0], self)

    def code(self, pid: int) -> int | None:
        """Exit code of a process that was started, once; None where it has not ended."""
        assert self._channel is not None
        try:
            while self._channel.poll():
                self._codes.update([self._channel.recv()])
        except (EOFError, OSError):  # with the preloaded process, all runs end
            return self._codes.pop(pid, -signal.SIGKILL)
        return self._codes.pop(pid, None)

    def _launch(self, job: Job, share: Resources) -> Connection:
        self._threads = share.threads
        ours, theirs = Pipe()
        with theirs:
            self._server = subprocess.Popen(  # noqa: S603  our own command
                [*MODULE, "app.experiments.engines.preloaded", str(theirs.fileno()), *self._modules],
                cwd=job.home,
                env=environment(job, share),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return ours


class _Forked:
    """A process that the preloaded one has forked."""

    def __init__(self, pid: int, origin: Preloaded) -> None:
        self._pid, self._origin = pid, origin
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._origin.code(self._pid)
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(PAUSE)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)


def main(arguments: Sequence[str]) -> None:
    """Import the named modules, then serve the channel with the given file number, until it closes."""
    channel, server = Connection(int(arguments[0])), os.getpid()
    gc.disable()  # a collection would write to memory that all runs share
    for name in arguments[1:]:
        module = importlib.import_module(name)
        if preload := getattr(module, "preload", None):
            preload()
    gc.freeze()
    request = _next_request(channel)
    if request is None:
        os._exit(0)
    channel.close()
    _prepare(request)
    supervise(request.lock, server, request.cores)
    _run(request.command)


def _next_request(channel: Connection) -> Request | None:
    """Fork a process for every request; returns the request in that process, and None here when the channel closes."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            if channel.poll(PAUSE):
                request: Request = channel.recv()
                pid = os.fork()
                if not pid:
                    return request
                channel.send((pid, None))
            for ended in _ended():
                channel.send(ended)
    return None


def _ended() -> Iterator[tuple[int, int]]:
    """Forked processes that have ended, with their exit codes."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _prepare(request: Request) -> None:
    """Give this process a session, and the environment, folder and output of a run."""
    os.setsid()
    os.chdir(request.home)
    os.environ.clear()
    os.environ.update(request.environment)
    log = os.open(request.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _run(command: Sequence[str]) -> None:
    """Do in this process what a command does in a process of its own."""
    gc.enable()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python reseeds its own generator; that of torch starts with the same number everywhere
    if staging := sys.modules.get("wandb.sdk.data_types._private"):
        staging.MEDIA_TMP._finalizer.detach()  # the first run to end would delete the folder of all others
        staging.MEDIA_TMP.__init__("wandb-media")
    if tuple(command[: len(MODULE)]) != MODULE:
        os.execvp(command[0], list(command))  # noqa: S606  our own command
    name, *sys.argv[1:] = command[len(MODULE) :]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()  # the last lines of the log, since `leave` ends without remarks of libraries
        leave(1)


if __name__ == "__main__":
    main(sys.argv[1:])
