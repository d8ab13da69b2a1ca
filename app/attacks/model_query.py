"""Runs attacked models and shadow models on samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from app.attacks.models import Activations, AttackedModel, Ids, Responses, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.common.errors import UserError
from app.common.seeding import numpy_generator, torch_generator
from app.federation.evaluation import evaluates_by_batch, evaluation_batches, statistics_context
from app.federation.local_training import merge_short
from app.federation.parameters import WidthNets
from app.metrics.membership import Array
from app.models.base import ScalableNet
from app.models.factor_layers import FactorLayer


class ModelQuery:
    """Runs models on samples. One network per width is reused, and attacks on one model share its cached responses."""

    def __init__(self, knowledge: PublicKnowledge) -> None:
        self.knowledge = knowledge
        self._nets = WidthNets(knowledge.prototype)
        self._cached: dict[tuple[str, int, bytes, int], Responses] = {}

    def responses(self, model: AttackedModel, samples: Ids, snapshot: int = -1, view: int = 0) -> Responses:
        """Responses of a model's snapshot to samples, in their order.

        View 0 is the image itself; each further number is a random augmentation of every image as in training, which
        depends on the seed and the samples only, so that all models answer the same queries.
        """
        chosen = model.snapshots[snapshot]
        key = (model.key, chosen.round, blake2b(np.ascontiguousarray(samples).tobytes()).digest(), view)
        if key not in self._cached:
            if sum(responses.logits.size for responses in self._cached.values()) > 2_000_000:
                self._cached.clear()
            self._cached[key] = self.run(chosen, samples, view=view)
        return self._cached[key]

    def activations(self, model: AttackedModel, samples: Ids, snapshot: int = -1) -> Activations:
        """Responses and the inputs of the last linear layer, in the order of the samples."""
        net = self.network(model.snapshots[snapshot])
        recorded: list[Tensor] = []
        handle = last_linear(net).register_forward_hook(lambda _, inputs, __: recorded.append(inputs[0].detach()))
        try:
            responses = self.run(model.snapshots[snapshot], samples, recorded)
        finally:
            handle.remove()
        inputs = torch.cat([batch.flatten(1) for batch in recorded]).double().cpu().numpy()
        return Activations(responses, inputs[np.argsort(self._order(net, samples))])

    def loss_gradient(self, snapshot: Snapshot, samples: Ids) -> Tensor:
        """Gradient of the mean loss over the samples by the parameters, the first coordinates of a flat vector."""
        net, knowledge = self.network(snapshot), self.knowledge
        parameters, total = list(net.parameters()), torch.zeros(0)
        with torch.enable_grad(), self._statistics(net, samples), knowledge.precision():
            batches = evaluation_batches(
                net, torch.from_numpy(samples[self._order(net, samples)]), knowledge.batch_size
            )
            for batch in batches:
                images, labels = knowledge.store.batch(batch, knowledge.dtype)
                loss = cross_entropy(net(images), labels, reduction="sum") / len(samples)
                parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
                flat = torch.cat([part.reshape(-1) for part in parts])
                total = flat if total.numel() == 0 else total + flat
        return total

    def sample_gradients(
        self, snapshot: Snapshot, samples: Ids, reduce: Callable[[Tensor], Tensor], numbers: int = 2**24
    ) -> Tensor:
        """What `reduce` makes of (part, parameters) gradients of every sample's loss, part by part, in order.

        At most so many `numbers` are in memory at a time. Refused where samples of a batch influence each other.
        """
        net, knowledge, made = self.network(snapshot), self.knowledge, []
        if evaluates_by_batch(net):
            raise UserError.of(
                "the network normalises by the statistics of the batch",
                "a single sample's gradient is not defined",
                "set --model.net.norm group, or choose an attack that reads losses",
            )
        values = {name: value.detach() for name, value in net.named_parameters()}

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(functional_call(net, parameters, (image[None],)), label[None])

        gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
        size = max(1, min(knowledge.batch_size, numbers // sum(map(Tensor.numel, values.values()))))
        with self._statistics(net, samples), knowledge.precision():
            for batch in torch.from_numpy(samples).split(size):
                parts = gradients(values, *knowledge.store.batch(batch, knowledge.dtype)).values()
                made.append(reduce(torch.cat([part.flatten(1) for part in parts], dim=1)))
        return torch.cat(made)

    def network(self, snapshot: Snapshot) -> ScalableNet:
        """The network of a snapshot in evaluation mode; the next call for the same width overwrites it."""
        net, flat = self._nets.of(snapshot.rate)
        flat.write(snapshot.vector.to(self.knowledge.device, self.knowledge.dtype))
        return net.eval()

    @torch.no_grad()
    def in_order(self, snapshot: Snapshot, samples: Ids, chunk: int) -> Responses:
        """Responses to samples queried in their given order, in chunks of so many, as the papers' code does.

        Where a network normalises by the statistics of the batch, they differ between chunks of members and chunks of
        non-members; `responses` mixes the two.
        """
        net = self.network(snapshot)
        with self._statistics(net, samples), self.knowledge.precision():
            logits = self._logits(net, merge_short(torch.from_numpy(samples).split(chunk), least=2))
        return Responses(logits, self._labels(samples))

    @torch.no_grad()
    def run(self, snapshot: Snapshot, samples: Ids, recorded: list[Tensor] | None = None, view: int = 0) -> Responses:
        """Responses in the order of the samples, which are queried in an order that mixes members and non-members.

        They are not cached.
        """
        net, knowledge = self.network(snapshot), self.knowledge
        order = self._order(net, samples)
        with self._statistics(net, samples), knowledge.precision():
            if recorded is not None:
                recorded.clear()  # gathering statistics has run the network too
            batches = evaluation_batches(net, torch.from_numpy(samples[order]), knowledge.batch_size)
            logits = self._logits(net, batches, view)
        return Responses(logits[np.argsort(order)], self._labels(samples))

    def _logits(self, net: nn.Module, batches: Iterable[Tensor], view: int = 0) -> Array:
        images = (self.knowledge.store.batch(batch, self.knowledge.dtype)[0] for batch in batches)
        if view and (augment := self.knowledge.augment) is not None:
            draws = torch_generator(self.knowledge.seed, "query-augmentation", view)
            images = (augment(batch, draws) for batch in images)
        return torch.cat([net(batch).double().cpu() for batch in images]).numpy()

    def _labels(self, samples: Ids) -> Ids:
        store = self.knowledge.store
        return store.labels[torch.from_numpy(samples).to(store.device)].cpu().numpy()

    def _order(self, net: nn.Module, samples: Ids) -> np.ndarray:
        """A random order where the statistics of the batch count: its composition must not reveal members."""
        if not evaluates_by_batch(net):
            return np.arange(len(samples))
        if len(samples) < 2:
            raise UserError.of(
                f"a network with batch statistics is queried with {len(samples)} sample",
                "one sample has no batch statistics",
                "audit at least 2 samples, or set --model.net.norm group",
            )
        return numpy_generator(self.knowledge.seed, "query").permutation(len(samples))

    def _statistics(self, net: nn.Module, samples: Ids) -> AbstractContextManager[None]:
        """Gathers post-hoc statistics on the attacker's own data, or else on the samples themselves."""
        own = self.knowledge.auxiliary if len(self.knowledge.auxiliary) > 1 else samples
        return statistics_context(net, self.knowledge.store, torch.from_numpy(own), self.knowledge.batch_size)


def last_linear(net: nn.Module) -> nn.Linear:
    """The layer that makes the logits; refused where the network does not end in a linear layer."""
    layers = [layer for layer in net.modules() if isinstance(layer, (nn.Linear, FactorLayer))]
    if layers and isinstance(last := layers[-1], nn.Linear):
        return last
    raise UserError.of(
        f"{type(net).__name__} has {'a factorised last layer' if layers else 'no linear layer'}",
        "the white-box attack reads the gradient of a linear one",
        "leave out the white-box attack, or end the network in a linear layer",
    )
