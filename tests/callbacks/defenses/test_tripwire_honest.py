"""Honest rounds raise no alarm, and a tripwire that is not touched changes nothing."""

import json
from functools import partial

import pytest
import torch
from channel_kit import MASKED, METHODS, MIXED, SIZES
from federation_kit import PICTURES, Blobs, run, sgd, small_federation
from process_kit import SCRIPTS, on_two_processes
from run_kit import records, train
from tripwire_kit import CHECKS, Outcome, federation_of
from tripwire_script import outcome

from app.federation.aggregation import QFFL, FedAdam, FedAvgM
from app.federation.capacities import Capacities
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset, FjORD
from app.models import CNN, MLP
from callbacks.defenses.adversarial_regularisation import AdversarialRegularisation
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.dropout import Dropout
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.tripwire import Tripwire
from datamodules import CropFlip, Holdout

LOCAL = LocalTraining(batch_size=8, optimizer=sgd(0.2))
FEW, WIDTHS = SIZES[:6], MIXED[:6]
FEDERATIONS = {
    **{name: {"method": method} for name, method in METHODS.items()},
    "fjord": {"method": FjORD([0.25, 0.5])},
    "momentum": {"server": FedAvgM},
    "adam": {"server": FedAdam},
    "q-ffl": {"server": QFFL},
    "some": {"participation": 0.4, "method": METHODS["FedRolex"]},
    "drawn": {"participation": 0.4, "sampling": "poisson"},
    "zero": {"uncovered_cells": "zero", "method": METHODS["USR"]},
    "head": {"personal": ["*classifier*"]},
    "local": {"personal": ["*"]},
    "redrawn": {"capacities": Capacities(large=3, widest="draw", redraw=True), "method": METHODS["GFM"]},
    "labels": {"local": LocalTraining(batch_size=8, optimizer=sgd(0.2), mask_labels=True)},
    "linear": {"net": partial(MLP, hidden=()), "capacities": None},
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_no_alarm_and_no_trace(name):
    """Every method, width, server and sampling, round after round: bit for bit the run without a tripwire."""
    settings = {"local": LOCAL, "capacities": WIDTHS, **FEDERATIONS[name]}
    with_it = Outcome(rounds=3, data=Blobs(FEW), **settings)
    plain = run(federation_of(**settings), Blobs(FEW), 3)
    assert [set(measurements.values()) for measurements in with_it.measurements] == [{0}] * 3
    assert set(with_it.measurements[0]) == {"alarms", *CHECKS}
    assert torch.equal(with_it.end, plain)


PICTURED = partial(Blobs, (6, 9, 7), PICTURES, augment=CropFlip(1))
DRAWING = {
    "dropout": ({"net": partial(MLP, hidden=(12, 8), dropout=0.5)}, []),
    "running statistics": ({"net": partial(CNN, u=4, statistics="running")}, []),
    "posthoc": ({"net": partial(CNN, u=4, statistics="posthoc")}, []),
    "threads": ({"net": partial(CNN, u=4), "executor": "threads", "workers": 2}, []),
    "proximal": ({"net": partial(CNN, u=4), "local": LocalTraining(optimizer=sgd(0.2), proximal=0.1)}, []),
    "dp-sgd": ({"net": partial(MLP, hidden=(12,))}, [partial(DPSGD, noise=0.5)]),
    "dp-sgd hooks": ({"net": partial(MLP, hidden=(12,))}, [partial(DPSGD, noise=0.5, clipping="hooks")]),
    "dropout defense": ({"net": partial(MLP, hidden=(12,))}, [Dropout]),
    "adversary": ({"net": partial(MLP, hidden=(12,))}, [partial(AdversarialRegularisation, weight=1.0, width=0.1)]),
    "memdefense": ({"net": partial(MLP, hidden=(12, 8))}, [MemDefense]),
    "nbafl": ({"net": partial(MLP, hidden=(12, 8))}, [partial(NbAFL, 5.0, 1e-3, exposures=1)]),
    "masked": ({"net": partial(MLP, hidden=(12, 8))}, [MASKED]),
}


@pytest.mark.filterwarnings("ignore:(NbAFL|DPSGD)")
@pytest.mark.parametrize("name", DRAWING)
def test_nothing_that_is_drawn_changes(name):
    """Dropout, augmentation, running statistics; before and after defenses that wrap the network or draw samples."""
    settings, makes = DRAWING[name]
    settings = {"local": LOCAL, "capacities": [1.0, 0.5, 0.5], **settings}

    def end(makes):
        data, stack = PICTURED(), [make() for make in makes]
        if name == "adversary":
            data.holdout = Holdout(0.0, 0.0, 0.0, reference=0.4)
        vector = run(small_federation(**settings), data, 2, stack)
        assert all(one.measurements()["tripwire/alarms"] == 0 for one in stack if isinstance(one, Tripwire))
        return vector

    plain = end(makes)
    assert torch.equal(end([Tripwire, *makes]), plain)
    assert not makes or torch.equal(end([*makes, Tripwire]), plain)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_other_precisions(precision):
    """Rounded values are hashed as they were sent."""
    honest = Outcome(rounds=2, trainer={"precision": precision}, method=ChannelSubset.preset("mapp-fl"))
    assert [measurements["alarms"] for measurements in honest.measurements] == [0, 0]


@pytest.mark.slow
def test_two_processes_tell_the_same(tmp_path):
    """Clients change processes between their turns, and are found out by the memory that moves with them."""
    on_two_processes(SCRIPTS / "tripwire_script.py", tmp_path)
    shared = json.loads((tmp_path / "outcome.json").read_text())
    alone = outcome(1)
    assert (shared.pop("world"), alone.pop("world")) == (2, 1)
    assert shared["refusals"] == alone["refusals"]
    assert sum(map(len, alone["refusals"])) > 3
    assert shared["told"] == alone["told"]
    torch.testing.assert_close(torch.tensor(shared["vector"]), torch.tensor(alone["vector"]), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.usefixtures("no_figures")
def test_a_run_in_which_all_refuse_is_recorded(tmp_path):
    """The recipe against a server that fills everybody's model: numbers that are missing break no file."""
    folder = train(tmp_path, "a", "--config", "tripwire", "--attacks.server", "tripwire_kit.FillingAll")
    measurements = [record["tripwire/alarms"] for record in records(folder)]
    assert measurements == [0, 4, 0]
    assert [record["clients/dropped"] for record in records(folder)] == [0, 4, 0]
    assert json.loads((folder / "summary.json").read_text())["clients"][0]["refusal"] == ""
