"""Weights & Biases: rounds on the x axis, configuration, summary and the table of clients; whose run it is."""

import pytest
import wandb
from run_kit import parsed, records, train
from tracking_kit import Experiment, no_wandb_settings, offline_run  # noqa: F401

from app.commands.attack import attack
from app.results.comparison.rows import IGNORED
from app.results.run.tracking import RUN_ID, RoundLogger, default_mode, make_tracker

pytestmark = pytest.mark.usefixtures("no_wandb_settings")


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """What the next tracked run tells W&B."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", property(lambda self: experiment))
    init = RoundLogger.__init__

    def prepared(self, *arguments, **settings):
        init(self, *arguments, **settings)
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
    assert experiment.results["fairness/final/mean"] == experiment.results["everyone/accuracy"]
    [table] = [step["clients"] for step in experiment.logged if "clients" in step]
    assert isinstance(table, wandb.Table)
    assert table.columns[:2] == ["client", "capacity"]
    assert [row[0] for row in table.data] == [0, 1, 2, 3]
    assert experiment.ended == 0


def test_name_group_and_mode(tmp_path):
    """As asked for; the id is that of the folder."""
    logger = make_tracker("offline", tmp_path, "a", "mine", "my-project", "my-team")
    expected = {"name": "a", "group": "mine", "project": "my-project", "entity": "my-team"}
    expected |= {"id": (tmp_path / RUN_ID).read_text(), "resume": "allow", "mode": "offline"}
    assert {key: logger._wandb_init[key] for key in expected} == expected
    assert logger.offline
    assert not logger.images


def test_ids_are_unique_and_stay(tmp_path):
    """Runs of the same name in two comparisons are two runs; one that is opened again is the same."""
    folders = [tmp_path / comparison / "same-name" for comparison in ("one", "two")]
    first, second = (make_tracker("offline", folder, folder.name).version for folder in folders)
    assert first != second
    assert len(first) >= 8
    assert make_tracker("online", folders[0], "renamed").version == first


def test_id_of_the_agent_of_a_sweep(tmp_path, monkeypatch):
    """It counts for a new run, and stays its id; a run that has one keeps it."""
    own = make_tracker("offline", tmp_path / "old", "old").version
    monkeypatch.setenv("WANDB_RUN_ID", "abcd1234")
    assert make_tracker("offline", tmp_path / "new", "new").version == "abcd1234"
    assert make_tracker("offline", tmp_path / "old", "old").version == own
    monkeypatch.delenv("WANDB_RUN_ID")
    assert make_tracker("offline", tmp_path / "new", "new").version == "abcd1234"


def test_id_of_an_earlier_version(tmp_path):
    """Runs of version 0.2 kept no file; they go on under the id that their logs have."""
    (tmp_path / "wandb" / "offline-run-20250101_120000-mine").mkdir(parents=True)
    (tmp_path / "wandb" / "offline-run-20250101_120000-mine" / "run-mine.wandb").touch()
    assert make_tracker("offline", tmp_path, "mine").version == "mine"
    assert (tmp_path / RUN_ID).read_text() == "mine"


def test_variables_of_wandb_are_defaults(monkeypatch):
    """Project, team and mode; what the command line says counts more, and the configuration keeps what was used."""
    names = ("tracking", "project", "entity", "track_images")
    assert [parsed()[name] for name in names] == ["offline", "rampart", None, False]
    for variable, value in (("PROJECT", "privacy"), ("ENTITY", "my-team"), ("MODE", "disabled")):
        monkeypatch.setenv(f"WANDB_{variable}", value)
    assert [parsed()[name] for name in names] == ["disabled", "privacy", "my-team", False]
    options = ("--tracking", "online", "--project", "other", "--entity", "me", "--track_images", "true")
    assert [parsed(*options)[name] for name in names] == ["online", "other", "me", True]
    assert set(names) <= set(IGNORED), "runs are compared wherever they are tracked"


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"MODE": "online"}, "online"),
        ({"MODE": "run"}, "online"),
        ({"MODE": "dryrun"}, "offline"),
        ({"MODE": "disabled"}, "disabled"),
        ({"SWEEP_ID": "s1"}, "online"),
        ({"SWEEP_ID": "s1", "MODE": "offline"}, "offline"),
    ],
)
def test_mode_without_a_choice(variables, mode, monkeypatch):
    """An agent waits for the numbers of its sweep; nothing else is uploaded unasked."""
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert default_mode() == mode


def test_system_metrics_are_for_online_runs(tmp_path):
    """Use of memory and processors belongs to the page of a run; offline it would only fill the folder."""
    settings = {mode: make_tracker(mode, tmp_path, "a")._wandb_init["settings"] for mode in ("offline", "online")}
    assert settings["offline"].x_disable_stats
    assert not settings["online"].x_disable_stats


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
    """No tracker, no folder; a later attack is not tracked either."""
    assert make_tracker("disabled", tmp_path / "a", "a", None, "p") is None
    folder = train(tmp_path, "b", rounds=1)
    assert attack([str(folder), "--attacks", "yeom", "--controls", "skip", "--calibrate", "false"]) == 0
    assert not list(tmp_path.rglob("*wandb*"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_two_offline_runs_in_one_process(tmp_path):
    """Each leaves its own offline run with metrics and configuration in its own folder, and no trace elsewhere."""
    kept = []
    for name in ("a", "b"):
        folder = train(tmp_path, name, "--tracking", "offline", "--project", "mine", rounds=1)
        assert wandb.run is None
        run = offline_run(folder)
        assert run.run.run_id == (folder / RUN_ID).read_text()
        assert (run.run.display_name, run.run.project) == (name, "mine")
        assert [step["round"] for step in run.rounds] == [1]
        assert {"clients/trained_own/worst", "server/accuracy"} <= set(run.rounds[0])
        assert run.config["trainer"]["max_epochs"] == 1
        assert "seed_everything" in run.config
        assert list(run.folder.rglob("clients_*.table.json"))
        kept.append(run.run.run_id)
    assert len(set(kept)) == 2
    assert parsed()["tracking"] == "offline", "no variable was changed"


@pytest.mark.usefixtures("no_figures")
def test_a_promised_budget_keeps_unnoised_numbers_out(experiment, tmp_path, capsys):
    """Rounds, summary and table of clients without them, also when a run with more rounds is told again."""
    options = ("--tracking", "offline", "--defenses.dp", "DPFedAvg", "--defenses.dp.noise", "1")
    for rounds in (1, 2):
        folder = train(tmp_path, "a", *options, rounds=rounds)
    private = {"clients/loss", "clients/dropped", "server/train_accuracy", "dp_fedavg/noise_to_change"}
    told = [step for step in experiment.logged if "round" in step]
    assert [step["round"] for step in told] == [1, 1, 2]
    assert not private & {name for step in told for name in step}
    assert not private & set(experiment.results)
    assert {"server/accuracy", "dp_fedavg/epsilon"} <= set(experiment.results) & set(told[0])
    tables = [step["clients"] for step in experiment.logged if "clients" in step]
    assert all(not {"loss", "dropped"} & set(table.columns) for table in tables)
    assert len(tables[0].columns) == len(tables[0].data[0])
    assert private - {"server/train_accuracy"} <= set(records(folder)[-1]), "the experimenter's own file has them"
    assert capsys.readouterr().err.count("loggers and trackers do not get them") == 2
