"""What follows the last round on a device: closing work, attacks afterwards, the model in use, and interrupted runs.

Lightning moves the module to the CPU before `on_fit_end`, while the data stay on the device: what needs both must be
done before that.
"""

import json
from functools import partial

import numpy as np
import pytest
import torch
from device_kit import MLP, SMALL, FewDigits, outcome
from lightning.pytorch import Trainer
from PIL import Image

from app.auditing import audit
from app.commands.predict import predict
from app.commands.validate import validate
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.finished import load_run
from app.models import MLP as Dense
from app.run import build_run
from datamodules import Iid

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

pytestmark = pytest.mark.usefixtures("no_figures")


class Places(FederatedCallback):
    """Notes where net and data are when the run is closed."""

    kind = "recorder"

    def on_run_end(self, trainer, federation):
        """Both on the device."""
        self.places = federation.device.type, federation.data.store.device.type


def trained(device, *callbacks, rounds=2):
    """A federation after a Trainer's fit."""
    local = LocalTraining(batch_size=32, epochs=1)
    federation = FederatedModule(net=partial(Dense, hidden=(8,)), capacities=[1, 0.5, 0.5], local=local)
    trainer = Trainer(max_epochs=rounds, accelerator=device, devices=1, callbacks=list(callbacks), **QUIET)
    trainer.fit(federation, datamodule=FewDigits(partition=Iid(3)))
    return federation


@pytest.fixture(scope="module")
def finished(device, tmp_path_factory):
    """A run on the device that is over, opened again."""
    root = tmp_path_factory.mktemp("finished")
    done = outcome(device, root, "heterofl", **MLP, **{"trainer.enable_checkpointing": True})
    return done, load_run(root / device, trust=True)


def test_closing_work_has_net_and_data_on_the_device(device):
    """At the end of the training; the net leaves the device afterwards."""
    places = Places()
    federation = trained(device, places, rounds=2)
    assert places.places[0] == places.places[1] == torch.device(device.replace("gpu", "cuda")).type
    assert federation.device.type == "cpu", "Lightning has moved the module away"


def test_attacks_in_memory(device):
    """After the fit the net is on the CPU; an audit brings the data there."""
    there, here = (audit(trained(place), ["yeom", "nasr"], controls="skip") for place in (device, "cpu"))
    numbers = [{one.label: dict(one.numbers, seconds=0) for one in found.results} for found in (there, here)]
    assert numbers[0].keys() == numbers[1].keys() == {"yeom.global", "nasr.global", "yeom.uploads", "nasr.uploads"}
    assert all("auc" in own for label, own in numbers[0].items() if label.endswith("global"))


def test_attacks_on_a_finished_run(finished):
    """From its transcript, and by a malicious server that repeats its last rounds."""
    done, run = finished
    assert run.run.federation.device.type == done.run.federation.data.store.device.type != "cpu"
    found = audit(run, ["yeom", "trap-weights", "rolling-model"], controls="skip", insist=True)
    assert not found.failed
    assert all(result.numbers for result in found.results)


def test_trained_model_in_use(finished, tmp_path):
    """Exported files hold the model of the run; it is evaluated as it was, and classifies images."""
    done, run = finished
    state = torch.load(run.export(tmp_path / "model.pt"), weights_only=True)["state_dict"]
    assert {value.device.type for value in state.values()} == {"cpu"}
    assert torch.equal(torch.cat([value.flatten() for value in state.values()]), done.vector)
    folder = str(run.folder.path)
    assert validate([folder, "--trust"]) == validate([folder, "--trust", "--client", "1"]) == 0
    for number in range(2):
        Image.fromarray(np.full((8, 8), 50 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    table = tmp_path / "predictions.csv"
    assert predict([folder, str(tmp_path), "--trust", "--output", str(table)]) == 0
    assert len(table.read_text().splitlines()) == 3


def test_run_closed_again(device, tmp_path):
    """A run that was ended after its last round, before its summary: the next start writes it; then it goes on."""
    kept = {**MLP, "trainer.enable_checkpointing": True}
    outcome(device, tmp_path, "heterofl", **kept)
    summary = tmp_path / device / "summary.json"
    before = json.loads(summary.read_text())
    summary.unlink()
    place = {"trainer.accelerator": device, "run.root": str(tmp_path), "run.name": device}
    build_run("heterofl", **{**SMALL, **kept, **place}).fit()
    again = json.loads(summary.read_text())
    phase = {name for name in before["cost"] if name.startswith("attack_phase/")}
    assert phase, "which a run without attacks after its end has not"
    assert again == before | {"cost": {name: cost for name, cost in before["cost"].items() if name not in phase}}
    longer = {"trainer.max_epochs": 3}
    resumed = build_run("heterofl", **{**SMALL, **kept, **place, **longer}).fit().federation
    whole = outcome(device, tmp_path / "whole", "heterofl", **kept, **longer)
    assert torch.equal(resumed.space.read(resumed.net).cpu(), whole.vector)
