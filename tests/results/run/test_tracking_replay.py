"""Weights & Biases offline: however often a run was interrupted or attacked, one upload holds all of it once."""

import json
import math

import pytest
from finding_kit import finding
from run_kit import INTERRUPTIBLE, Interrupter, command, records, train
from tracking_kit import Experiment, no_wandb_settings, offline_run  # noqa: F401

from app.commands.attack import attack
from app.commands.fit import fit
from app.federation.reports import CLIENT_COLUMNS
from app.result import Measurement
from app.results.attacks.membership import AttackRecord
from app.results.run.folder import RunFolder
from app.results.run.results import replay
from app.results.run.tracking import RUN_ID, RoundLogger, make_tracker
from callbacks.recorders.run_recorder import RunRecorder

pytestmark = pytest.mark.usefixtures("no_wandb_settings")

TRACKED = ("--tracking", "offline", *INTERRUPTIBLE)
YEOM = ("--attacks", "yeom", "--controls", "skip", "--calibrate", "false")
ATTACKED = (
    *("--attacks.mia", "MembershipInference", "--attacks.mia.attacks", "[yeom]"),
    *("--attacks.mia.controls", "skip", "--attacks.mia.calibrate", "false"),
)


class PowerCutError(Exception):
    """The run is over, at once."""


def cut(*_):
    """In the middle of something."""
    raise PowerCutError


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run that was cut off in round 3 of 4."""
    monkeypatch.setattr(Interrupter, "when", (3, 2))
    monkeypatch.setattr(Interrupter, "act", cut)
    with pytest.raises(PowerCutError):
        fit(command(tmp_path, "a", *TRACKED, rounds=4))
    monkeypatch.setattr(Interrupter, "when", None)
    return tmp_path / "a"


def assert_tells_all(folder):
    """Every round once with all of its numbers, one table of clients, and the summary; returns the offline run."""
    run, metrics, costs = offline_run(folder), records(folder), records(folder, "cost.jsonl")
    assert run.run.run_id == (folder / RUN_ID).read_text()
    assert [step["round"] for step in run.rounds] == [record["round"] for record in metrics]
    for step, metric, cost in zip(run.rounds, metrics, costs, strict=True):
        told = metric | {f"cost/{name}": value for name, value in cost.items()}
        assert {name: step[name] for name in told} == told
    summary = json.loads((folder / "summary.json").read_text())
    assert run.summary["server/accuracy"] == summary["final"]["server/accuracy"] == metrics[-1]["server/accuracy"]
    assert run.summary["cost/rounds"] == len(metrics)
    [table] = run.folder.rglob("clients_*.table.json")
    rows = [[client[column] for column in CLIENT_COLUMNS] for client in summary["clients"]]
    assert json.loads(table.read_text())["data"] == rows
    return run


@pytest.mark.usefixtures("no_figures")
def test_after_an_interruption(interrupted, tmp_path):
    """Rounds before the checkpoint are told again, those after it when they are repeated."""
    first = offline_run(interrupted)
    assert [step["round"] for step in first.rounds] == [1, 2]
    newest = interrupted / "checkpoints" / "round-00002.ckpt"
    newest.write_bytes(newest.read_bytes()[:100])
    with (interrupted / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3.0, "server/acc')  # as a crash leaves it
    train(tmp_path, "a", *TRACKED, rounds=4)
    run = assert_tells_all(interrupted)
    assert [step["round"] for step in run.rounds] == [1, 2, 3, 4]
    assert run.run.run_id == first.run.run_id
    assert run.folder != first.folder
    assert run.config["trainer"]["max_epochs"] == 4


@pytest.mark.usefixtures("no_figures")
def test_after_an_interruption_without_a_checkpoint(interrupted, tmp_path):
    """All rounds are repeated, and none is told twice."""
    for path in (interrupted / "checkpoints").iterdir():
        path.unlink()
    train(tmp_path, "a", *TRACKED, rounds=4)
    assert [step["round"] for step in assert_tells_all(interrupted).rounds] == [1, 2, 3, 4]


@pytest.mark.usefixtures("no_figures")
def test_where_no_round_was_left(tmp_path, monkeypatch):
    """Cut off between the last round and the summary: the resumed run trains nothing and tells everything."""
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "_finish", cut)
        with pytest.raises(PowerCutError):
            fit(command(tmp_path, "a", *TRACKED, rounds=2))
    train(tmp_path, "a", *TRACKED, rounds=2)
    assert [step["round"] for step in assert_tells_all(tmp_path / "a").rounds] == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_after_more_rounds_and_later_attacks(tmp_path):
    """A run that was attacked at its end, went on, and was attacked again."""
    folder = train(tmp_path, "a", *TRACKED, *ATTACKED, rounds=2)
    whole = assert_tells_all(folder)
    train(tmp_path, "a", *TRACKED, *ATTACKED, rounds=3)
    longer = assert_tells_all(folder)
    assert attack([str(folder), "--trust", *YEOM, "--targets", "global", "--rounds", "2"]) == 0
    attacked = assert_tells_all(folder)
    assert [len(run.rounds) for run in (whole, longer, attacked)] == [2, 3, 3]
    assert len({run.run.run_id for run in (whole, longer, attacked)}) == 1
    assert whole.folder != attacked.folder, "every part has a folder, whose name tells the second"
    numbers = json.loads((folder / "summary.json").read_text())["attacks"]
    told = {name: value for name, value in attacked.summary.items() if name.startswith("attacks/")}
    headline = {f"attacks/headline/{kind}/auc": one["auc"] for kind, one in numbers.pop("headline").items()}
    assert {"attacks/yeom.global@2/auc", "attacks/yeom.uploads/auc"} <= set(numbers)
    assert {name: told[name] for name in {**numbers, **headline}} == {**numbers, **headline}
    tables = [json.loads(path.read_text()) for path in attacked.folder.rglob("attacks/results_*.table.json")]
    labels = sorted(len(table["data"]) for table in tables)
    assert labels == [2, 2], "the results of the end of the run, told again, and those of the attack"
    assert attacked.logged("attacks/roc_points/nrows")


def parts(folder, *names):
    """Earlier offline parts of a run; those with a mark were uploaded."""
    for name in names:
        part = folder / "wandb" / f"offline-run-{name}"
        part.mkdir(parents=True)
        (part / f"run-x.wandb{'.synced' if 'synced' in name else ''}").touch()
    return folder


@pytest.mark.parametrize(
    ("mode", "before", "replayed", "left"),
    [
        ("offline", ("1-a", "2-synced"), True, set()),
        ("offline", (), True, set()),
        ("online", (), False, set()),
        ("online", ("1-synced",), False, {"offline-run-1-synced"}),
        ("online", ("1-synced", "2-a"), True, {"offline-run-1-synced"}),
    ],
)
def test_what_was_uploaded_is_not_told_again(mode, before, replayed, left, tmp_path, monkeypatch):
    """Online runs go on where they were, unless they began offline."""
    monkeypatch.setattr(RoundLogger, "experiment", Experiment())
    tracker, told = make_tracker(mode, parts(tmp_path, *before), "a"), []
    tracker.begin({}, told.append)
    assert told == [tracker] * replayed
    assert {path.name for path in tmp_path.glob("wandb/*")} == left


def test_broken_results_do_not_stop_a_run(tmp_path, monkeypatch):
    """They are named in a warning; all others are told."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", experiment)
    Measurement("norms", {"mean": 1.5}).save(tmp_path)
    AttackRecord.of(finding()).save(tmp_path)
    (tmp_path / "attacks" / "yeom.global.npz").unlink()
    with pytest.warns(UserWarning, match="membership inference are not tracked: .* no arrays of yeom.global"):
        replay(RunFolder(tmp_path), RoundLogger(offline=True))
    assert experiment.results == {"results/norms/mean": 1.5}


def test_numbers_without_a_value(tmp_path, monkeypatch):
    """JSON holds null where the run told NaN."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", experiment)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1.0, "clients/loss": null}\n{"round": 2.0}\n')
    (tmp_path / "cost.jsonl").write_text('{"round": 1, "clients": 4}\n')
    replay(RunFolder(tmp_path), RoundLogger(offline=True))
    first, second = experiment.logged
    assert math.isnan(first.pop("clients/loss"))
    assert (first, second) == ({"round": 1.0, "cost/round": 1, "cost/clients": 4}, {"round": 2.0})
