"""A look at the model a client received, in a network apart from the one it trains, which defenses may have wrapped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from app.federation.client import ClientModule
from app.federation.parameters import FlatNet, ParameterSpace
from app.models.base import ScalableNet
from app.privacy.tripwires import gradient_ratio, probing
from app.seeding import torch_generator

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class Probes:
    """Networks to try received models in: one for each width and worker, since workers look at the same time."""

    def __init__(self) -> None:
        self._nets: dict[tuple[int, float], tuple[ScalableNet, FlatNet]] = {}

    def clear(self) -> None:
        """Let go of the networks."""
        self._nets.clear()

    def weights(self, federation: FederatedModule, client: ClientModule) -> list[Tensor]:
        """Weight tensors (two dimensions or more) that the server sent; personal layers never came from it."""
        assert client.received is not None
        assert client.index is not None
        _, flat = self._of(federation, client)
        sent = federation.personal.shared(client.index)
        blocks = [block for block in flat.space.blocks if len(block.shape) > 1 and bool(sent[block.cells].all())]
        return [client.received[block.cells].view(block.shape) for block in blocks]

    def gradient_ratio(self, federation: FederatedModule, client: ClientModule, samples: int) -> float:
        """Gradient of the first layer over that of the last on so many of the client's samples; see `gradient_ratio`.

        The samples are drawn by a generator of their own and not augmented, so local training does not notice.
        """
        assert client.received is not None
        net, flat = self._of(federation, client)
        flat.write(client.received)
        draws = torch_generator(federation.seed, "probe", client.round, client.client)
        drawn = torch.randperm(client.samples, generator=draws)[:samples]
        ids = federation.data.train_indices(client.client)[drawn].to(client.received.device)
        images, labels = federation.data.store.batch(ids, client.received.dtype)
        return gradient_ratio(net, client.label_loss(net(images), labels))

    def _of(self, federation: FederatedModule, client: ClientModule) -> tuple[ScalableNet, FlatNet]:
        assert client.received is not None
        key = (threading.get_ident(), federation.plan.rate(client.client))
        if key not in self._nets:
            with torch.random.fork_rng(devices=[]):  # its first values are drawn, and overwritten
                net = federation.net.scaled(key[1]).to(client.received.device, client.received.dtype)
            probing(net)
            self._nets[key] = net, FlatNet(ParameterSpace(net), net)
        return self._nets[key]
