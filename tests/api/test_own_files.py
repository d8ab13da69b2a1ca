"""A defense, an attack and a recorder of a user's own file, from Python and from the command; all are reported."""

import json
import sys

import pytest
from lightning import Trainer
from run_kit import exit_code, fast_runs, no_run_name, train  # noqa: F401

from app import FederatedModule, LocalTraining, audit, load_run, report
from app.configuration import TRAINER_DEFAULTS
from app.models import MLP
from callbacks import RunRecorder
from datamodules import Digits, Iid

DEFENSE = '''
from app import FederatedCallback


class ClipUpdate(FederatedCallback):
    """Scales every client's change to a Euclidean norm of at most `norm`."""

    def __init__(self, norm: float = 1.0) -> None:
        self.norm, self.clipped = norm, 0

    def on_round_start(self, trainer, federation, plan):
        self.clipped = 0

    def on_client_update(self, trainer, federation, update):
        change = update.vector - update.received
        self.clipped += int(change.norm() > self.norm)
        update.vector.copy_(update.received + change * min(1.0, self.norm / float(change.norm())))

    def measurements(self):
        return {"clipped": float(self.clipped)}
'''

ATTACK = '''
from app import FederatedCallback, Measurement


class UpdateNorms(FederatedCallback):
    """How far each client moved in the last round, as an honest-but-curious server sees it."""

    kind = "attack"

    def on_transcript(self, federation, transcript):
        view = transcript.server_view()
        sent = view.broadcast(view.rounds[-1])
        norms = {}
        for upload in view.uploads(view.rounds[-1]):
            start = sent if upload.index is None else sent[upload.index]
            norms[upload.client] = float((upload.payload - start).norm())
        numbers, rows = {"largest": max(norms.values())}, tuple(norms.items())
        yield Measurement("update-norms", numbers, ("client", "norm"), rows, ("seen by the server",))
'''

RECORDER = '''
from matplotlib.figure import Figure

from app import FederatedCallback, Measurement


class Losses(FederatedCallback):
    """Mean training loss of the clients over the rounds."""

    kind = "recorder"

    def __init__(self) -> None:
        self.losses = []

    def on_round_end(self, trainer, federation, metrics, costs):
        self.losses.append(metrics["clients/loss"])

    def results(self, federation):
        figure = Figure(figsize=(3, 2))
        figure.subplots().plot(self.losses)
        yield Measurement("losses", {"last": self.losses[-1], "rounds": len(self.losses)}, figure=figure)
'''


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """The user's folder, with one file for each."""
    for name, text in {"own_defense": DEFENSE, "own_attack": ATTACK, "own_recorder": RECORDER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("own_defense", "own_attack", "own_recorder"):
        sys.modules.pop(name, None)


def assert_reported(folder):
    """The run's summary, files, metrics and report hold what the three have found."""
    run = load_run(folder)
    measured = {one.label: one for one in run.record.measurements}
    assert set(measured) == {"update-norms", "losses"}
    norms = dict(measured["update-norms"].rows)
    assert 0 < max(norms.values()) <= 0.05 + 1e-5  # the defense has clipped them
    assert measured["update-norms"].numbers["largest"] == pytest.approx(max(norms.values()))
    assert measured["losses"].numbers["rounds"] == 2
    assert (folder / "results" / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert run.metrics[-1]["clipped"] == 4
    assert "results/losses/last" in json.loads((folder / "summary.json").read_text())["results"]
    page = report(folder).path.read_text()
    assert "update-norms" in page
    assert "losses" in page
    assert "clip" in page  # the row is labelled by the defense


def test_from_the_command(own_files):
    """Each is named as `module.Class`; `rampart attack` takes the attack, too."""
    options = ("--defenses.clip", "own_defense.ClipUpdate", "--defenses.clip.norm", "0.05")
    others = ("--attacks.norms", "own_attack.UpdateNorms", "--trainer.callbacks+", "own_recorder.Losses")
    folder = train(own_files, "run", *options, *others, rounds=2)
    assert_reported(folder)
    (folder / "results" / "update-norms.json").unlink()
    assert exit_code("attack", str(folder), "--attacks", "own_attack.UpdateNorms", "--trust") == 0
    assert_reported(folder)


def test_from_python(own_files):
    """Each is passed to a plain Trainer; `audit` takes the attack, too."""
    from own_attack import UpdateNorms
    from own_defense import ClipUpdate
    from own_recorder import Losses

    federation = FederatedModule(
        net=lambda shape: MLP(shape, hidden=[8]), local=LocalTraining(batch_size=16), workers=2
    )
    options = TRAINER_DEFAULTS | {"accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False}
    folder = own_files / "run"
    callbacks = [Losses(), RunRecorder(folder), UpdateNorms(), ClipUpdate(norm=0.05)]
    Trainer(**options, max_epochs=2, callbacks=callbacks).fit(federation, datamodule=Digits(partition=Iid(4)))
    assert_reported(folder)
    assert [one.label for one in federation.results] == ["losses", "update-norms"]
    (again,) = audit(federation, [UpdateNorms()]).results
    assert again.rows == federation.results[-1].rows
