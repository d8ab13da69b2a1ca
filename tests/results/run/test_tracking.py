"""Weights & Biases: rounds on the x axis, configuration, summary and the table of clients."""

import pytest
import wandb
from run_kit import train
from tracking_kit import Experiment, soon_in

from app.results.run.tracking import RoundLogger, make_tracker


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """What the next tracked run tells W&B."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", property(lambda self: experiment))
    init = RoundLogger.__init__

    def prepared(self, **settings):
        init(self, **settings)
        self._experiment = experiment

    monkeypatch.setattr(RoundLogger, "__init__", prepared)
    return experiment


@pytest.mark.usefixtures("no_figures")
def test_a_run_tells_all(experiment, tmp_path):
    """Every round once with its number, the configuration, the final numbers, and a row per client."""
    train(tmp_path, "a", "--tracking", "offline", "--group", "mine")
    assert experiment.axes == {"round": None, "*": "round"}
    rounds = [step for step in experiment.logged if "round" in step]
    assert [step["round"] for step in rounds] == [1, 2, 3]
    assert {"server/accuracy", "clients/trained_own/worst", "cost/bytes/up", "cost/seconds/total"} <= set(rounds[0])
    assert experiment.settings["trainer"]["max_epochs"] == 3
    assert experiment.settings["model"]["net"]["class_path"].endswith("MLP")
    assert experiment.results["round"] == 3
    assert experiment.results["cost/rounds"] == 3
    [table] = [step["clients"] for step in experiment.logged if "clients" in step]
    assert isinstance(table, wandb.Table)
    assert table.columns[:2] == ["client", "capacity"]
    assert [row[0] for row in table.data] == [0, 1, 2, 3]
    assert experiment.ended == 0


def test_name_group_and_mode(tmp_path):
    """The run's name is its id, so that a resumed run goes on in the same place."""
    logger = make_tracker("offline", tmp_path, "a", "mine", "rampart")
    expected = {"name": "a", "id": "a", "group": "mine", "project": "rampart", "resume": "allow", "mode": "offline"}
    told = {key: value for key, value in logger._wandb_init.items() if key in expected}
    assert {"mode": "offline", **told} == expected
    assert logger._offline


def test_metrics_of_lightning_are_passed_over(experiment):
    """What has no round has no place on the x axis."""
    logger = RoundLogger(offline=True)
    logger.log_metrics({"epoch": 1}, step=3)
    logger.log_metrics({"round": 2.0, "a": 1}, step=3)
    assert experiment.logged == [{"round": 2.0, "a": 1}]


def test_failed_run_ends_as_failed(experiment):
    """The run is closed with an exit code, so that the next one in this process does not continue it."""
    RoundLogger(offline=True).finalize("failed")
    assert experiment.ended == 1


def test_disabled_tracking_leaves_nothing(tmp_path):
    """No tracker, no folder."""
    assert make_tracker("disabled", tmp_path / "a", "a", None, "p") is None
    folder = train(tmp_path, "b", rounds=1)
    assert not list(tmp_path.rglob("*wandb*"))
    assert folder.is_dir()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_two_offline_runs_in_one_process(tmp_path, monkeypatch):
    """Each leaves its own offline run with metrics and configuration in its own folder."""
    for variable in ("WANDB_DIR", "WANDB_MODE", "WANDB_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    for name in ("a", "b"):
        folder = train(tmp_path, name, "--tracking", "offline", rounds=1)
        assert wandb.run is None
        [run] = (folder / "wandb").glob("offline-run-*")
        [log] = run.glob(f"run-{name}.wandb")
        for text in (b"clients/trained_own/worst", b"seed_everything", b"max_epochs", b"server/accuracy"):
            assert soon_in(log, text), text
        assert list(run.rglob("clients_*.table.json"))
