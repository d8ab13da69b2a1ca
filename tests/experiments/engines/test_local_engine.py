"""Jobs on this machine, with a tiny program in the place of `rampart fit`."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict

import pytest
from comparison_kit import alive, board_of, comes, fake_job

from app.common.errors import UserError
from app.common.signals import hangup_terminates
from app.experiments.engines.local_engine import LocalEngine, local_shares, workers_for
from app.experiments.engines.processes import Resources, StopRequest, environment, last_lines, start
from app.experiments.engines.supervisor import BUSY

PARENT = """
import json, pathlib, sys
from app.experiments.engines.processes import Job, Resources, start
fields = json.loads(sys.argv[1])
paths = {key: pathlib.Path(fields.pop(key)) for key in ("log", "lock", "summary", "home")}
start(Job(**fields, **paths), Resources(1)).wait()
"""
ADJUSTED = """
import sys
from app.experiments.engines import supervisor
supervisor.{} = 0.5
sys.exit(supervisor.main(sys.argv[1:]))
"""


def seen(folder, name):
    """Lines that the program left, one per start, in words."""
    return [line.split() for line in (folder.run(name) / "seen").read_text().splitlines()]


def run(folder, jobs, workers=1, stop=None):
    """Run jobs; returns the board and what it wrote."""
    board, out = board_of(folder, jobs, workers)
    LocalEngine(local_shares(workers, (0,)), ()).run(jobs, board, stop or StopRequest())
    return board, out.getvalue()


class StopWhen(StopRequest):
    """Asks to stop as soon as a condition holds, and again when a second one does."""

    def __init__(self, *conditions):
        super().__init__()
        self.conditions = list(conditions)

    @property
    def requested(self):
        if self.conditions and self.conditions[0]():
            self.conditions.pop(0)
            self._count(signal.SIGINT, None)
        return self.count > 0


def test_failures_do_not_stop_the_others(folder):
    """One run fails, one crashes, two finish; the reasons are reported."""
    jobs = [
        fake_job(folder, name, how) for name, how in zip("abcd", ("fail", "finish", "crash", "finish"), strict=True)
    ]
    board, output = run(folder, jobs)
    assert [(failure.job.name, failure.code) for failure in board.failures] == [("a", 1), ("c", 128 + signal.SIGKILL)]
    assert all(folder.run(name).joinpath("summary.json").is_file() for name in "bd")
    assert "    first line\n    the reason\n" in output
    assert board.status() == "2 of 4 done; 2 failed"


def testenvironment_of_a_run(folder):
    """Threads, tags, the cores it is bound to, and no number of workers where the cores tell it."""
    own = sorted(os.sched_getaffinity(0))[0]
    start(fake_job(folder, "a"), Resources(3, (own,))).wait()
    assert seen(folder, "a")[0][1:] == ["3", "digits,a,none", f"[{own}]", "[]"]
    start(fake_job(folder, "b"), Resources(3)).wait()
    assert seen(folder, "b")[0][-2:] == ["['--model.workers',", "'3']"]
    start(fake_job(folder, "c", begun=True, workers=2), Resources(3)).wait()
    assert seen(folder, "c")[0][-2:] == ["['--model.workers',", "'2']"]
    start(fake_job(folder, "d", begun=True), Resources(3)).wait()
    assert seen(folder, "d")[0][-1] == "[]"


@pytest.mark.parametrize(
    ("workers", "cores", "expected"),
    [
        (2, (0, 1), [(1, (0,)), (1, (1,))]),
        (2, (0, 1, 2, 5, 6), [(2, (0, 1)), (2, (2, 5, 6))]),
        (1, (0, 1, 2), [(3, (0, 1, 2))]),
        (3, (4, 7), [(1, (4,)), (1, (4,)), (1, (7,))]),
    ],
)
def test_cores_are_shared_out(workers, cores, expected):
    """Every core to one worker; the threads of all are never more than the cores, unless there are fewer cores."""
    shares = local_shares(workers, cores)
    assert [share.threads for share in shares] == [threads for threads, _ in expected]
    assert {core for share in shares for core in share.cores} == set(cores)
    if workers <= len(cores):
        assert [share.cores for share in shares] == [own for _, own in expected]


def test_one_device_each():
    """Dealt in turn."""
    assert [share.device for share in local_shares(3, (0,), ("4", "6"))] == ["4", "6", "4"]


@pytest.mark.parametrize(
    ("workers", "per_run", "expected"),
    [
        (2, 2, [("4,6", 2), ("7,9", 2)]),
        (1, 4, [("4,6,7,9", 4)]),
        (4, 1, [("4", 1), ("6", 1), ("7", 1), ("9", 1)]),
        (5, 0.5, [("4", 1), ("6", 1), ("7", 1), ("9", 1), ("4", 1)]),
    ],
)
def test_several_devices_or_a_part_of_one(workers, per_run, expected):
    """No two runs have a whole device in common; runs that share devices are spread over all of them."""
    shares = local_shares(workers, (0,), ("4", "6", "7", "9"), per_run)
    assert [(share.device, share.trained_on) for share in shares] == expected


@pytest.mark.parametrize(
    ("wanted", "gpus", "per_run", "expected"),
    [
        (None, 4, 2, 2),
        (None, 5, 2, 2),
        (None, 2, 0.5, 4),
        (None, 2, 0.3, 6),
        (3, 4, 2, 2),  # not more than the GPUs suffice for
        (1, 4, 2, 1),
        (None, 4, None, 4),
        (8, 4, None, 8),  # as before, two runs then share a GPU
    ],
)
def test_runs_at_a_time(wanted, gpus, per_run, expected):
    """By the GPUs of each run, and never more than there are jobs."""
    devices = tuple(map(str, range(gpus)))
    assert workers_for(20, wanted, devices, per_run) == expected
    assert workers_for(1, wanted, devices, per_run) == 1


@pytest.mark.parametrize(
    ("gpus", "message"), [(2, "more than 2 GPUs(.|\n)*give 2 or less"), (0, "a GPU(.|\n)*on the CPU")]
)
def test_more_devices_than_there_are(gpus, message):
    """The message says how many there are."""
    with pytest.raises(UserError, match=f"--gpus_per_run is 3, and no machine has {message}"):
        workers_for(20, None, tuple(map(str, range(gpus))), 3)


def test_devices_of_a_run(folder, monkeypatch):
    """The GPUs that it may see, and how many its trainer uses."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    start(fake_job(folder, "a"), Resources(1, (0,), "2,3", 2)).wait()
    assert "['--trainer.devices', '2']" in (folder.run("a") / "seen").read_text()
    assert environment(fake_job(folder, "a"), Resources(1, (0,), "2,3", 2))["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_interrupt_lets_runs_end_by_themselves(folder):
    """The one at work is interrupted once, the next one is not started, and neither counts as failed."""
    jobs = [fake_job(folder, "a", "slow"), fake_job(folder, "b")]
    board, _ = run(folder, jobs, stop=StopWhen(lambda: (folder.run("a") / "seen").exists()))
    assert (folder.run("a") / "interrupted").exists()
    assert not folder.run("b").exists()
    assert board.failures == []
    assert [job.name for job in board.interrupted] == ["a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_stops_a_comparison(number, folder):
    """As a request to terminate does: runs at work are interrupted, and count as such."""
    jobs = [fake_job(folder, "a", "slow"), fake_job(folder, "b")]
    board, _ = board_of(folder, jobs)
    seen_run = folder.run("a") / "seen"
    waiting = threading.Thread(target=lambda: comes(seen_run.exists) and os.kill(os.getpid(), number))
    with hangup_terminates(), StopRequest() as stop:
        waiting.start()
        LocalEngine([Resources(1)], ()).run(jobs, board, stop)
    waiting.join()
    assert (folder.run("a") / "interrupted").exists()
    assert not folder.run("b").exists()
    assert [job.name for job in board.interrupted] == ["a"]


def test_a_supervisor_passes_a_hangup_on(folder):
    """Its run ends like an interrupted one instead of going on alone."""
    process = start(fake_job(folder, "a", "slow"), Resources(1))
    try:
        assert comes((folder.run("a") / "seen").exists)
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 130
    finally:
        process.kill()
    assert (folder.run("a") / "interrupted").exists()


def test_second_interrupt_does_not_wait(folder):
    """A run that does not listen is killed."""
    ignoring = folder.run("a") / "ignoring"
    stop = StopWhen(ignoring.exists, lambda: True)
    board, _ = run(folder, [fake_job(folder, "a", "stubborn")], stop=stop)
    assert [job.name for job in board.interrupted] == ["a"]
    assert not alive(int(seen(folder, "a")[0][0]))


def test_an_interrupt_that_is_lost_is_sent_again(tmp_path):
    """Python drops an interrupt that arrives in a destructor; the run would go on to its end."""
    deaf = (
        "import pathlib, signal, sys, time\n"
        "def first(*_):\n"
        "    signal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
        "signal.signal(signal.SIGINT, first)\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    hasty = ADJUSTED.format("REPEAT")
    lock = str(tmp_path / "lock")
    command = [sys.executable, "-c", hasty, str(os.getpid()), lock, "", "--", sys.executable, "-c", deaf]
    process = subprocess.Popen(command)
    try:
        assert comes((tmp_path / "ready").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 7
    finally:
        process.kill()


def test_runs_do_not_outlive_their_parent(folder):
    """After kill -9 of the parent, the run is gone, and its lock is free."""
    fields = json.dumps(asdict(fake_job(folder, "a", "slow")), default=str)
    process = subprocess.Popen([sys.executable, "-c", PARENT, fields])
    try:
        assert comes((folder.run("a") / "seen").exists)
        pid = int(seen(folder, "a")[0][0])
        assert alive(pid)
    finally:
        process.kill()
        process.wait()
    assert comes(lambda: not alive(pid))
    assert start(fake_job(folder, "a"), Resources(1)).wait() == 0


def test_a_run_at_work_is_not_started_twice(folder, monkeypatch):
    """The second process gives up and says who is there."""
    first = start(fake_job(folder, "a", "slow"), Resources(1))
    try:
        assert comes((folder.run("a") / "seen").exists)
        pid = seen(folder, "a")[0][0]
        impatient = ADJUSTED.format("PATIENCE")
        second = [sys.executable, "-c", impatient, str(os.getpid()), str(folder.run_lock("a")), "", "--", "false"]
        ended = subprocess.run(second, capture_output=True, text=True)
        assert ended.returncode == BUSY
        assert f"another process ({pid})" in ended.stdout
        assert len(seen(folder, "a")) == 1
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait()


def test_last_lines_of_a_log(tmp_path):
    """Without empty lines, and without what a progress bar has overwritten."""
    log = tmp_path / "log"
    assert last_lines(log) == []
    log.write_bytes(b"one\n\n 10%\r 20%\r100%\n\xff two\n\n")
    assert last_lines(log, 2) == ["100%", "\ufffd two"]
