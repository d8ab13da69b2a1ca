"""A collection of runs holds what the folders tell, and names what it leaves out; nothing broken stops the rest."""

import json
import math
import os
from pathlib import Path

import pytest
from finding_kit import kept
from store_kit import (
    attack,
    budget,
    channel,
    labels,
    make_record,
    make_run,
    make_store,
    rebuilt,
    spread_fairness,
    write_comparison,
)

from app.common.errors import UserError
from app.result import Measurement
from app.results.run.store import COMPARISON, read_store


def full(path: Path, **others) -> Path:
    """A run with a bit of everything."""
    return make_run(
        path,
        attacks=(attack("yeom", "global"), attack("yeom", "uploads", 0.5)),
        reconstructions=(rebuilt(),),
        measurements=(Measurement("drift", {"mean": 0.5}),),
        budgets=(budget(),),
        channels=(channel(),),
        fairness=spread_fairness(),
        **others,
    )


def reasons(store) -> dict[str, str]:
    """Why folders were left out, by name."""
    return {skipped.path.name: skipped.reason for skipped in store.skipped}


def edit_summary(folder: Path, change) -> None:
    """Change a run's summary."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


def test_what_was_written_comes_back(tmp_path):
    """A run folder becomes the record it was made from."""
    parts = {"attacks": (attack(),), "reconstructions": (rebuilt(),), "budgets": (budget(),), "channels": (channel(),)}
    parts["measurements"] = (Measurement("drift", {"mean": 0.5}, ("client", "norm"), ((0, 1.5),), ("a remark",)),)
    made = make_record(path=tmp_path / "a", fairness=spread_fairness(), **parts)
    make_run(tmp_path / "a", fairness=spread_fairness(), **parts)
    (read,) = read_store([tmp_path / "a"]).runs
    for part in ("labels", "final", "rounds", "cost", "clients", "fairness", "budgets", "channels"):
        assert getattr(read, part) == getattr(made, part), part
    for part in ("attacks", "reconstructions", "measurements"):
        assert list(map(kept, getattr(read, part))) == list(map(kept, getattr(made, part))), part
    assert read.notes == ()
    assert read.scores("yeom.global").scores.tolist() == made.scores("yeom.global").scores.tolist()


def test_a_comparison_gives_labels_order_and_names(tmp_path):
    """Runs stand in the order of the comparison, under its labels, whatever their configurations say."""
    made = make_store(("heterofl", "fedavg"), ("none", "dp-sgd"), seeds=(1, 0), attacked=False, folder=tmp_path / "c")
    read = read_store([tmp_path / "c"])
    assert [run.labels for run in read.runs] == [run.labels for run in made.runs]
    assert (read.name, read.purpose, read.baseline) == ("compared", "planted effects", ("fedavg", "none"))
    assert read.skipped == ()


def test_a_single_run_keeps_the_labels_of_its_comparison(tmp_path):
    """Naming one run of a comparison gives it the place it has there."""
    make_store(("heterofl",), ("none",), seeds=(4,), attacked=False, folder=tmp_path / "c")
    (run,) = read_store([tmp_path / "c" / "digits-heterofl-none-4"]).runs
    assert run.labels == labels(method="heterofl", seed=4)


def test_a_run_named_twice_is_read_once(tmp_path):
    """A folder and a folder within it are no two runs."""
    make_run(tmp_path / "runs" / "a")
    assert len(read_store([tmp_path / "runs", tmp_path / "runs" / "a"]).runs) == 1


def test_what_is_not_there_or_not_finished_is_told(tmp_path):
    """Cells without a run, runs without a summary, foreign folders and comparisons within are named, files are not."""
    folder = tmp_path / "c"
    make_run(folder / "digits-fedavg-none-0")
    make_run(folder / "digits-fedavg-none-1")
    (folder / "digits-fedavg-none-1" / "summary.json").unlink()
    write_comparison(folder, [labels(seed=seed) for seed in range(3)])
    (folder / "holiday").mkdir()
    (folder / "inner").mkdir()
    (folder / "inner" / COMPARISON).write_text("{}")
    (folder / "notes.txt").write_text("hello")
    (folder / ".hidden").mkdir()
    store = read_store([folder])
    assert [run.name for run in store.runs] == ["digits-fedavg-none-0"]
    assert reasons(store) == {
        "digits-fedavg-none-1": "the run is not finished",
        "digits-fedavg-none-2": "not run yet",
        "holiday": "it is no run of this program",
        "inner": "it is a comparison of its own; name its folder to see it",
    }


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "null", "\xff"])
def test_a_broken_comparison_file_costs_only_its_labels(tmp_path, text):
    """Runs are labelled by their configurations, and the file is named."""
    make_run(tmp_path / "c" / "a")
    (tmp_path / "c" / COMPARISON).write_bytes(text.encode("latin-1"))
    store = read_store([tmp_path / "c"])
    assert [run.labels for run in store.runs] == [labels()]
    assert "labelled by their configurations" in reasons(store)[COMPARISON]
    assert store.baseline is None


def test_broken_cells_of_a_comparison_are_told(tmp_path):
    """A cell without a name or with a seed that is no number does not stop the others."""
    folder = tmp_path / "c"
    make_run(folder / "digits-fedavg-none-0")
    path = write_comparison(folder, [labels()])
    told = json.loads(path.read_text())
    told["cells"] += [{"run": "x"}, 7, {**told["cells"][0], "run": "y", "seed": "first"}]
    told["baseline"] = "fedavg"
    path.write_text(json.dumps(told))
    store = read_store([folder])
    assert len(store.runs) == 1
    assert {skipped.reason for skipped in store.skipped} == {
        f"its cell {number} lacks the run's name or its place" for number in (2, 3, 4)
    }
    assert store.baseline is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "summary.json cannot be read (JSONDecodeError"),
        ('{"final": {"round": 3', "summary.json cannot be read (JSONDecodeError"),
        ("[]", "summary.json tells no final metrics"),
        ("{}", "summary.json tells no final metrics"),
        ('{"final": 3}', "summary.json tells no final metrics"),
    ],
)
def test_a_broken_summary_costs_the_run_alone(tmp_path, text, reason):
    """The other runs are read."""
    make_run(tmp_path / "good")
    (make_run(tmp_path / "bad") / "summary.json").write_text(text)
    store = read_store([tmp_path])
    assert [run.name for run in store.runs] == ["good"]
    assert reasons(store)["bad"].startswith(reason)


@pytest.mark.parametrize("key", ["cost", "clients"])
def test_a_summary_without_some_part_keeps_the_rest(tmp_path, key):
    """What is missing is noted."""
    folder = full(tmp_path / "a")
    edit_summary(folder, lambda summary: summary.pop(key))
    (run,) = read_store([folder]).runs
    assert run.final["server/accuracy"] == 0.9
    assert not getattr(run, key)
    assert run.notes == (f"the {key.removesuffix('s')}s in summary.json cannot be read (KeyError: '{key}')",)


@pytest.mark.parametrize("key", ["cost", "clients", "fairness", "privacy", "channels"])
@pytest.mark.parametrize("junk", [3, "text", [3], {"final": [1]}])
def test_a_summary_with_junk_in_some_part_keeps_the_rest(tmp_path, key, junk):
    """Whatever stands there, the run is read, and nothing is made up."""
    folder = full(tmp_path / "a")
    edit_summary(folder, lambda summary: summary.update({key: junk}))
    (run,) = read_store([folder]).runs
    assert run.final["server/accuracy"] == 0.9
    assert len(run.attacks) == 2
    part = {"privacy": "budgets"}.get(key, key)
    assert not getattr(run, part)


def test_numbers_that_were_not_finite_are_nan(tmp_path):
    """Null in the summary is a number that was not finite, and an epsilon without noise is infinite."""
    folder = make_run(tmp_path / "a", budgets=(budget(math.inf),), final={"server/loss": math.nan})
    (run,) = read_store([folder]).runs
    assert math.isnan(run.final["server/loss"])
    assert run.budgets[0].epsilon == math.inf


@pytest.mark.parametrize(
    ("text", "rounds", "note"),
    [
        ("", 0, "metrics.jsonl is empty"),
        ('{"round": 1}\n{"round": 2, "serv', 1, "metrics.jsonl: line 2 cannot be read"),
        ('3\n{"round": 2}\n[', 1, "metrics.jsonl: lines 1, 3 cannot be read"),
        (None, 0, "metrics.jsonl cannot be read (FileNotFoundError: No such file or directory)"),
    ],
)
def test_metrics_cut_short_are_read_as_far_as_they_go(tmp_path, text, rounds, note):
    """Rounds that can be read are kept."""
    path = make_run(tmp_path / "a") / "metrics.jsonl"
    path.unlink() if text is None else path.write_text(text)
    (run,) = read_store([tmp_path]).runs
    assert len(run.rounds) == rounds
    assert run.notes == (note,)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"label": "x", "values": 3}', '{"conditions": 4, "leakage": []}', "\xff\xfe"]
)
def test_one_broken_result_does_not_lose_the_others(tmp_path, text):
    """Neither of membership inference nor of reconstruction, nor of anything else."""
    folder = full(tmp_path / "a")
    (folder / "attacks" / "yeom.uploads.json").write_bytes(text.encode("latin-1"))
    (folder / "attacks" / "reconstruction" / "other.json").write_bytes(text.encode("latin-1"))
    (folder / "results" / "other.json").write_bytes(text.encode("latin-1"))
    (run,) = read_store([folder]).runs
    assert [record.label for record in run.attacks] == ["yeom.global"]
    assert [record.label for record in run.reconstructions] == ["rolling"]
    assert [record.label for record in run.measurements] == ["drift"]
    assert [note.partition(" cannot be read")[0] for note in run.notes] == [
        "attacks/yeom.uploads.json",
        "reconstruction/other.json",
        "results/other.json",
    ]


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 cut short"])
def test_lost_scores_are_noted_and_the_numbers_kept(tmp_path, content):
    """Numbers are in the JSON file; who asks for the scores is told."""
    folder = full(tmp_path / "a")
    path = folder / "attacks" / "yeom.global.npz"
    path.unlink() if content is None else path.write_bytes(content)
    (run,) = read_store([folder]).runs
    assert len(run.attacks) == 2
    assert run.notes == ("attacks/yeom.global.npz cannot be read: the scores are lost",)
    with pytest.raises(UserError):
        run.scores("yeom.global")


@pytest.mark.parametrize("text", ["", "data: [", "- 1", "!!python/object:os.system {}", "data: 3\nmodel: 4"])
def test_a_broken_configuration_matters_only_where_labels_come_from_it(tmp_path, text):
    """A run of a comparison has its labels elsewhere."""
    folder = tmp_path / "c"
    make_run(folder / "good")
    (make_run(folder / "digits-fedavg-none-0") / "config.yaml").write_text(text)
    store = read_store([folder])
    assert [run.name for run in store.runs] == ["good"]
    assert "config" in reasons(store)["digits-fedavg-none-0"]
    write_comparison(folder, [labels()])
    assert {run.name for run in read_store([folder]).runs} == {"good", "digits-fedavg-none-0"}


def test_folders_that_may_not_be_read_are_told(tmp_path, monkeypatch):
    """A folder without permission is left out, the others are read."""
    make_run(tmp_path / "good")
    make_run(tmp_path / "locked")
    ask = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return ask(path)

    monkeypatch.setattr(Path, "is_file", refused)
    store = read_store([tmp_path])
    assert [run.name for run in store.runs] == ["good"]
    assert reasons(store)["locked"] == "it cannot be read (PermissionError: Permission denied)"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_files_that_may_not_be_read_are_told(tmp_path):
    """The same with real permissions."""
    make_run(tmp_path / "good")
    (make_run(tmp_path / "locked") / "summary.json").chmod(0)
    assert "PermissionError" in reasons(read_store([tmp_path]))["locked"]


def test_without_any_run_the_error_says_why(tmp_path):
    """Every folder is named with its reason."""
    (make_run(tmp_path / "a") / "summary.json").unlink()
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError) as told:
        read_store([tmp_path])
    assert "a: the run is not finished" in str(told.value)
    assert "b: it is no run of this program" in str(told.value)
    with pytest.raises(UserError, match="there is no folder"):
        read_store([tmp_path / "nowhere"])
