"""The competitors of the benchmark do the same work, so that comparing their times is fair."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from process_kit import SCRIPTS, started
from torch.optim import SGD

from app.benchmarks.competitors import rampart, raw_sequence, raw_threads
from app.benchmarks.defenses import METHODS, private_steps
from app.benchmarks.federation import PEERS, peers_table
from app.benchmarks.measurements import BenchmarkRow, Effort, Table, compare
from app.benchmarks.paillier import (
    CLIENTS,
    BenchmarkNet,
    Measured,
    client_table,
    encryption_table,
    measure,
    round_table,
)
from app.benchmarks.scale import MEMORY_ALONE, GrowthTable, Size, _row, measured
from app.benchmarks.waffle import raw_waffle
from app.benchmarks.work import Run, Work
from app.models import CNN, MLP, DataShape, Factorised

# a bias before a batch norm has no gradient but rounding, which Adam would blow up
SMALL_NET = partial(CNN, u=4, bias=False)


@pytest.mark.slow
def test_raw_loop_and_rampart_do_the_same_work():
    work = Work(clients=3, samples=24, batch_size=24, evaluate=True, net=SMALL_NET, tests=64)
    raw, own = raw_threads(work, rounds=2, workers=2), rampart(work, rounds=2)
    assert len(raw.seconds) == len(own.seconds) == 1
    start = rampart(work, rounds=1).vector
    assert (raw.vector - start).abs().max() > 1e-4, "a round must move the model"
    assert (raw.vector - own.vector).abs().max() < 2e-5
    assert abs(raw.correct - own.correct) <= 1, "a tie may fall the other way"


@pytest.mark.slow
def test_mini_batches_come_in_the_same_order():
    work = Work(clients=2, samples=24, batch_size=8, net=SMALL_NET, tests=8)
    raw, own = raw_sequence(work, rounds=1), rampart(work, rounds=1, executor="sequence")
    assert (raw.vector - own.vector).abs().max() < 2e-5


@pytest.mark.slow
def test_worker_processes_do_the_same_work(tmp_path):
    """Three clients on two processes, one of which adds up the first two: bit for bit what one thread gives."""
    program = started(SCRIPTS / "bench_script.py", tmp_path / "found", out=tmp_path / "log")
    assert program.wait() == 0, (tmp_path / "log").read_text()
    processes, threads = torch.load(tmp_path / "found")
    assert torch.equal(processes["vector"], threads["vector"])
    assert processes["correct"] == threads["correct"]
    assert processes["cpu_seconds"][0] > 0


@pytest.fixture
def own_processes(monkeypatch):
    """Counts the processes that are started for competitors, and starts threads in their place."""
    started = []

    def start(count):
        started.append(ThreadPoolExecutor(count))
        return started[-1]

    monkeypatch.setattr("app.benchmarks.measurements.new_processes", start)
    return started


def took(*seconds):
    """A competitor whose runs take so many seconds a round, one after the other, and twice that on all cores."""
    left = iter(seconds)
    return lambda work, rounds: _run(next(left), rounds - 1)


def _run(seconds, rounds):
    return Run((seconds,) * rounds, (2 * seconds,) * rounds, torch.zeros(1))


def test_ratios_are_those_of_runs_in_the_same_turn(own_processes):
    """A machine that is half as fast in one turn changes no ratio; the interval is that of the turns."""
    competitors = {"raw": took(1.0, 2.0, 1.0), "mine": took(1.1, 2.4, 1.3)}
    table = compare("a round", Work(1, 1, 1), competitors, {"mine": 1.25}, Effort(3, 2))
    assert len(own_processes) == 2, "every competitor has a process of its own"
    mine = table.rows[1]
    assert (mine.value, mine.least, mine.cpu) == (1.3, 1.1, 2.6)
    assert mine.ratio == pytest.approx(1.2)
    assert mine.interval == pytest.approx((1.1, 1.3))
    assert mine.met
    assert table.as_json()["rows"][1]["interval"] == pytest.approx([1.1, 1.3])
    assert "1.20  [1.10, 1.30]" in str(table)


def test_the_fastest_setting_of_a_competitor_is_measured_and_named(own_processes):
    settings = {"1 thread": took(3.0), "2 threads": took(2.0, 2.0), "4 threads": took(5.0)}
    table = compare("a round", Work(1, 1, 1), {"raw": settings, "mine": took(1.0)}, {}, Effort(1, 1))
    raw, mine = table.rows
    assert (raw.value, raw.remark) == (2.0, "2 threads, faster than 1 thread, 4 threads")
    assert (mine.ratio, mine.interval, mine.remark) == (0.5, None, "")
    assert len(own_processes) == 4


def test_frameworks_that_are_not_installed_are_skipped_with_a_line(monkeypatch):
    monkeypatch.setattr("app.benchmarks.federation.find_spec", lambda name: None)
    table = peers_table(Work(1, 1, 1), Effort(1, 1))
    assert not table.rows
    assert len(table.remarks) == len(PEERS)
    assert all("not installed, skipped" in line for line in table.remarks)


def test_peers_are_compared_at_their_best(own_processes, monkeypatch):
    peers = {"pfl": {"1 thread": took(6.0), "2 threads": took(4.0, 4.0)}}
    monkeypatch.setattr("app.benchmarks.federation._installed_peers", lambda: peers)
    monkeypatch.setattr("app.benchmarks.federation.rampart", took(2.0))
    table = peers_table(Work(1, 1, 1), Effort(1, 1))
    assert table.remarks[0] == "rampart takes 0.50 x pfl (goal <= 0.7): met"
    assert table.remarks[1].startswith("flower: not installed")


def test_table_shows_whether_goals_are_met():
    rows = (BenchmarkRow("raw", 2.0, 1.9, 3.8, 1.0), BenchmarkRow("mine", 3.0, 2.9, float("nan"), 1.5, goal=1.2))
    table = Table("a round", "s", "raw", rows)
    assert str(table).splitlines()[-1].split() == ["mine", "3.000", "2.900", "1.50", "<=", "1.2", "NO"]
    plain = table.as_json()["rows"]
    assert plain[0]["met"] is None
    assert plain[1]["met"] is False
    assert plain[1]["cpu"] is None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_private_steps_are_measured_beside_a_plain_one():
    """One row per way of clipping, in relation to the plain step, with the goal at the default one."""
    table = private_steps(repeats=1)
    assert [row.name for row in table.rows] == ["plain step", *(f"DP-SGD, {method}" for method in METHODS)]
    assert table.rows[0].ratio == 1
    assert all(row.value > 0 for row in table.rows)
    assert table.rows[1].goal == 1.65


def test_cost_of_encryption_is_put_together_from_its_parts():
    """Ratios, goals and the round follow from the measured parts as their labels say."""
    goals = {"client_goals": {2048: (0.05, 0.8, 0.2)}, "round_goals": {2048: 1.7}}
    net = BenchmarkNet("net", Work(1, 8, 8), 1, (2048,), paper=43, sampled=10, repeats=3, **goals)
    parts = Measured(2048, 512, alone=(0.3, 0.2, 0.4), encrypt=(0.1, 0.2, 9.0), add=1.0, decrypt=4.0, decrypt_cpu=8.0,
                     phe_encrypt=900.0, phe_decrypt=100.0)  # fmt: skip
    client = client_table(net, 2.0, [parts]).rows
    assert [row.ratio for row in client] == pytest.approx([1, 0.15, 0.1, 2.1, 0.2, 2, 0.5, 500])
    assert [row.met for row in client] == [None, None, False, False, True, None, None, None]
    rows = round_table(net, 2.0, [parts]).rows
    assert [row.value for row in rows] == pytest.approx([20, 20 + 20 * 0.2 + 1 + 4])
    assert rows[1].met
    encryption = encryption_table(net, 100, [parts]).rows
    assert [row.ratio for row in encryption] == pytest.approx([3000, 1, 2 / 3])
    assert encryption[2].remark == "4500 times as fast as phe"


def test_encryption_is_measured_on_whole_updates(monkeypatch):
    """The sum is checked while it is measured, and every part takes time."""
    monkeypatch.setattr("app.benchmarks.paillier.WARM_UP", 0.0)
    net = BenchmarkNet("net", Work(1, 8, 8), 1, (1024,), paper=43, sampled=3, repeats=2)
    measured = measure(1024, np.linspace(-2, 2, 3000, dtype=np.float32), net)
    assert len(measured.alone) == len(measured.encrypt) == 2
    assert measured.bytes == 75 * 256, "40 values of 25 bits in each of the ciphertexts"
    assert CLIENTS == 20
    assert measured.phe_encrypt > max(measured.alone)
    assert (
        min(
            measured.add,
            measured.decrypt,
            measured.decrypt_cpu,
            measured.phe_decrypt,
            *measured.alone,
            *measured.encrypt,
        )
        > 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequence", "vectorised"])
def test_raw_waffle_and_rampart_do_the_same_work(executor):
    """The loop written by hand ends with the same shared factors, noise and private choices included."""
    net = partial(Factorised, net=partial(MLP, hidden=(8,), bias=False), factors={"layers.hidden1": 5})
    work = Work(3, 24, 8, net=net, shape=DataShape(1, 6, 6, 4), tests=8, optimizer=partial(SGD, lr=0.1))
    raw, own = raw_waffle(work, rounds=3), rampart(work, rounds=3, executor=executor)
    assert (raw.vector - rampart(work, rounds=1).vector).abs().max() > 1e-3, "rounds must move the model"
    assert (raw.vector - own.vector).abs().max() < 2e-5


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory by phase is known on Linux only")
def test_every_phase_of_a_round_is_measured():
    meter = measured(Size(clients=4, parameters=1000, executor="sequence"))
    timed = {"transcript", "evaluation", "attacks' reading", "the whole round", "training", "aggregation"}
    assert meter.seconds.keys() == timed | {"the plan's audit", MEMORY_ALONE}
    assert all(seconds > 0 for seconds in meter.seconds.values())
    assert meter.megabytes["the whole round"] >= meter.megabytes["evaluation"]


def test_growth_is_the_slope_between_the_two_largest_sizes():
    linear, square, small = (_row("phase", (10, 100), values, 0.1) for values in ([1, 10], [1, 100], [0.01, 0.1]))
    assert (linear.ratio, linear.met) == (pytest.approx(1), True)
    assert (square.ratio, square.met) == (pytest.approx(2), False)
    assert small.met is None
    table = GrowthTable("CPU s of a round", "CPU s", "exponent", (linear, square))
    assert str(table).splitlines()[-1].split() == ["phase", "100.000", "2.00", "<=", "1.05", "NO", "1.000,", "100.000"]
