"""A dishonest server under DP-SGD: who sends an update tells nothing about a sample."""

from copy import deepcopy

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, Reports, run, small_federation, whole_batch
from torch import nn

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.models import MLP
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.nbafl import NbAFL

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

SIZES = (5, 8, 11)


class Bright(Blobs):
    """Pictures of which none has a bright first pixel, except one of client 1 where it is asked for."""

    def __init__(self, bright):
        super().__init__(SIZES)
        self.bright = bright

    def load(self):
        """The usual pictures, darkened."""
        raw = super().load()
        raw.images[:, 0, 0, 0].clamp_(max=0.6)
        if self.bright:
            raw.images[SIZES[0] + 2, 0, 0, 0] = 1.0
        return raw


class Trip(FederatedCallback):
    """A server whose weights overflow for bright first pixels only."""

    kind = "attack"

    def on_broadcast(self, trainer, federation, client, vector):
        """One chain of units that is dead for all other pictures."""
        net = deepcopy(federation.net)
        federation.space.write(net, vector)
        first, second, last = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
        with torch.no_grad():
            first.weight[0], second.weight[0] = 0, 0
            first.weight[0, 0], first.bias[0], second.bias[0] = 1e20, -0.6e20, -1
            second.weight[0, 0] = last.weight[:, 0] = 1e30
        vector.copy_(federation.space.read(net))


@pytest.mark.parametrize("method", ["ghost", "hooks", "ew"])
def test_the_same_clients_arrive_with_and_without_a_sample(method):
    """Although the sample's loss and gradient are not finite, its client sends an update that is."""
    losses = []
    for bright in (False, True):
        recorder, reports = Recorder(), Reports()
        federation = small_federation(TINY_MLP, local=whole_batch(0.1))
        end = run(
            federation, Bright(bright), 1, [DPSGD(noise=4.0, clipping=method), Trip(), recorder, reports],
            precision="32-true",
        )  # fmt: skip
        assert sorted(message.client for message in recorder.messages) == [0, 1, 2]
        assert all(vector.isfinite().all() for _, vector, _ in recorder.updates)
        assert end.isfinite().all()
        losses.append(torch.tensor(reports.rounds[0].clients[1].loss))
    assert losses[0].isfinite()
    assert not losses[1].isfinite(), "what the test assumes"


class Lost(FederatedCallback):
    """One client's training is lost: its loss is NaN, and so are its gradients."""

    def client_loss(self, federation, client, batch, logits, loss):
        """For client 1."""
        return loss * float("nan") if client.client == 1 else loss


@pytest.mark.parametrize(
    "defense",
    [DPSGD(noise=1.0), NbAFL(2.0, 1e-3, sensitivity="worst-case", variant="weight-clip")],
    ids=["dp", "nbafl"],
)
def test_a_client_whose_training_is_lost_sends_noise(defense):
    """Its update is finite and counts like any other; its own record keeps the NaN."""
    recorder, reports = Recorder(), Reports()
    run(small_federation(TINY_MLP), Blobs(SIZES), 1, [defense, Lost(), recorder, reports])
    assert sorted(message.client for message in recorder.messages) == [0, 1, 2]
    (vector,) = (vector for client, vector, _ in recorder.updates if client == 1)
    assert vector.isfinite().all()
    assert (vector != recorder.started[0]).all()
    clients = reports.rounds[0].clients
    assert not any(client.dropped for client in clients)
    assert [client.loss == client.loss for client in clients] == [True, False, True]


class Nonsense(FederatedCallback):
    """A server that sends no number at all."""

    kind = "attack"

    def on_broadcast(self, trainer, federation, client, vector):
        """One coordinate."""
        vector[3] = float("nan")


@pytest.mark.parametrize("bright", [False, True])
def test_weights_that_are_no_numbers_drop_everybody(bright):
    """Whatever their data."""
    recorder = Recorder()
    with pytest.warns(UserWarning, match="no client sent a usable update"):
        run(small_federation(TINY_MLP), Bright(bright), 1, [DPSGD(noise=1.0), Nonsense(), recorder])
    assert recorder.messages == []


class TiedMLP(MLP):
    """Two hidden layers with one weight."""

    def __init__(self, shape, **settings):
        super().__init__(shape, **{**settings, "hidden": (4, 4)})
        first, second, _ = (layer for layer in self.modules() if isinstance(layer, nn.Linear))
        second.weight = first.weight


def test_shared_parameters_are_refused():
    """By the names of the layers, with the way that takes them."""
    with pytest.raises(UserError, match=r"shares a parameter(?s:.*)shares a parameter(?s:.*)clipping hooks"):
        run(small_federation(TiedMLP), Blobs(SIZES), 1, [DPSGD(noise=1.0)])
