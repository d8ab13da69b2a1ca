"""Dropout as a defense: the layers, the masks, and nothing outside local training."""

from functools import partial

import pytest
import torch
from federation_kit import LINEAR
from regulariser_kit import HALVES, ROOMY, trained
from torch import nn

from app.common.errors import UserError
from app.common.seeding import torch_generator
from app.federation.hooks import FederatedCallback
from app.federation.submodels import FjORD
from app.models import CNN, MLP, AlexNet, LeNet5, ResNet18
from callbacks.defenses.dropout import Dropout, dropped_layers

LAYERS = {
    "mlp": (MLP(ROOMY, (6, 5)), ["layers.hidden2", "layers.classifier"]),
    "lenet": (LeNet5(ROOMY), ["hidden2", "classifier"]),
    "cnn": (CNN(ROOMY, 4), ["classifier"]),
    "alexnet": (AlexNet(ROOMY, rate=0.1), ["classifier"]),
    "resnet": (ResNet18(ROOMY, 4), ["classifier"]),
    "softmax regression": (MLP(ROOMY, ()), []),
}


@pytest.mark.parametrize("name", LAYERS)
def test_whose_inputs_are_dropped(name):
    """Hidden linear layers after their activation, the features of a lone classifier, never pixels."""
    net, expected = LAYERS[name]
    names = {id(layer): name for name, layer in net.named_modules()}
    assert [names[id(layer)] for layer in dropped_layers(net)] == expected


def test_a_network_with_nothing_to_drop_is_refused():
    """Softmax regression has pixels only."""
    with pytest.raises(UserError, match="nothing to drop but pixels"):
        trained(Dropout(), net=LINEAR, capacities=None, rounds=1)
    trained(Dropout(0.0), net=LINEAR, capacities=None, rounds=1)


OWN = {
    "heterofl": (partial(MLP, hidden=(8, 6)), {"capacities": HALVES}),
    "fjord": (partial(MLP, hidden=(8, 6)), {"capacities": HALVES, "method": FjORD([0.25, 0.5])}),
    "distilled": (partial(MLP, hidden=(8, 6)), {"method": FjORD([0.25, 0.5], distillation=0.5)}),
    "lenet": (LeNet5, {"capacities": HALVES}),
    "alexnet": (partial(AlexNet, norm="none"), {"capacities": [0.1]}),
}


@pytest.mark.parametrize(
    ("case", "executor"), [*((case, "sequence") for case in OWN), ("heterofl", "threads"), ("lenet", "threads")]
)
def test_same_as_dropout_inside_the_network(case, executor, monkeypatch):
    """Given the same masks, a network with dropout of its own is trained to the same bits, in wide and narrow parts."""
    net, settings = OWN[case]
    expected = trained(net=partial(net, dropout=0.3), executor=executor, workers=2, **settings)
    keyed = []

    def own_masks(seed, purpose, *place, **where):
        keyed.append((purpose, *place))
        return torch_generator(seed, "dropout", *place, **where)

    monkeypatch.setattr("callbacks.defenses.dropout.torch_generator", own_masks)
    assert torch.equal(trained(Dropout(0.3), net=net, executor=executor, workers=2, **settings), expected)
    assert sorted(keyed) == [("dropout-defense", round_, client) for round_ in (0, 1) for client in (0, 1, 2)]


class Watch(FederatedCallback):
    """Counts hooks on the layers before, during and after local training, and evaluates in the middle of it."""

    def __init__(self):
        self.counts, self.same = [], []

    def count(self, client):
        """Hooks on all linear layers."""
        linear = [layer for layer in client.net.modules() if isinstance(layer, nn.Linear)]
        self.counts.append(sum(len(layer._forward_pre_hooks) for layer in linear))

    def on_client_start(self, trainer, federation, client):
        """Dropout acts before."""
        self.count(client)

    def client_loss(self, federation, client, batch, logits, loss):
        """Two evaluations agree, two passes in training do not."""
        client.net.eval()
        evaluated = [client.net(batch[0]) for _ in range(2)]
        client.net.train()
        again = client.net(batch[0])
        self.same.append((torch.equal(*evaluated), torch.equal(again, logits)))
        return loss

    def on_client_update(self, trainer, federation, update):
        """The client's training is over."""
        client = federation._executor._client_trainer.module(1.0)
        self.count(client)


def test_dropout_is_there_in_training_only():
    """Two layers are hooked during local training, none afterwards; evaluation within it drops nothing."""
    watch = Watch()
    trained(Dropout(0.5), watch, rounds=1, capacities=None)
    assert watch.counts == [2, 0, 2, 0, 2, 0]
    assert set(watch.same) == {(True, False)}


def test_hooks_are_removed_when_training_fails():
    """A module is reused for the next client, so nothing may be left on it."""

    class Stumble(Watch):
        def client_loss(self, federation, client, batch, logits, loss):
            """Fails, and keeps the network."""
            self.client = client
            raise RuntimeError("stumbled")

    stumble = Stumble()
    with pytest.raises(RuntimeError, match="stumbled"):
        trained(Dropout(0.5), stumble, capacities=None)
    stumble.count(stumble.client)
    assert stumble.counts == [2, 0]
