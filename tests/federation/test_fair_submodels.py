"""q-FFL over unequal submodels: every coordinate is normalised by the clients that uploaded it."""

from functools import partial

import numpy as np
import pytest
import torch
from channel_kit import METHODS, MIXED, trained
from federation_kit import Blobs, Recorder, run, sgd, small_federation

from app.federation.aggregation import QFFL
from app.federation.local_training import LocalTraining
from app.models import MLP, Factorised

LR = 0.2
SETTINGS = {
    "all clients": {},
    "few participants": {"participation": 0.4},
    "poisson": {"participation": 0.5, "sampling": "poisson"},
    "absent coordinates kept": {"capacities": [0.5]},
    "absent coordinates zero": {"capacities": [0.5], "uncovered_cells": "zero"},
    "local head": {"personal": ["layers.classifier.*"]},
    "label masks": {"local": LocalTraining(batch_size=4, optimizer=sgd(LR), mask_labels=True)},
}


@pytest.mark.parametrize("method", METHODS)
def test_q_zero_is_the_plain_mean_for_every_method(method):
    """Bit for bit, after two rounds in which some coordinates have few contributors."""
    settings = {"method": METHODS[method], "rounds": 2}
    assert torch.equal(trained(server=partial(QFFL, q=0.0), **settings), trained(**settings))


@pytest.mark.parametrize("name", SETTINGS)
def test_q_zero_is_the_plain_mean_in_every_federation(name):
    """With coordinates that nobody uploads, which q-FFL must not divide by zero nor fill otherwise."""
    settings = {**SETTINGS[name], "rounds": 2}
    assert torch.equal(trained(server=partial(QFFL, q=0.0), **settings), trained(**settings))


def test_q_zero_is_the_plain_mean_of_factors():
    """WAFFLe's factors, whose private probabilities are not uploaded."""
    net = partial(Factorised, net=partial(MLP, hidden=(5,)), factors={"layers.hidden1": 7})
    models = [
        run(small_federation(net=net, local=LocalTraining(optimizer=sgd(LR)), **server), Blobs(), rounds=2)
        for server in ({"server": partial(QFFL, q=0.0)}, {})
    ]
    assert torch.equal(*models)


class Uploads(Recorder):
    """What q-FFL computes with: losses, and the models before and after local training."""

    def on_client_update(self, trainer, federation, update):
        """In numpy."""
        parts = (update.index, update.received, update.vector)
        self.updates.append((update.received_loss, *(part.clone().numpy() for part in parts)))


@pytest.mark.parametrize("method", ["Prefix", "GFM", "FedRolex"])
@pytest.mark.parametrize("q", [0.5, 2.0])
def test_q_above_zero_equals_numpy_coordinate_by_coordinate(method, q):
    """theta - sum F^q d / sum (q F^(q-1) |d|^2 + F^q / lr), both sums over the clients that hold the coordinate."""
    recorder = Uploads()
    result = trained(recorder, server=partial(QFFL, q=q), method=METHODS[method], capacities=MIXED, participation=0.6)
    expected = recorder.started[0].numpy().copy()
    top, bottom = np.zeros_like(expected), np.zeros_like(expected)
    for loss, index, received, vector in recorder.updates:
        pull = (received - vector) / LR
        lipschitz = q * (loss + 1e-10) ** (q - 1) * float(pull @ pull) + (loss + 1e-10) ** q / LR
        for coordinate, force in zip(index, pull, strict=True):
            top[coordinate] += (loss + 1e-10) ** q * force
            bottom[coordinate] += lipschitz
    held = bottom > 0
    expected[held] -= top[held] / bottom[held]
    np.testing.assert_allclose(result.numpy(), expected, rtol=0.0, atol=1e-12)
    assert len(np.unique(bottom)) > 2, "or all coordinates have the same clients"
