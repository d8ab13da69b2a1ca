"""Programs that tests start as processes of their own, forked from one that has imported what they need."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


def python_path(*folders: Path) -> str:
    """`PYTHONPATH` of a started process: the product, the kits, and more folders."""
    return os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "kits", *folders)))


class Program:
    """A program at work, as `subprocess.Popen` would show it."""

    def __init__(self, ask, pid):
        self._ask, self.pid, self.returncode = ask, pid, None

    def poll(self):
        """The exit code, None as long as it runs."""
        if self.returncode is None:
            self.returncode = self._ask(self.pid)
        return self.returncode

    def wait(self, seconds=600):
        """The exit code."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"process {self.pid} has not ended after {seconds} s")
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Without warning."""
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """Starts programs from a process of a Python that has imported the product."""

    def __init__(self, *options, python=sys.executable, home=ROOT, **environment):
        self._server = subprocess.Popen(
            [python, "-P", str(SCRIPTS / "preloaded.py"), *options],
            cwd=home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        """Of the process itself."""
        return self._server.pid

    def _ask(self, request):
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, *arguments, environment, out, home="."):
        """What `python ARGUMENTS` starts, in the environment, with its output at the end of a file."""
        out.touch()
        request = {"arguments": list(map(str, arguments)), "environment": environment}
        return Program(self._ask, self._ask({**request, "home": str(Path(home).absolute()), "out": str(out)}))


@functools.cache
def preloaded():
    """The process that programs of this worker are forked from."""
    return Preloaded("short", **{**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"})


def started(*arguments, out, **variables):
    """A program with the tested product in reach, and further environment variables."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", **variables}
    return preloaded().start(*arguments, environment=environment, out=out)


def on_two_processes(script: Path, place: Path, *options: str) -> None:
    """Run `script 2 place options` as Lightning does, in a process per rank; a deadlock ends in a timeout."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ours = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
    ours |= {"PYTHONWARNINGS": "ignore"}
    log = place / "log"
    ranks = [started(script, "2", place, *options, out=log, LOCAL_RANK=rank, **ours) for rank in ("0", "1")]
    try:
        for rank in ranks:
            assert rank.wait(180) == 0, log.read_text()[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
