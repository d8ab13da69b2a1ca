"""Factorised networks whose clients use factors that a test has planted."""

from functools import partial

import torch
from federation_kit import Blobs as Blobs
from torch.nn.functional import cross_entropy

from app.attacks.adaptive.base import ObservedModel
from app.federation.hooks import FederatedCallback
from app.federation.parameters import ParameterSpace
from app.models import MLP, DataShape, Factorised

FACTORS = 12
SHAPE = DataShape(1, 4, 4, 5)
LAYER = "inner.layers.hidden1"


def factorised(**settings):
    """An MLP with a factorised hidden layer; its choice stays where it is put unless told otherwise."""
    settings.setdefault("factors", {"layers.hidden1": FACTORS})
    settings.setdefault("speed", 1e-6)
    return partial(Factorised, net=partial(MLP, hidden=(16,)), **settings)


def built(seed=0, **settings):
    """Such a network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factorised(**settings)(SHAPE)


@torch.no_grad()
def plant(net, used):
    """Let a network use these factors (bool) of every factorised layer for certain, and no others."""
    for name, layer in net.factor_layers().items():
        low, high = net.clamp_ranges()[f"{name}.pi"]
        layer.pi.copy_(torch.where(used, high, low))


def support(client, factors=FACTORS):
    """Factors that a client is made to use: five of them, different for every client."""
    used = torch.zeros(factors, dtype=torch.bool)
    used[torch.randperm(factors, generator=torch.Generator().manual_seed(client))[:5]] = True
    return used


def trained_upload(net, lr=0.3, steps=5, seed=0, round_=1):
    """What a server sees of a network that it has sent, and that a client trains; and the client's own vector."""
    space, draw = ParameterSpace(net), torch.Generator().manual_seed(seed)
    private = torch.zeros(space.size, dtype=torch.bool)
    for block in space.blocks:
        private[block.coordinates] = block.name in net.private_names()
    hidden = built()
    hidden.mask_private()
    concealed, received = space.read(hidden), space.read(net)
    images, labels = torch.randn(20, 1, 4, 4, generator=draw), torch.randint(5, (20,), generator=draw)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        for name, value in net.train().sample_noise(draw).items():
            net.get_buffer(name).copy_(value)
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()
    own = space.read(net)
    seen = [torch.where(private, concealed, vector) for vector in (received, own)]
    coordinates = torch.arange(space.size)
    return ObservedModel(round_, 1.0, coordinates, *seen, ~private, space.trainable), own


class Planting(FederatedCallback):
    """Lets every client use the factors of its `support`, and no others."""

    def on_client_start(self, trainer, federation, client):
        """Before it trains."""
        plant(client.net, support(client.client))
