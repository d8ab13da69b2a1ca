"""The same run through the command, from recipes in Python, from objects, and with a plain Trainer."""

from functools import partial

import pytest
from lightning import Trainer
from run_kit import fast_runs, leave_out_figures, no_figures, no_run_name, train  # noqa: F401

from app import Capacities, FederatedModule, LocalTraining, Run, audit, build_run, load_run
from app.attacks.shadows.shadow_store import ShadowSettings
from app.common.errors import UserError
from app.configuration import TRAINER_DEFAULTS
from app.models import MLP
from callbacks import FairnessRecorder, MembershipInference, MemDefense, RunRecorder, TranscriptRecorder
from datamodules import Digits, Iid

pytestmark = pytest.mark.usefixtures("no_figures")

ROUNDS = 2
ATTACKS = ["yeom", "lira-offline"]
OPTIONS = {
    "data.test_fraction": 0.8,
    "model.capacities.large": 2,
    "defenses.memdefense": "MemDefense",
    "defenses.memdefense.gamma": 0.5,
    "attacks.mia": "MembershipInference",
    "attacks.mia.attacks": ATTACKS,
    "attacks.mia.shadows.count": 4,
    "attacks.mia.controls": "skip",
}


def objects():
    """Federation, data, defense and attack of the run."""
    federation = FederatedModule(
        net=partial(MLP, hidden=[8]),
        capacities=Capacities(large=2),
        local=LocalTraining(batch_size=16),
        executor="sequence",
    )
    attack = MembershipInference(list(ATTACKS), shadows=ShadowSettings(count=4), controls="skip")
    return federation, Digits(partition=Iid(4), test_fraction=0.8), MemDefense(gamma=0.5), attack


@pytest.fixture(scope="module")
def by_command(tmp_path_factory):
    """The run of the command."""
    root = tmp_path_factory.mktemp("command")
    options = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        return train(root, "run", *options, rounds=ROUNDS)


def assert_equal_runs(left, right):
    """Metrics, clients, transcript and scores of attacks are the same bytes."""
    names = [sorted(path.relative_to(run) for path in run.glob("attacks/*.npz")) for run in (left, right)]
    assert names[0] == names[1]
    assert len(names[0]) == 2 * len(ATTACKS) + 2  # on two targets, and uploads refilled by an attacker who adapts
    seen = [sorted(path.relative_to(run) for path in run.glob("transcript/**/*.npz")) for run in (left, right)]
    assert seen[0] == seen[1]
    for name in ("metrics.jsonl", "clients.csv", "everyone.csv", *names[0], *seen[0]):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


def test_recipes_in_python(by_command, tmp_path):
    """`build_run` takes the options of the command."""
    settings = {"partition": {"class_path": "Iid", "init_args": {"clients": 4}}}
    layer = {"data": {"class_path": "Digits", "init_args": settings}, "trainer": {"accelerator": "cpu"}}
    net = {"class_path": "MLP", "init_args": {"hidden": [8]}}
    options = {"run.root": str(tmp_path), "run.name": "run", "trainer.max_epochs": ROUNDS, "trainer.devices": 1}
    run = build_run(layer, {"model": {"net": net, "executor": "sequence"}}, tracking="disabled", **options, **OPTIONS)
    assert run.fit() is run
    assert_equal_runs(by_command, tmp_path / "run")
    assert [result.kind for result in run.results][:2] == ["fairness", "membership inference"]


def test_objects(by_command, tmp_path):
    """A `Run` of objects; its configuration is written from them, and replays."""
    federation, data, defense, attack = objects()
    folder = tmp_path / "run"
    run = Run(
        federation, data, [defense], {"mia": attack}, folder, trainer={"max_epochs": ROUNDS, "accelerator": "cpu"}
    )
    run.fit()
    assert_equal_runs(by_command, folder)
    labels, other = load_run(folder).record.labels, load_run(by_command).record.labels
    assert labels == other
    again = build_run(folder / "config.yaml", **{"run.root": str(tmp_path), "run.name": "again"}).fit()
    assert_equal_runs(by_command, again.folder.path)


def test_plain_trainer(by_command, tmp_path):
    """A plain Trainer with a recorder leaves the same folder."""
    federation, data, defense, attack = objects()
    folder = tmp_path / "run"
    recorders = [RunRecorder(folder), TranscriptRecorder(folder / "transcript"), FairnessRecorder()]
    options = TRAINER_DEFAULTS | {"accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(**options, max_epochs=ROUNDS, callbacks=[*recorders, attack, defense]).fit(federation, datamodule=data)
    assert_equal_runs(by_command, folder)


def test_attacked_later(by_command, tmp_path):
    """`audit` finds in the run's folder, and in the federation in memory, what the run found at its end."""
    settings = {"shadows": ShadowSettings(count=4), "controls": "skip"}
    before = {path.name: path.read_bytes() for path in by_command.glob("attacks/*.npz")}
    found = audit(by_command, ATTACKS, **settings)
    assert {path.name: path.read_bytes() for path in by_command.glob("attacks/*.npz")} == before
    federation, data, defense, _ = objects()
    options = TRAINER_DEFAULTS | {"accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False}
    recorder = TranscriptRecorder()
    Trainer(**options, max_epochs=ROUNDS, callbacks=[defense, recorder]).fit(federation, datamodule=data)
    in_memory = audit(federation, ATTACKS, **settings)
    assert [result.label for result in in_memory.results] == [result.label for result in found.results]
    for left, right in zip(found.results, in_memory.results, strict=True):
        assert (left.scores.scores == right.scores.scores).all()
        assert left.leakage.auc.value == right.leakage.auc.value


def test_untrained_federation_is_refused():
    """There is nothing to attack yet."""
    with pytest.raises(UserError, match="not trained"):
        audit(FederatedModule(), ["yeom"])


def test_malicious_server_after_training(by_command):
    """Clients of a federation in memory no longer respond; those of a run are asked again."""
    federation, data, *_ = objects()
    options = TRAINER_DEFAULTS | {"accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(**options, max_epochs=1).fit(federation, datamodule=data)
    with pytest.raises(UserError, match="no longer respond"):
        audit(federation, ["rolling-model"])
    mixed = audit(by_command, ["yeom", "rolling-model", "mi-face"], targets=["global"], controls="skip")
    assert {result.kind for result in mixed.results} == {"membership inference", "reconstruction"}


def test_objects_show_themselves(by_command):
    """Text and, in a notebook, tables."""
    run = load_run(by_command)
    assert "heterofl" in repr(run)
    assert "server/accuracy" in run._repr_html_()
    assert list(run.to_pandas()["round"]) == [1.0, 2.0]
    found = audit(run, ["yeom"], targets=["global"], controls="skip")
    assert "yeom" in repr(found)
    assert "<table>" in found._repr_html_()
    assert set(found.to_pandas()["label"]) == {"yeom.global"}
    assert len(found.roc().axes) > 0
