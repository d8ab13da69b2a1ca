"""`rampart compare` as it is typed, on a machine where runs are only pretended."""

import functools
import json
import re
from types import SimpleNamespace

import pytest
import yaml
from run_kit import exit_code

import app.experiments.comparison
from app.common.errors import UserError
from app.experiments import parsing
from app.experiments.comparison import compare
from app.results.run.store import COMPARISON

SPEC = """# Two methods on the digits.
datasets: [digits]
methods: [fedavg, heterofl]
seeds: [0, 1]
set: {trainer.max_epochs: 2}
scales: {quick: {seeds: [0]}}
"""


class Pretender:
    """Finishes every job but those whose name holds a word."""

    def __init__(self, failing="nothing", interrupting=False):
        self.failing, self.interrupting, self.seen = failing, interrupting, []

    def run(self, jobs, board, stop):
        """One after the other."""
        for job in jobs:
            self.seen.append(job)
            board.started(job)
            if self.interrupting:
                stop.count = 1
                board.ended(job, 130, stopping=True)
                return
            if self.failing not in job.name:
                job.summary.parent.mkdir(parents=True)
                (job.summary.parent / "config.yaml").write_text(yaml.safe_dump(self.configs[job.combination]))
                job.summary.write_text("{}")
            board.ended(job, 0 if job.summary.is_file() else 1)


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Equal options are parsed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_parse", functools.cache(parsing._parse))
        yield


@pytest.fixture
def pretend(monkeypatch):
    """Puts a pretender in the place of the engine."""

    def install(pretender):
        parse = app.experiments.comparison.parse_all

        def remembered(runs):
            parsed = parse(runs)
            pretender.configs = {key: dict(run.config) for key, run in parsed.items()}
            return parsed

        monkeypatch.setattr("app.experiments.comparison.parse_all", remembered)
        monkeypatch.setattr("app.experiments.comparison._engine", lambda engines, jobs: (pretender, 1))
        shown = lambda path: SimpleNamespace(text=lambda: f"results of {path.name}")  # noqa: E731
        monkeypatch.setattr("app.experiments.comparison.report", shown)
        return pretender

    return install


@pytest.fixture
def typed(tmp_path):
    """Runs the command on the small comparison; returns its exit code."""
    file = tmp_path / "small.yaml"
    file.write_text(SPEC)
    return lambda *options: exit_code("compare", "--config", str(file), "--root", str(tmp_path / "runs"), *options)


def test_all_runs_then_none(typed, pretend, tmp_path, capsys):
    """The first call makes all four runs, the second one makes none, and both show what came out."""
    engine = pretend(Pretender())
    assert typed() == 0
    assert [job.name for job in engine.seen] == [
        f"digits-{method}-none-s{seed}" for method in ("fedavg", "heterofl") for seed in (0, 1)
    ]
    assert "results of small" in capsys.readouterr().out
    comparison = json.loads((tmp_path / "runs" / "small" / COMPARISON).read_text())
    assert [record["run"] for record in comparison["cells"]] == [job.name for job in engine.seen]
    assert typed() == 0
    assert len(engine.seen) == 4
    assert "4 runs, 4 of them finished\nresults of small" in capsys.readouterr().out


def test_failed_runs_are_tried_again(typed, pretend, capsys):
    """Exit code 1, the names of those that failed, and only those the next time."""
    pretend(Pretender("heterofl"))
    assert typed() == 1
    out = capsys.readouterr().out
    assert "failed: digits-heterofl-none-s0, digits-heterofl-none-s1; the same command tries them again" in out
    again = pretend(Pretender())
    assert typed() == 0
    assert [job.name for job in again.seen] == ["digits-heterofl-none-s0", "digits-heterofl-none-s1"]


def test_interrupted(typed, pretend, capsys):
    """Exit code 130, how to go on, and no results."""
    pretend(Pretender(interrupting=True))
    assert typed() == 130
    out = capsys.readouterr().out
    assert out.endswith("interrupted; the same command goes on from here\n")
    assert "results" not in out


def test_from_python(pretend, tmp_path):
    """Interrupted and failed runs are no report; a call that finishes them gives it."""
    content = {"name": "mine", **yaml.safe_load(SPEC)}
    pretend(Pretender(interrupting=True))
    with pytest.raises(KeyboardInterrupt):
        compare(content, root=tmp_path)
    pretend(Pretender("heterofl"))
    with pytest.raises(UserError, match="2 runs failed: digits-heterofl-none-s0, digits-heterofl-none-s1"):
        compare(content, root=tmp_path)
    engine = pretend(Pretender())
    assert compare(content, root=tmp_path).text() == "results of mine"
    assert [job.name for job in engine.seen] == ["digits-heterofl-none-s0", "digits-heterofl-none-s1"]
    assert compare(content, "quick", root=tmp_path, name="other").text() == "results of other"
    assert [job.name for job in engine.seen[2:]] == ["digits-fedavg-none-s0", "digits-heterofl-none-s0"]


def test_scale_seeds_and_name(typed, pretend, tmp_path):
    """A scale has a folder of its own; further seeds join those that are there."""
    engine = pretend(Pretender())
    assert typed("--scale", "quick") == 0
    assert len(engine.seen) == 2
    assert (tmp_path / "runs" / "small-quick").is_dir()
    assert typed("--seeds", "4", "--name", "other") == 0
    assert typed("--seeds", "5", "--name", "other") == 0
    comparison = json.loads((tmp_path / "runs" / "other" / COMPARISON).read_text())
    assert [record["seed"] for record in comparison["cells"]] == [5, 5, 4, 4]
    assert comparison["name"] == "other"
    assert "other" in engine.seen[-1].command


def test_shards_share_a_folder(typed, pretend, tmp_path, capsys):
    """Each makes its part; the first names what is missing, the last one to end makes the report."""
    engine = pretend(Pretender())
    assert typed("--shard", "1/2") == 0
    first = [job.name for job in engine.seen]
    out = capsys.readouterr().out
    assert "shard 1/2 with 2 of 4 runs, 0 of them finished" in out
    assert "2 of 4 runs are not finished: " in out
    assert f"rampart report {tmp_path / 'runs' / 'small'}" in out
    assert "results of" not in out
    assert typed("--shard", "2/2", "--dry") == 0
    assert capsys.readouterr().out.count("to be run") == 2
    assert typed("--shard", "2/2") == 0
    assert "results of small" in capsys.readouterr().out
    assert sorted({*first, *(job.name for job in engine.seen[2:])}) == sorted(job.name for job in engine.seen)
    assert len(engine.seen) == len({job.name for job in engine.seen}) == 4
    assert typed("--shard", "7/9") == 0, "there are fewer runs than shards"
    assert "shard 7/9 with 0 of 4 runs" in capsys.readouterr().out


def test_a_shard_whose_runs_fail(typed, pretend, capsys):
    """Exit code 1; the other shard still makes its runs, and says that some are missing."""
    pretend(Pretender("s0"))
    assert typed("--shard", "1/2") == 1
    assert typed("--shard", "2/2") == 0
    assert "2 of 4 runs are not finished: digits-fedavg-none-s0, digits-heterofl-none-s0" in capsys.readouterr().out


def test_finished_runs_with_other_settings_are_not_reused(typed, pretend, tmp_path, capsys):
    """Nothing starts; every run is named with what differs."""
    engine = pretend(Pretender())
    assert typed("--seeds", "0") == 0
    (tmp_path / "small.yaml").write_text(SPEC.replace("max_epochs: 2", "max_epochs: 3"))
    assert typed("--seeds", "0") == 2
    error = capsys.readouterr().err
    assert error.count("was made with other settings") == 2
    assert "trainer.max_epochs differ" in error
    assert len(engine.seen) == 2


def test_dry(typed, pretend, tmp_path, capsys):
    """Every run with its state; nothing is written."""
    assert typed("--dry") == 0
    out = capsys.readouterr().out
    assert "small: Two methods on the digits.\n4 runs in" in out
    assert out.count("to be run") == 4
    assert not (tmp_path / "runs").exists()
    pretend(Pretender())
    assert typed("--seeds", "1") == 0
    capsys.readouterr()
    assert typed("--dry") == 0
    states = [re.split(r" {2,}", line.strip())[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert states == ["to be run", "finished", "to be run", "finished"]


def test_fewer_runs_at_a_time_than_asked_for(typed, pretend, capsys):
    """One line says so where the GPUs do not suffice, and none where there are not that many runs."""
    pretend(Pretender())  # makes one run at a time
    assert typed("--jobs", "3", "--gpus_per_run", "2") == 0
    note = "note: 1 run at a time instead of 3 (--jobs): the GPUs suffice for no more with --gpus_per_run 2\n"
    assert note in capsys.readouterr().out
    assert typed("--jobs", "3", "--gpus_per_run", "2", "--name", "other", "--seeds", "0") == 0
    assert "at a time instead of 3" in capsys.readouterr().out
    assert typed("--jobs", "1", "--gpus_per_run", "2", "--name", "third") == 0
    assert "at a time instead of" not in capsys.readouterr().out


@pytest.mark.parametrize("root", ["r\0", "r" * 5000, "r/" * 2500], ids=["null", "long", "deep"])
def test_roots_that_no_system_takes(root, typed, capsys):
    """One error with a remedy, no traceback."""
    assert typed("--root", root) == 2
    assert "remedy:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "0"], "--jobs is '0'\n  consequence: it must be int >= 1\n  remedy: set --jobs in that range"),
        (["--seeds", "0,x"], "--seeds is 'x'\n  consequence: it must be int in [0, 2^32 - 1]"),
        (["--seeds", "1,1"], "a number more than once"),
        (["--address", "auto"], "--address needs --engine ray"),
        (
            ["--gpus_per_run", "1.5"],
            "--gpus_per_run is 1.5\n  consequence: a run trains on whole GPUs, or shares one GPU",
        ),
        (["--gpus_per_run", "0"], "--gpus_per_run is '0'\n  consequence: it must be float > 0"),
        (["--gpus_per_run", "-1"], "--gpus_per_run is '-1'"),
        (["--gpus_per_run", "all"], "--gpus_per_run is 'all'"),
        (["--shard", "0/4"], "--shard is '0/4'\n  consequence: it is unclear which part"),
        (["--shard", "5/4"], "give its number, from 1, and how many there are, such as --shard 2/4"),
        (["--shard", "a/b"], "--shard is 'a/b'"),
        (["--shard", "2"], "--shard is '2'"),
        (["--engine", "cloud"], "invalid choice: 'cloud'"),
        (["--scale", "quik"], "did you mean quick?"),
        (["--name", "a/b"], "the name of the comparison is 'a/b'"),
        (["--name", ".."], "the name of the comparison is '..'"),
        (["--name", "a\nb"], "the name of the comparison is 'a\\nb'"),
        (["--name", "x" * 5000], "the name of the comparison has 5,000 characters"),
    ],
)
def test_wrong_options(options, message, typed, tmp_path, capsys):
    """Exit code 2 and the reason."""
    assert typed(*options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_without_a_comparison(capsys):
    """The option is named."""
    assert exit_code("compare") == 2
    assert "--config" in capsys.readouterr().err


def test_comparisons_are_listed_and_are_no_recipes(capsys):
    """`rampart list comparisons`, and a hint where one is given to `rampart fit`."""
    assert exit_code("list", "comparisons") == 0
    assert "  demo " in capsys.readouterr().out
