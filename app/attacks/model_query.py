"""Asks models for their answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn

from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.responses import Activations, Ids, Responses
from app.errors import UserError
from app.federation.evaluation import evaluates_by_batch, evaluation_batches, statistics_context
from app.federation.parameters import WidthNets
from app.models.base import ScalableNet
from app.models.factor_layers import FactorLayer
from app.seeding import numpy_generator

REMEMBERED = 2_000_000
"""Logits kept in memory, so that attacks on one model share its answers."""


class ModelQuery:
    """Runs models on samples. Answers are kept, one network per width is reused."""

    def __init__(self, knowledge: PublicKnowledge) -> None:
        self._knowledge = knowledge
        self._nets = WidthNets(knowledge.prototype)
        self._kept: dict[tuple[str, int, bytes], Responses] = {}

    def responses(self, model: AttackedModel, samples: Ids, snapshot: int = -1) -> Responses:
        """Answers of a model's snapshot to samples, in their order."""
        seen = model.snapshots[snapshot]
        place = (model.key, seen.round, blake2b(np.ascontiguousarray(samples).tobytes()).digest())
        if place not in self._kept:
            if sum(answer.logits.size for answer in self._kept.values()) > REMEMBERED:
                self._kept.clear()
            self._kept[place] = self._ask(seen, samples)
        return self._kept[place]

    def activations(self, model: AttackedModel, samples: Ids, snapshot: int = -1) -> Activations:
        """Answers and what the last linear layer read, in the order of the samples."""
        net = self.network(model.snapshots[snapshot])
        heard: list[Tensor] = []
        handle = last_linear(net).register_forward_hook(lambda _, inputs, __: heard.append(inputs[0].detach()))
        try:
            responses = self._ask(model.snapshots[snapshot], samples, heard)
        finally:
            handle.remove()
        inputs = torch.cat([batch.flatten(1) for batch in heard]).double().cpu().numpy()
        return Activations(responses, inputs[np.argsort(self._order(net, samples))])

    def network(self, snapshot: Snapshot) -> ScalableNet:
        """The network of a snapshot in evaluation mode; the next call for the same width overwrites it."""
        net, flat = self._nets.of(snapshot.rate)
        flat.write(snapshot.vector.to(self._knowledge.device, self._knowledge.dtype))
        return net.eval()

    @torch.no_grad()
    def _ask(self, snapshot: Snapshot, samples: Ids, heard: list[Tensor] | None = None) -> Responses:
        """Answers in the order of the samples, asked for in the order that mixes members and non-members."""
        net, knowledge = self.network(snapshot), self._knowledge
        order = self._order(net, samples)
        logits = []
        with self._statistics(net, samples), knowledge.precision():
            if heard is not None:
                heard.clear()  # gathering statistics has run the network too
            for batch in evaluation_batches(net, torch.from_numpy(samples[order]), knowledge.batch_size):
                logits.append(net(knowledge.store.batch(batch, knowledge.dtype)[0]).double().cpu())
        answers = torch.cat(logits).numpy()[np.argsort(order)]
        labels = knowledge.store.labels[torch.from_numpy(samples).to(knowledge.store.device)].cpu().numpy()
        return Responses(answers, labels)

    def _order(self, net: nn.Module, samples: Ids) -> np.ndarray:
        """Where a batch's own statistics count, its composition must not tell members apart: batches are mixed."""
        if not evaluates_by_batch(net):
            return np.arange(len(samples))
        if len(samples) < 2:
            raise UserError.of(
                f"a network with batch statistics is asked about {len(samples)} sample",
                "one sample has no batch statistics",
                "audit at least 2 samples, or set --model.net.norm group",
            )
        return numpy_generator(self._knowledge.seed, "query").permutation(len(samples))

    @contextmanager
    def _statistics(self, net: nn.Module, samples: Ids) -> Iterator[None]:
        """Post-hoc statistics come from the attacker's own data, or else from the samples themselves."""
        own = self._knowledge.auxiliary if len(self._knowledge.auxiliary) > 1 else samples
        with statistics_context(net, self._knowledge.store, torch.from_numpy(own), self._knowledge.batch_size):
            yield


def last_linear(net: nn.Module) -> nn.Linear:
    """The layer that makes the logits.

    Raises:
        UserError: where the network does not end in a linear layer.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, (nn.Linear, FactorLayer))]
    if layers and isinstance(last := layers[-1], nn.Linear):
        return last
    raise UserError.of(
        f"{type(net).__name__} has {'a factorised last layer' if layers else 'no linear layer'}",
        "the white-box attack reads the gradient of a linear one",
        "leave out the white-box attack, or end the network in a linear layer",
    )
