"""`scripts/bench audit`: phases are told apart, and ratios refer to what they say."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

from app.benchmarks import audit, phases
from app.benchmarks.phases import PHASES, PhaseTimer


@pytest.fixture
def clock(monkeypatch):
    """CPU seconds, which only move when the test says so."""
    seconds = [2.0]
    monkeypatch.setattr(phases.time, "process_time", lambda: seconds[0])
    return seconds


def test_the_seconds_of_a_phase_are_its_own(clock):
    """An attack of 9 seconds, 4 of which are for shadows and 1 for tracing within them, took 4 itself.

    Shadows of controls count as controls.
    """
    timer = PhaseTimer()
    timer.switch("rest")

    def spend(seconds, *within):
        clock[0] += seconds
        for call in within:
            call()

    trace = timer.timed("tracing", lambda: spend(1))
    train = timer.timed("shadows", lambda knowledge, jobs: spend(4, trace))

    def shadows():
        train(None, [1, 2, 3])

    timer.timed("white-box", lambda: spend(4, shadows))()
    timer.timed("controls", lambda: spend(1, shadows))()
    spend(0.5)
    timer.switch()
    own = {phase: record["seconds"] for phase, record in timer.record.items() if record["seconds"]}
    assert own == {"imports": 2.0, "rest": 0.5, "tracing": 1.0, "shadows": 4.0, "controls": 6.0, "white-box": 4.0}
    assert timer.record["shadows"]["calls"] == 3


def test_every_phase_is_a_function_of_the_program(monkeypatch):
    """Each is found and counted; `make_fx` when what it returns is called, with its result as it is."""
    timer, made = PhaseTimer(), []
    for phase, (module, name) in PHASES.items():
        place = __import__(module, fromlist=["_"])
        for part in name.split(".")[:-1]:
            place = getattr(place, part)
        assert callable(getattr(place, name.rpartition(".")[2])), phase
    module = types.ModuleType("traced")
    module.make_fx = lambda step: lambda value: made.append(value) or step
    monkeypatch.setitem(sys.modules, "traced", module)
    monkeypatch.setattr(phases, "PHASES", {"tracing": ("traced", "make_fx")})
    timer.watch()
    assert module.make_fx(len)(7) is len
    assert made == [7]
    assert timer.record["tracing"]["calls"] == 1


def test_the_demo_is_set_against_training_and_shadows(tmp_path, monkeypatch):
    """Two runs of 3 CPU seconds and 4 shadows of half a second are 8 seconds; attack networks do not count."""

    def demo(*arguments):
        cache = tmp_path / "demo" / ".cache" / "shadows"
        cache.mkdir(parents=True)
        for number in range(4):
            np.savez(cache / f"{number}.npz", rate=1.0, vectors=np.zeros(2))
        np.savez(cache / "network.npz", weights=np.zeros(2))
        for name, reused in (("first", 0), ("second", 3)):
            cost = {"cpu_seconds": 3.0, "attack_phase/shadows_trained": 2, "attack_phase/shadows_reused": reused}
            (tmp_path / "demo" / name).mkdir()
            (tmp_path / "demo" / name / "cost.json").write_text(json.dumps(cost))

    monkeypatch.setattr(audit, "_run", demo)
    (table,) = audit._demo(tmp_path, True, 0.5)
    training, shadows, whole = table.rows
    assert (training.value, shadows.value) == (6.0, 2.0)
    assert (training.ratio, shadows.ratio, whole.goal) == (0.75, 0.25, 1.5)
    assert table.remarks == ("4 shadow models trained, 3 reused",)


def test_metrics_have_a_goal_in_seconds():
    """The ratio is a multiple of the second that they may take."""
    table = audit._metrics(400)
    assert all(row.ratio == row.value and row.goal == 1.0 for row in table.rows)
