"""Dropout as a defense: on the fully connected layers of any network."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from app.common.errors import Problem
from app.common.ranges import Decay
from app.common.seeding import torch_generator
from app.federation.client import ClientModule
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.models.layers import SeededDropout
from app.privacy.traits import Trait


class Dropout(FederatedCallback):
    """Drops activations of the fully connected layers in local training, so that networks memorise less.

    Dropped are the inputs of every linear layer but the first, that is the outputs of the hidden linear layers after
    their activation; in a network with a single linear layer, its input features. Pixels are never dropped. It is
    applied in addition to dropout layers of the network itself. It lowers overfitting, which membership inference
    exploits, and gives no formal guarantee.

    Example::

        rampart fit --defenses.dropout Dropout --defenses.dropout.rate 0.5

    Args:
        rate: fraction of the activations that are dropped, in [0, 1), the others being divided by 1 - rate; 0 is no
            defense. MemDefense compares itself with 0.5.
    """

    knob = Knob("rate", (0.2, 0.5, 0.8))

    def __init__(self, rate: Decay = 0.5) -> None:
        self.rate = rate
        self.vectorisable = rate == 0
        self._handles: dict[int, list[RemovableHandle]] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"trains-differently"}) if self.rate > 0 else frozenset()

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if self.rate > 0 and not dropped_layers(federation.net):
            yield Problem(
                "Dropout with a network that has no linear layer behind a hidden layer",
                "there is nothing to drop but pixels",
                "choose a network with a hidden layer, such as --model.net CNN, or leave the defense out",
            )

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        if self.rate == 0:
            return
        place, device = (client.round, client.client), next(client.net.parameters()).device
        masks = torch_generator(federation.seed, "dropout-defense", *place, device=device)
        narrower = client.ordered_dropout.nets.values() if client.ordered_dropout is not None else ()
        self._handles[client.client] = [
            layer.register_forward_pre_hook(_Drop(self.rate, masks))
            for net in (client.net, *narrower)
            for layer in dropped_layers(net)
        ]

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        for handle in self._handles.pop(client.client, []):
            handle.remove()


class _Drop:
    """Drops entries of a layer's input while the layer is in training."""

    def __init__(self, rate: float, masks: torch.Generator) -> None:
        self._dropout = SeededDropout(rate)
        self._dropout.generator = masks

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
        return self._dropout(inputs[0]) if layer.training else None


def dropped_layers(net: nn.Module) -> list[nn.Linear]:
    """Layers whose inputs are dropped: linear layers but the first, or the only one where it reads features."""
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    if len(linear) != 1:
        return linear[1:]
    own = {id(parameter) for parameter in linear[0].parameters()}
    return linear if any(id(parameter) not in own for parameter in net.parameters()) else []
