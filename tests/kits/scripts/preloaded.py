"""Imports what programs of ours need, then forks one per request: `preloaded.py`, with requests and answers as lines.

A request `{"arguments": [...], "environment": {...}, "home": "...", "out": "..."}` is answered by the process id of a
program, a process id by its exit code, or null as long as it runs.
"""

import json
import os
import runpy
import signal
import sys

import app.auditing
import app.commands.compare
import app.commands.fit
import app.commands.report  # noqa: F401  all are here to be loaded


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
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(arguments[0]))  # noqa: PTH120
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def answer(request):
    """What a request is answered by, None in a forked process."""
    if isinstance(request, dict):
        return os.fork() or None
    pid, status = os.waitpid(request, os.WNOHANG)
    return json.dumps(os.waitstatus_to_exitcode(status) if pid else None)


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if (reply := answer(request)) is None:
            become(**request)
            break
        print(reply, flush=True)
