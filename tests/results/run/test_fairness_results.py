"""What a run tells about fairness: files, lines and the picture agree with the accuracies they come from."""

import csv
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from app.common.errors import UserError
from app.metrics.fairness import Fairness
from app.results.run.fairness import (
    ClientAccuracies,
    FairnessResult,
    JoinedClients,
    NewcomersResult,
    fairness_record,
    fairness_rows,
    unplanned,
)
from app.results.run.figures import draw_fairness
from app.results.run.folder import RunFolder
from app.results.run.results import conclude, summaries

GROUPS = ("majority", "majority", "minority", "minority")
PLAIN = ClientAccuracies(
    round=7,
    clients=(0, 1, 3, 4),
    groups=GROUPS,
    samples=(8, 8, 4, 4),
    holders=(False,) * 4,
    accuracies={"own": (1.0, 0.75, 0.5, 0.25)},
)
PRIVATE = replace(
    PLAIN,
    holders=(True, True, True, False),
    accuracies={
        **PLAIN.accuracies,
        "another": (0.5, 0.25, 0.0, 0.25),
        "mean": (0.5, 0.5, 0.5, 0.25),
        "none": (0.75, 0.5, 0.25, 0.25),
        "fine_tuned": (1.0, 1.0, 0.75, 0.75),
    },
)


def record(round_, accuracy=None, **others):
    """A line of metrics.jsonl."""
    measured = {} if accuracy is None else {"everyone/accuracy": accuracy, "everyone/worst": accuracy / 2}
    return {"round": float(round_), "server/accuracy": 0.1, **measured, **others}


def write(run, measured, history=()):
    """Keep a measurement in a run's folder; returns its part of the summary."""
    result = FairnessResult.of(measured, history)
    result.save(run)
    conclude(RunFolder(run), [result])
    return summaries(RunFolder(run))["fairness"]


def forget_unplanned(folder, planned):
    """Drop what was measured in rounds that are not planned."""
    folder.forget_metrics(lambda round_, name: unplanned(name, round_ in planned))


def several(clients, minority=0, private=False, tests=40, seed=0):
    """A federation of so many clients with accuracies drawn at random."""
    generator = np.random.default_rng(seed)
    groups = ["majority"] * (clients - minority) + ["minority"] * minority if minority else ["all"] * clients
    names = ("own", "another", "mean", "none", "fine_tuned") if private else ("own",)
    drawn = {name: tuple((generator.binomial(tests, 0.8, clients) / tests).tolist()) for name in names}
    return ClientAccuracies(3, tuple(range(clients)), tuple(groups), (tests,) * clients, (private,) * clients, drawn)


def test_metrics_of_a_round_without_private_parts():
    """Mean, worst, variance, groups and gap: nothing else, under one prefix."""
    assert PLAIN.metrics() == {
        "everyone/accuracy": 0.625,
        "everyone/worst": 0.25,
        "everyone/variance": 781.25,
        "everyone/majority": 0.875,
        "everyone/minority": 0.375,
        "everyone/gap": 0.5,
    }
    alike = replace(PLAIN, groups=("all",) * 4).metrics()
    assert set(alike) == {"everyone/accuracy", "everyone/worst", "everyone/variance"}


def test_metrics_of_the_controls():
    """In the last round the means with other private parts, and the whole story after fine-tuning."""
    found = PRIVATE.metrics()
    controls = {name: found[f"everyone/{name}"] for name in ("another", "mean_choice", "no_choice")}
    assert controls == {"another": 0.25, "mean_choice": 0.4375, "no_choice": 0.4375}
    assert found["everyone/fine_tuned"] == 0.875
    assert found["everyone/fine_tuned_variance"] == 12.5**2
    assert (found["everyone/fine_tuned_minority"], found["everyone/fine_tuned_gap"]) == (0.75, 0.25)
    assert PLAIN.metrics().items() <= found.items()


def test_swap_counts_those_who_hold_something():
    """A client without a private part of its own says nothing about swapping."""
    assert (PRIVATE.swap.clients, PRIVATE.swap.cost.value) == (3, 0.5)
    assert PLAIN.swap is None


def test_record():
    """fairness.json holds the figures of `Fairness`, with intervals, for own parts and for every control."""
    found = fairness_record(PRIVATE, [])
    assert found["round"] == 7
    for entry, whose in ((found["final"], "own"), (found["controls"]["none"], "none")):
        expected = Fairness.of(PRIVATE.accuracies[whose], GROUPS)
        assert all(entry[name] == getattr(expected, name) for name in ("mean", "variance", "gap", "worst_tenth"))
        assert entry["mean_interval"]["low"] < expected.mean < entry["mean_interval"]["high"]
        assert entry["gap_interval"]["low"] < expected.gap < entry["gap_interval"]["high"]
    assert set(found["controls"]) == {"another", "mean", "none"}
    assert found["fine_tuned"]["mean"] == 0.875
    assert (found["swap"]["personal"], found["swap"]["verdict"]) == (PRIVATE.swap.personal, PRIVATE.swap.verdict)
    assert not {"controls", "swap", "fine_tuned"} & set(fairness_record(PLAIN, []))


def test_settled_is_the_mean_of_the_last_ten_measured_rounds():
    """Rounds between are passed over, older ones are forgotten, and the last round counts once."""
    alike = replace(PLAIN, groups=("all",) * 4, round=40)
    lines = [record(number, number / 64 if number % 2 == 0 else None) for number in range(1, 41)]
    for line in lines:
        line |= {"everyone/variance": 1.0} if "everyone/accuracy" in line else {}
    settled = fairness_record(alike, lines)["settled"]
    assert settled["rounds"] == 10
    assert settled["accuracy"] == (sum(range(22, 40, 2)) / 64 + 0.625) / 10
    assert settled["worst"] == (sum(range(22, 40, 2)) / 128 + 0.25) / 10
    assert settled["variance"] == (9 + 781.25) / 10
    missing_end = fairness_record(alike, lines[:-1])["settled"]
    assert missing_end == settled, "a run that stopped early has no metrics of its last round"
    assert fairness_record(alike, [])["settled"]["rounds"] == 1
    assert fairness_record(alike, [])["settled"]["accuracy"] == 0.625


def test_rounds_before_a_group_joined_are_not_settled():
    """One group in the first two rounds, two in the next: means and curves of the groups start with the third."""
    alone = [record(number, 0.5, **{"everyone/variance": 1.0}) for number in (1, 2)]
    lines = [*alone, {**PLAIN.metrics(), "round": 3.0}, {**PLAIN.metrics(), "round": 7.0}]
    settled = fairness_record(PLAIN, lines)["settled"]
    assert (settled["rounds"], settled["accuracy"], settled["minority"]) == (2, 0.625, 0.375)
    curves = {line.get_label(): line.get_ydata() for line in draw_fairness(PLAIN, lines, "a").axes[1].get_lines()}
    assert np.isnan(curves["mean of the minority"]).tolist() == [True, True, False, False]
    assert curves["mean of all clients"].tolist() == [50.0, 50.0, 62.5, 62.5]


@pytest.mark.usefixtures("pixels")
def test_files(tmp_path):
    """One row per client; the JSON explains itself; the summary leaves the explanations out."""
    summary = write(tmp_path, PRIVATE)
    with (tmp_path / "everyone.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["client"]) for row in rows] == [0, 1, 3, 4]
    assert [row["holds_own"] for row in rows] == ["1", "1", "1", "0"]
    assert [row["group"] for row in rows] == list(GROUPS)
    assert [int(row["test_samples"]) for row in rows] == [8, 8, 4, 4]
    for whose, values in PRIVATE.accuracies.items():
        assert tuple(float(row[whose]) for row in rows) == values
    told = json.loads((tmp_path / "fairness.json").read_text())
    assert {*told} - {"round", "words"} <= set(told["words"])
    assert summary == {name: value for name, value in told.items() if name != "words"}
    assert summary == json.loads(json.dumps(fairness_record(PRIVATE, [])))
    [loaded] = FairnessResult.load_all(tmp_path)
    assert (loaded.content, loaded.closing_rows()) == (summary, fairness_rows(summary))
    assert loaded.numbers["mean"] == 0.625
    assert (tmp_path / "fairness.png").read_bytes().startswith(b"\x89PNG")


def test_files_without_private_parts(tmp_path):
    """No column and no entry for what does not exist; a run without any measurement has no summary."""
    assert summaries(RunFolder(tmp_path)) == {}
    summary = write(tmp_path, replace(PLAIN, groups=("all",) * 4))
    assert (tmp_path / "everyone.csv").read_text().splitlines()[:2] == ["client,group,test_samples,own", "0,all,8,1.0"]
    assert not [name for name in summary["final"] if "gap" in name]


def test_newcomers(tmp_path):
    """One row per newcomer and column per stage; mean, interval and words of every stage; loaded as it was."""
    joined = JoinedClients((7, 9), ("all", "all"), 3, {"server": (0.25, 0.75), "fitted": (0.5, 1.0)})
    result = NewcomersResult(joined.record(), joined)
    result.save(tmp_path)
    conclude(RunFolder(tmp_path), [result])
    assert (tmp_path / "newcomers.csv").read_text() == "client,group,server,fitted\n7,all,0.25,0.5\n9,all,0.75,1.0\n"
    told = json.loads((tmp_path / "newcomers.json").read_text())
    assert (told["clients"], told["visits"]) == (2, 3)
    assert {stage: part["mean"] for stage, part in told["accuracy"].items()} == {"server": 0.5, "fitted": 0.75}
    assert set(told["accuracy"]) <= set(told["words"])
    [loaded] = NewcomersResult.load_all(tmp_path)
    assert {**loaded.content, "words": told["words"]} == told
    assert summaries(RunFolder(tmp_path)) == {"newcomers": loaded.content}
    text = "50.00% with the released model; 75.00% private part fitted in 3 visits, all else frozen"
    assert loaded.closing_rows() == [("newcomers", "2", text)]


@pytest.mark.parametrize("kind", [FairnessResult, NewcomersResult])
@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_broken_files_are_named(tmp_path, kind, content):
    """With their path, as those of other results."""
    (tmp_path / f"{kind.label}.json").write_text(content)
    with pytest.raises(UserError, match=rf"{kind.label}\.json cannot be read"):
        kind.load_all(tmp_path)


def test_rows_of_the_terminal():
    """The terminal shows mean, worst, variance, groups and gap, the settled means, the controls and the verdict."""
    before = {name: value / 2 for name, value in PRIVATE.metrics().items()}
    rows = fairness_rows(fairness_record(PRIVATE, [{"round": 6.0, **before}]))
    assert rows == [
        (
            "local test accuracy",
            "62.50%",
            "of 4 clients with the model that each would use, worst 25.00%, variance 781.2, "
            "majority 87.50%, minority 37.50%, gap 50.0 points",
        ),
        (
            "last 2 measured",
            "46.88%",
            "mean of the rounds, variance 585.9, majority 65.62%, minority 28.12%, gap 37.5 points",
        ),
        ("another's choice", "25.00%", f"mean choice 43.75%, none 43.75%: {PRIVATE.swap.verdict}"),
        (
            "after fine-tuning",
            "87.50%",
            "worst 75.00%, variance 156.2, majority 100.00%, minority 75.00%, gap 25.0 points",
        ),
    ]
    alike = fairness_rows(fairness_record(replace(PLAIN, groups=("all",) * 4), []))
    assert alike == [
        (
            "local test accuracy",
            "62.50%",
            "of 4 clients with the model that each would use, worst 25.00%, variance 781.2",
        )
    ]
    assert fairness_rows({}) == []


def test_former_end_becomes_a_round_like_others(tmp_path):
    """Of a run that goes on, only planned rounds keep their measurements, and none keeps controls."""
    folder = RunFolder(tmp_path)
    lines = [record(1), record(2, 0.3), record(3, 0.4)]
    ends = [{**line, "everyone/another": 0.1, "everyone/fine_tuned_gap": 0.2} for line in lines[1:]]
    for line in (lines[0], *ends):
        folder.append_json("metrics.jsonl", {**line, "note": math.nan})
    untouched = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    forget_unplanned(folder, [2])
    kept = folder.read_lines("metrics.jsonl")
    assert kept == [{**line, "note": None} for line in (lines[0], lines[1], record(3))]
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[0] == untouched


def test_nothing_to_forget(tmp_path):
    """Without a file, or with measurements that are all planned, nothing is written."""
    folder = RunFolder(tmp_path)
    forget_unplanned(folder, [])
    assert not list(tmp_path.iterdir())
    folder.append_json("metrics.jsonl", record(1, 0.5))
    before = (tmp_path / "metrics.jsonl").stat()
    forget_unplanned(folder, [1])
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino


CASES = {
    "five clients": several(5),
    "two groups of few": several(5, 2, private=True),
    "hundred in one group": several(100, private=True),
    "thousand in two groups": several(1000, 200),
    "one client": several(1),
    "all alike": replace(several(3), accuracies={"own": (1.0, 1.0, 1.0)}),
    "all wrong": replace(several(3), accuracies={"own": (0.0, 0.0, 0.0)}),
}


@pytest.mark.parametrize(("case", "rounds"), [*((case, 4) for case in CASES), (next(iter(CASES)), 1), ("all alike", 1)])
def test_picture(case, rounds, tmp_path):
    """As many panels as there is something to show, every axis labelled, no warning, for few and many clients."""
    everybody = CASES[case]
    lines = [{**everybody.metrics(), "round": float(number)} for number in range(1, rounds + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_fairness(everybody, lines, case)
        figure.savefig(tmp_path / "a.png", dpi=40)
    assert len(figure.axes) == 1 + (rounds > 1) + (len(everybody.accuracies) > 1)
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert "%" in figure.axes[0].get_xlabel()


def test_picture_shows_the_numbers():
    """Histograms hold all clients of their group, dashed lines are the means, bars and curves have their values."""
    lines = [{**PRIVATE.metrics(), "round": float(number), "everyone/accuracy": number / 8} for number in (2, 4)]
    shares, curves, bars = draw_fairness(PRIVATE, lines, "a").axes
    means = [line.get_xdata()[0] for line in shares.get_lines() if line.get_linestyle() == "--"]
    assert means == [87.5, 37.5]
    strokes = [path.vertices[0, 0] for band in shares.collections for path in band.get_paths()]
    assert strokes == [100.0, 75.0, 50.0, 25.0]
    for histogram in shares.patches:
        corners = histogram.get_xy()
        width = np.diff(np.unique(corners[:, 0]))[0]
        area = abs(np.trapezoid(corners[:, 1], corners[:, 0]))
        assert area / width == pytest.approx(100)
    drawn = {line.get_label(): list(line.get_ydata()) for line in curves.get_lines()}
    assert drawn["mean of all clients"] == [25.0, 50.0]
    assert drawn["mean of the minority"] == [37.5, 37.5]
    assert drawn["worst client"] == [25.0, 25.0]
    assert [bar.get_width() for bar in bars.patches] == [62.5, 25.0, 43.75, 43.75, 87.5]
    assert [label.get_text() for label in bars.get_yticklabels()][1] == "another client's"
    assert bars.get_title().replace("\n", " ") == PRIVATE.swap.verdict
