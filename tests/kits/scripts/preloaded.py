"""Imports what programs of ours need, then forks one per request: `preloaded.py`, with requests and answers as lines.

A request `{"arguments": [...], "environment": {...}, "home": "...", "out": "..."}` is answered by the process id of a
program, a process id by its exit code, or null as long as it runs. As `preloaded.py short`, for programs whose runs are
as short as those of tests, in which figures are not drawn, steps not recorded and disks not waited for
(`tests/kits/short_runs.py`).
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from multiprocessing import Pipe
from types import SimpleNamespace

from app.common.leaving import leave  # isort: skip  before all libraries

from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities import rank_zero_only

import app.auditing
import app.commands.compare
import app.commands.report  # noqa: F401  all are here to be loaded
from app.commands import fit
from app.common import files
from app.configuration import run_parser
from app.experiments.engines import preloaded
from app.federation.execution import recorded_step
from app.results.report import drawing, report

THREADS = 1
"""That libraries of this process were loaded for; `OMP_NUM_THREADS` says so."""


def become(arguments, environment, home, out):
    """Make this process what `python ARGUMENTS` is in that environment and folder, with its output in a file."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(home)
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY | os.O_APPEND)):
        os.dup2(os.open(name, flags), number)
    os.dup2(1, 2)
    sys.stdin, sys.stdout, sys.stderr = (open(number, "rw"[number > 0], 1, closefd=False) for number in range(3))  # noqa: SIM115
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    if run_of_a_comparison() or ("ddp" in arguments and second_process(home, out)):
        return
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(arguments[0]))  # noqa: PTH120
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def run_of_a_comparison():
    """Fork the process that a comparison's runs start from, which would otherwise import all of this again.

    Returns whether this process is such a run, which has ended then.
    """
    ours, theirs = Pipe()
    if not (server := os.fork()):
        channel = os.dup(theirs.fileno())
        ours.close()
        theirs.close()  # so that runs, which close the other one, do not keep it open
        preloaded.main([str(channel), *preloaded.FIT])
        return True
    theirs.close()
    launch = preloaded.Preloaded._launch

    def connected(self, job, share):
        if share.threads != THREADS or ours.closed:
            return launch(self, job, share)
        self._threads, self._server = THREADS, SimpleNamespace(wait=lambda: os.waitpid(server, 0))
        return ours

    preloaded.Preloaded._launch = connected
    return False


class Forked:
    """A forked process, as `subprocess.Popen` would show it."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)


def second_process(home, out):
    """Fork the process that becomes what Lightning starts beside the first, which would otherwise import all of this.

    Returns whether this process is that one, which has ended then.
    """
    ours, theirs = Pipe()
    if not (pid := os.fork()):
        ours.close()
        with contextlib.suppress(EOFError):
            command, environment = theirs.recv()
            rank_zero_only.rank = int(environment["LOCAL_RANK"])  # which Lightning reads when it is imported
            become(command[1:], environment, home, out)
        return True
    theirs.close()

    def start(command, env, cwd):
        ours.send((command, env))
        return Forked(pid)

    subprocess_script.subprocess = SimpleNamespace(Popen=start)
    return False


def answer(request):
    """What a request is answered by, None in a forked process."""
    if isinstance(request, dict):
        if "compare" in request["arguments"]:
            for name in preloaded.FIT:  # which all processes of runs would import again
                importlib.import_module(name)
        return os.fork() or None
    pid, status = os.waitpid(request, os.WNOHANG)
    return json.dumps(os.waitstatus_to_exitcode(status) if pid else None)


if __name__ == "__main__":
    run_parser(), run_parser("rampart fit", str(fit.__doc__))  # kept for all programs
    if sys.argv[1:] == ["short"]:
        files.png_bytes, recorded_step.WORTHWHILE = lambda figure: b"", 10**9
        os.fsync = lambda file: None
        report.render_figure = lambda figure: drawing.RenderedFigure(figure, "<svg/>", b"")
    gc.freeze()  # collections of programs would write to memory that all of them share
    for line in sys.stdin:
        request = json.loads(line)
        if (reply := answer(request)) is None:
            become(**request)
            leave(0)
        print(reply, flush=True)
    leave(0)
