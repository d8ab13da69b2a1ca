"""Shards of a comparison: which runs each has, and how several of them share a folder."""

import json
import multiprocessing
import os
import time

import pytest
import yaml
from comparison_kit import comes, spec_of

from app.common.errors import UserError
from app.experiments.comparison import Comparison
from app.experiments.locks import at_work, others_at_work, turn
from app.experiments.matrix import planned_runs
from app.experiments.parsing import ParsedRun
from app.experiments.shards import Shard
from app.results.run.store import COMPARISON

FORK = multiprocessing.get_context("fork")


def _work(path, shard, begun):
    with at_work(path, shard):
        begun.set()
        time.sleep(120)


@pytest.fixture
def working(folder):
    """Starts a process that works on a shard, and kills it with the test."""
    started = []

    def start(shard):
        begun = FORK.Event()
        started.append(FORK.Process(target=_work, args=(folder.path, shard, begun)))
        started[-1].start()
        assert begun.wait(30)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def run_config(rounds, epochs=1, shadows=None):
    """A configuration whose work is known."""
    attacks = {"mia": {"class_path": "MembershipInference", "init_args": {"shadows": shadows}}} if shadows else {}
    return ParsedRun({"trainer": {"max_epochs": rounds}, "model": {"local": {"epochs": epochs}}, "attacks": attacks})


def test_work_of_a_run():
    """Rounds times local epochs, and once more for every repetition of the federation."""
    assert run_config(10).work == 10
    assert run_config(10, 3).work == 30
    assert run_config(10, 3, {"mode": "central", "count": 16}).work == 30
    assert run_config(10, 3, {"mode": "both", "count": 16}).work == 30 * 17
    assert run_config(None).work == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_shards_are_a_partition(tmp_path, count):
    """Every run in exactly one shard, in the order of the comparison; also with more shards than runs."""
    runs = planned_runs(spec_of(tmp_path, seeds=[0, 1, 2]))
    parsed = {planned.combination: run_config(7) for planned in runs}
    parts = [Shard(number, count).part(runs, parsed) for number in range(1, count + 1)]
    assert sorted(planned.name for part in parts for planned in part) == sorted(planned.name for planned in runs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        assert list(part) == [planned for planned in runs if planned in part]


def test_shards_of_whole_rows(tmp_path):
    """Where rows are tuned, all seeds of a row are in the shard that tunes it; one shard too many has none."""
    runs = planned_runs(spec_of(tmp_path, methods=["fedavg", "heterofl", "mapp-fl"], seeds=[0, 1]))
    parsed = {planned.combination: run_config(30 if "mapp-fl" in planned.name else 10) for planned in runs}
    parts = [Shard(number, 4).part(runs, parsed, by_row=True) for number in (1, 2, 3, 4)]
    assert [len(part) for part in parts] == [2, 2, 2, 0]
    assert all(len({planned.combination for planned in part}) == 1 for part in parts[:3])
    assert [planned.combination[1] for planned in Shard(1, 2).part(runs, parsed, by_row=True)] == ["mapp-fl"] * 2


def test_shards_have_equal_work(tmp_path):
    """One run of 90 rounds, and nine of ten rounds, in two shards."""
    runs = planned_runs(
        spec_of(tmp_path, methods=["fedavg"], seeds=list(range(9)), include=[{"method": "fedprox", "seed": 0}])
    )
    parsed = {planned.combination: run_config(90 if "fedprox" in planned.name else 10) for planned in runs}
    assert [len(Shard(number, 2).part(runs, parsed)) for number in (1, 2)] == [1, 9]


def test_shards_work_side_by_side(folder, working):
    """Each of them once, with one number of shards, and nobody beside them who runs everything."""
    first = working(Shard(1, 2))
    with at_work(folder.path, Shard(2, 2)), turn(folder.path):
        assert others_at_work(folder.path, Shard(2, 2)) == [Shard(1, 2)]
        assert others_at_work(folder.path) == [Shard(1, 2), Shard(2, 2)]
    with pytest.raises(UserError, match=rf"--shard 1/2` \(process {first.pid}\)"), at_work(folder.path, Shard(1, 2)):
        pass
    with (
        pytest.raises(UserError, match=r"shard 1/2 is at work on .*this is shard 1/3"),
        at_work(folder.path, Shard(1, 3)),
    ):
        pass
    with pytest.raises(UserError, match=r"\(process one of a --shard\)"), at_work(folder.path):
        pass
    first.kill()
    first.join()
    with at_work(folder.path, Shard(1, 3)):
        pass
    with (
        at_work(folder.path),
        pytest.raises(UserError, match=f"process {os.getpid()}"),
        at_work(folder.path, Shard(1, 2)),
    ):
        pass


def comparison_of(tmp_path, shard, **changes):
    """A comparison of two runs whose configurations are not parsed."""
    spec = spec_of(tmp_path, **changes)
    comparison = Comparison.__new__(Comparison)
    comparison.spec, comparison.runs, comparison.shard = spec, planned_runs(spec), shard
    comparison.parsed = {planned.combination: run_config(3) for planned in comparison.runs}
    comparison.part = shard.part(comparison.runs, comparison.parsed)
    return comparison


def test_the_comparison_is_written_once(folder, working, tmp_path):
    """The second shard finds what it would write; a shard with other settings is refused while others work."""
    first, second = (comparison_of(tmp_path, Shard(number, 2)) for number in (1, 2))
    for one in (first, second):
        one.folder = folder
    first._register()
    written = (folder.path / COMPARISON).stat().st_mtime_ns
    process = working(Shard(1, 2))
    second._register()
    assert (folder.path / COMPARISON).stat().st_mtime_ns == written
    other = comparison_of(tmp_path, Shard(2, 2), set={"trainer.max_epochs": 9})
    other.folder = folder
    with pytest.raises(UserError, match=r"shards 1/2 are at work on .* with other runs or settings"):
        other._register()
    process.kill()
    process.join()
    other._register()
    arguments = [record["arguments"] for record in json.loads((folder.path / COMPARISON).read_text())["cells"]]
    assert all("--trainer.max_epochs" in one for one in arguments)


def test_a_shard_does_not_judge_the_runs_of_others(folder, tmp_path):
    """Their processes may be writing them just now; a run of its own that was made otherwise is refused."""
    first, second = (comparison_of(tmp_path, Shard(number, 2)) for number in (1, 2))
    first.folder = second.folder = folder
    first._register()
    theirs = folder.run(first.part[0].name)
    theirs.mkdir()
    (theirs / "config.yaml").write_text(yaml.safe_dump({"trainer": {"max_epochs": 99}}))
    second._register()
    with pytest.raises(UserError, match="was made with other settings"):
        first._register()


def _enter(path, entered, inside):
    with turn(path):
        entered.set()
        inside.wait(30)


def test_turns_are_waited_for(folder):
    """The second process enters when the first has left."""
    entered, leave = FORK.Event(), FORK.Event()
    first = FORK.Process(target=_enter, args=(folder.path, entered, leave))
    first.start()
    assert entered.wait(30)
    late = FORK.Event()
    second = FORK.Process(target=_enter, args=(folder.path, late, leave))
    second.start()
    assert not late.wait(0.3)
    leave.set()
    assert comes(late.is_set)
    first.join()
    second.join()
