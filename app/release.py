"""A trained network with the preprocessing that it needs: the released model of a federation, or that of a client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from app.common.described import described
from app.common.errors import UserError
from app.common.seeding import torch_generator
from app.federation.evaluation import evaluates_by_batch, wants_posthoc
from app.federation.execution.distributed import autocast_of
from app.federation.local_training import merge_short
from app.federation.module import FederatedModule
from app.federation.parameters import WidthNets
from app.models.base import DataShape, ScalableNet
from app.models.factorised import Factorised
from app.models.norms import posthoc_statistics
from datamodules.torchvision_sets import MNIST

FORMAT = "rampart-model-1"

BY_BATCH = (
    "it normalises by the statistics of the batch, so that images asked together influence each other; --static lets "
    "it use statistics of the training data"
)
STATIC = "it holds batch statistics of training data, gathered after the training; no privacy budget covers them"
UNTRAINED = "clients keep the model, or its running statistics, to themselves: this one is untrained; name a client"


class TrainedModel(nn.Module):
    """A trained network in evaluation mode for images on the 0..1 scale: the normalisation is inside.

    Attributes:
        net: the network itself, for normalised images.
        about: what files tell about it, as plain data: how to build it, classes, mean, std, client, notes,
            `input` (what images it takes) and `pad` (black pixels that its data have on each side).
        classes: names of the classes, in the order of the logits.
        shape: channels, height and width of images, and number of classes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: ScalableNet, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.net, self.about = net, dict(about)
        self.classes, self.shape = tuple(about["classes"]), DataShape(**about["shape"])
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(about[name], dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width), floating-point numbers in 0..1."""
        if not images.is_floating_point():
            raise UserError.of(f"the images are {images.dtype}", "the model expects 0..1", "divide bytes by 255")
        logits: Tensor = self.net(((images - self.mean) / self.std).to(next(self.net.parameters()).dtype))
        return logits


def trained_model(
    federation: FederatedModule, round_: int, client: int | None = None, static: bool = False
) -> TrainedModel:
    """The server's model, or the one that a client would use after a round.

    Args:
        federation: with the weights after that round, and with what its clients keep to themselves.
        round_: the round (0-based) whose plan tells the client's submodel.
        client: id of the client; None for the server's model.
        static: let batch norms that keep no statistics use those of the training data, as HeteroFL does.
    """
    net = federation.net if client is None else _client_net(federation, round_, client)
    rate = net.hparams["rate"]
    by_batch = evaluates_by_batch(net)
    static = by_batch and (static or wants_posthoc(net))
    untrained = client is None and federation.server_is_untrained
    notes = {STATIC: static, BY_BATCH: by_batch and not static, UNTRAINED: untrained}
    about = _about(federation, net) | {"rate": rate, "client": client, "notes": [one for one in notes if notes[one]]}
    # as the run evaluates: the server's statistics are gathered without mixed precision
    precision = nullcontext() if client is None else autocast_of(federation.trainer)()
    with precision, _statistics(net, federation, client) if static else nullcontext():
        state = {
            name: tensor.detach().clone() for name, tensor in tensors(net).items() if name not in federation.inserted
        }
    with torch.random.fork_rng(devices=[]):
        made = filled(federation.net.scaled(rate).without_inserted(), state)
    return TrainedModel(made.to(memory_format=torch.channels_last), about).to(federation.device)


def tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers: a state dict would leave out the noise of a sampled choice."""
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


@torch.no_grad()
def filled(net: ScalableNet, state: Mapping[str, Tensor]) -> ScalableNet:
    """The network with the given tensors, among them statistics of batch norms that keep none by themselves.

    Raises:
        ValueError: where the network has other tensors.
    """
    net.to(next(tensor.dtype for tensor in state.values() if tensor.is_floating_point()))
    for layer in {name.rpartition(".")[0] for name in state if name.endswith(".running_mean")}:
        norm: Any = net.get_submodule(layer)
        norm.track_running_stats = True
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(norm, name, state[f"{layer}.{name}"].clone())
    own = tensors(net)
    if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in state.items()}:
        raise ValueError("it has other tensors")
    for name, tensor in own.items():
        tensor.copy_(state[name])
    return net


def _about(federation: FederatedModule, net: ScalableNet) -> dict[str, Any]:
    data, shape = federation.data, federation.data.shape
    pad = data.pad if isinstance(data, MNIST) else 0
    images = f"floating-point images (batch, {shape.channels}, {shape.height}, {shape.width}) on the scale 0..1"
    return {
        "format": FORMAT,
        "net": described(_factory(net)),
        "shape": asdict(shape),
        "classes": list(data.class_names),
        "mean": data.store.mean.tolist(),
        "std": data.store.std.tolist(),
        "pad": pad,
        "input": images + (f" whose outer {pad} pixels on each side are black" if pad else ""),
    }


def _factory(net: ScalableNet) -> partial[ScalableNet]:
    """What builds the network for a shape at full width."""
    options = {name: value for name, value in net.hparams.items() if name not in ("shape", "rate")}
    if isinstance(net, Factorised):
        options["net"] = _factory(net.inner)
    return partial(net.announced or type(net), **options)  # files hold no inserted layers


def _client_net(federation: FederatedModule, round_: int, client: int) -> ScalableNet:
    """The network that a client is evaluated with; see `AllClients`."""
    plan, personal = federation.plan_of(round_), federation.own_values
    index = plan.index(client)
    vector = federation.space.read(federation.net)[index]
    if client in personal.clients:
        personal.restore(client, index, vector)
    net, flat = WidthNets(federation.net).of(plan.rate(client))
    flat.write(vector)
    for name, value in net.sample_noise(torch_generator(federation.seed, "everyone", round_, client)).items():
        net.get_buffer(name).copy_(value)
    return net


def _statistics(net: ScalableNet, federation: FederatedModule, client: int | None) -> AbstractContextManager[None]:
    """Within it, batch norms have the statistics of the training data of a client, or of all clients."""
    data, dtype = federation.data, next(net.parameters()).dtype
    clients = range(data.clients) if client is None else [client]
    samples = torch.cat([data.train_indices(one) for one in clients])
    batches = merge_short(samples.split(federation.evaluation.batch_size), least=2)
    return posthoc_statistics(net, (data.store.batch(batch, dtype)[0] for batch in batches))
