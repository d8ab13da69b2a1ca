"""Jobs that a preloaded process forks: what they see, how they end, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from comparison_kit import alive, comes, fake_job
from process_kit import ROOT, preloaded, python_path, started

from app.experiments.engines.preloaded import FIT, Preloaded
from app.experiments.engines.processes import MODULE, Job, Resources, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked elsewhere")

PROBE = """
import json, os, random, signal, sys, time
seen = {
    "arguments": sys.argv,
    "main": sys.modules["__main__"].__spec__.name,
    "program": [sys.executable, sys.flags.safe_path],
    "path": sys.path,
    "folder": os.getcwd(),
    "environment": {**os.environ, "WANDB_TAGS": ""},
    "cores": sorted(os.sched_getaffinity(0)),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    "leader": os.getpgid(0) == os.getpid(),
    "terminal": os.isatty(0),
    "random": random.random(),
}
if "torch" in sys.modules:
    torch, numpy = sys.modules["torch"], sys.modules["numpy"]
    server = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
    seen["tasks"] = len(os.listdir(f"/proc/{server}/task"))
    seen["cuda"] = [torch.cuda.is_initialized(), torch.cuda._cached_device_count, torch.cuda._is_in_bad_fork()]
    seen["threads"] = torch.get_num_threads()
    seen["numpy"] = numpy.random.random()
    staging = sys.modules["wandb.sdk.data_types._private"].MEDIA_TMP.name
    seen["staging"] = [staging, os.path.isdir(staging)]
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
print("first")
print("second", file=sys.stderr, flush=True)
if sys.argv[2] == "wait":
    child = os.fork()
    if child:
        with open(sys.argv[1] + ".pids", "w") as file:
            print(os.getpid(), child, os.getppid(), file=file)
    time.sleep(120)
raise SystemExit(int(sys.argv[2]))
"""
PARENT = """
import json, pathlib, sys
from app.experiments.engines.preloaded import Preloaded
from app.experiments.engines.processes import Job, Resources
modules, jobs = json.loads(sys.argv[1])
with Preloaded(modules) as preloaded:
    started = []
    for threads, fields in jobs:
        paths = {key: pathlib.Path(fields.pop(key)) for key in ("log", "lock", "summary", "home")}
        started.append(preloaded.start(Job(**fields, **paths), Resources(threads)))
    print(getattr(preloaded._server, "pid", None), *(type(one).__name__ for one in started), flush=True)
    assert [one.wait() for one in started] == [0] * len(started)
"""
"""Takes the modules to be loaded, and jobs with their numbers of threads."""

OWN = ("arguments", "random", "numpy", "staging")
"""What differs between two jobs."""


@pytest.fixture
def probe(folder, tmp_path, monkeypatch):
    """Makes jobs that write down what they see, and end with some exit code."""
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))

    def made(name: str, code: int | str = 0) -> Job:
        command = (*MODULE, "probe", str(tmp_path / name), str(code))
        files = {"log": folder.log(name), "lock": folder.run_lock(name), "summary": tmp_path / "summary.json"}
        return Job(name=name, combination=("a", "b", "c"), command=command, workers=2, home=tmp_path, **files)

    return made


def seen(tmp_path: Path, name: str) -> dict:
    """What a job has seen, without what differs between jobs."""
    return {key: value for key, value in json.loads((tmp_path / name).read_text()).items() if key not in OWN}


def test_a_forked_run_sees_what_a_spawned_one_sees(probe, folder, tmp_path, monkeypatch):
    """Arguments, main module, paths, environment, cores, signals, output and exit code."""
    monkeypatch.setenv("WANDB_RUN_ID", "that of a sweep")
    share = Resources(2, (sorted(os.sched_getaffinity(0))[0],), "3", 1)
    assert start(probe("spawned", 3), share).wait() == 3
    with Preloaded(()) as preloaded:
        assert preloaded.start(probe("forked", 3), share).wait() == 3
    assert seen(tmp_path, "forked") == seen(tmp_path, "spawned")
    arguments = json.loads((tmp_path / "forked").read_text())["arguments"]
    assert arguments[0] == str(tmp_path / "probe.py")
    assert arguments[2:] == ["3", "--model.workers", "2", "--trainer.devices", "1"]
    logs = [folder.log(name).read_text().replace(f"/{name} ", "/ ") for name in ("forked", "spawned")]
    assert logs[0] == logs[1]
    assert logs[0].startswith("$ ")
    assert sorted(logs[0].splitlines()[1:]) == ["first", "second"]


def asked(modules, *jobs: tuple[int, Job]) -> str:
    """The argument of `PARENT`."""
    return json.dumps([modules, [(threads, asdict(job)) for threads, job in jobs]], default=str)


def test_libraries_are_loaded_and_nothing_is_begun(probe, folder, tmp_path):
    """The preloaded process has one thread and no device; every run has its threads, and random numbers of its own.

    Libraries are loaded by the process that programs of tests are forked from, which then must have one thread, too.
    """
    (tmp_path / "parent.py").write_text(PARENT)
    jobs = (1, probe("one")), (1, probe("two")), (2, fake_job(folder, "three"))
    log, path = tmp_path / "log", python_path(tmp_path)
    program = started(tmp_path / "parent.py", asked(FIT, *jobs), out=log, PYTHONPATH=path)
    assert program.wait() == 0, log.read_text()
    assert log.read_text().split()[-1] == "Popen", "libraries were loaded for one thread"
    assert len(list(Path(f"/proc/{preloaded().pid}/task").iterdir())) == 1
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert one["tasks"] == 1
    assert one["cuda"] == [False, None, False]
    assert one["threads"] == 1
    assert one["random"] != two["random"]
    assert one["numpy"] != two["numpy"]
    assert one["staging"] != two["staging"], "wandb deletes its folder at the end of a run"
    assert one["staging"][1]
    assert two["staging"][1]


def test_nothing_outlives_a_killed_parent(probe, tmp_path):
    """After kill -9: neither the run, nor a process that it started, nor its supervisor, nor the preloaded process."""
    command = [sys.executable, "-c", PARENT, asked((), (1, probe("killed", "wait")))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert comes((tmp_path / "killed.pids").exists)
        assert comes(lambda: (tmp_path / "killed.pids").read_text().endswith("\n"))
        pids = [int(parent.stdout.readline().split()[0]), *map(int, (tmp_path / "killed.pids").read_text().split())]
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert comes(lambda: not any(map(alive, pids)))


def test_a_killed_preloaded_process_takes_its_runs_along(probe, tmp_path):
    """They count as killed, and the next one starts without it."""
    with Preloaded(()) as preloaded:
        run = preloaded.start(probe("killed", "wait"), Resources(1))
        assert comes((tmp_path / "killed.pids").exists)
        preloaded._server.kill()
        assert run.wait() == -signal.SIGKILL
        assert preloaded.start(probe("next", 4), Resources(1)).wait() == 4


def test_a_module_that_cannot_be_imported(probe, folder):
    """Every run says so itself, as without a preloaded process; the command stands in its log once."""
    with Preloaded(("there_is_no_such_module",)) as preloaded:
        assert preloaded.start(probe("a", 5), Resources(1)).wait() == 5
    assert folder.log("a").read_text().count("$ ") == 1
