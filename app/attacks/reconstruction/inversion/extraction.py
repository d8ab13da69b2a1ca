"""How images are extracted from an update: neuron by neuron of a dense first layer, or by gradient matching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from app.attacks.model_query import ModelQuery
from app.attacks.models import Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.base import Candidates, pixel_bounds, to_pixels
from app.attacks.reconstruction.inversion.dense_layer import Decay, DenseLayer, LinearTraining, first_dense, invert
from app.attacks.reconstruction.inversion.gradient_matching import GradientMatching
from app.attacks.reconstruction.inversion.local_steps import LocalSteps
from app.common.ranges import Checked, Count, NonNegative, Positive
from app.common.seeding import torch_generator
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.models.base import DataShape
from app.models.norms import uses_batch_statistics


class ImageExtraction(Checked, ABC):
    """Turns an update into images."""

    uses_traps: ClassVar[bool]
    """Whether the attacked clients should get trap weights."""

    def obstacle(self, local: LocalTraining, space: ParameterSpace, shape: DataShape) -> str | None:
        """Why no image can be extracted; None where one can."""
        training = LinearTraining.of(local, 1.0, 1)
        return training if isinstance(training, str) else None

    def used_coordinates(self, space: ParameterSpace) -> Tensor:
        """(coordinates) bool: coordinates of the server's vector that it uses."""
        return torch.arange(space.size) < space.trainable

    @abstractmethod
    def candidates(
        self, update: IsolatedUpdate, knowledge: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        """Candidates for the training images of an update; labels, unordered, are for attackers that know them."""


class DenseRatio(ImageExtraction):
    """Divides the change of a neuron's weights by that of its bias: exact where it fired for one image alone."""

    uses_traps = True

    def __init__(self, decay: Decay = "corrected", differences: bool = False) -> None:
        """Settings.

        Args:
            decay: subtract the effect of weight decay, which the server knows; or ignore it, as published.
            differences: read differences of neighbouring neurons, where each fires for all images of the next one.
        """
        self.decay: Decay = decay
        self.differences = differences

    def obstacle(self, local: LocalTraining, space: ParameterSpace, shape: DataShape) -> str | None:
        layer = first_dense(space, shape)
        return super().obstacle(local, space, shape) or (layer if isinstance(layer, str) else None)

    def used_coordinates(self, space: ParameterSpace) -> Tensor:
        first = space.blocks[0].name.rpartition(".")[0] + "."
        coordinates = torch.zeros(space.size, dtype=torch.bool)
        for block in space.blocks:
            coordinates[block.coordinates] = block.name.startswith(first)
        return coordinates

    def candidates(
        self, update: IsolatedUpdate, knowledge: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        layer = first_dense(space, knowledge.store.shape)
        assert isinstance(layer, DenseLayer)
        training, count = _training(update, knowledge), _count(update, knowledge)
        return invert(layer, update, knowledge.store, training, self.decay, count, self.differences)


class Matching(ImageExtraction):
    """Optimises a batch until its gradient has the direction of the update; for any network, and small batches."""

    uses_traps = False

    def __init__(
        self,
        steps: Count = 1000,
        restarts: Count = 1,
        lr: Positive = 0.1,
        tv: NonNegative = 0.02,
        labels: Literal["inferred", "known"] = "inferred",
        simulate: bool = False,
    ) -> None:
        """Settings of the search.

        Args:
            steps: optimisation steps per restart, at least 1.
            restarts: optimisations from different noise, at least 1; the one with the smallest distance wins.
            lr: step in units of normalised pixels, above 0.
            tv: weight of the total variation, 0 or more.
            labels: whether labels are inferred from the gradient, or known to the attacker.
            simulate: match what several local steps change, by training the candidates through them, instead of their
                mean gradient; for the update of a single client, and as many times as slow as there are steps.
        """
        self.simulate = simulate
        self.search = GradientMatching(steps, restarts, lr, tv, labels)

    def candidates(
        self, update: IsolatedUpdate, knowledge: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        plan = knowledge.plan(update.round)
        count = _count(update, knowledge)
        rate = max(plan.rate(client) for client in update.clients)
        net = ModelQuery(knowledge).network(Snapshot(update.round, rate, update.model))
        training = _training(update, knowledge)
        local_steps = _local_steps(update, knowledge, training) if self.simulate else None
        if local_steps is not None:
            training = replace(training, shrinkage=0.0)  # weight decay is simulated, too
        gradient, known = _gradient(update, training, int((update.own < space.trainable).sum()))
        draw = torch_generator(knowledge.seed, "gradient matching", update.round, *update.clients)
        store = knowledge.store
        bounds = pixel_bounds(store)
        optimised = self.search.images(net, gradient, known, store.shape, count, labels, bounds, draw, local_steps)
        return Candidates(to_pixels(store, optimised.images.double()).cpu(), torch.zeros(count))


def _count(update: IsolatedUpdate, knowledge: PublicKnowledge) -> int:
    """Number of images that the attacked clients train on in the round; sizes and recipe are public."""
    sizes, local = knowledge.plan(update.round).client_pool.sizes, knowledge.local
    most = local.batch_size * local.steps if local.steps is not None else max(sizes)
    return sum(min(sizes[client], most) for client in update.clients)


def _training(update: IsolatedUpdate, knowledge: PublicKnowledge) -> LinearTraining:
    """Local training of the widest attacked client; assumed to be plain SGD where the optimiser is another one."""
    plan = knowledge.plan(update.round)
    sizes, rate = plan.client_pool.sizes, max(map(plan.rate, update.clients))
    lr = knowledge.local.client_lr(knowledge.learning_rates[update.round], rate)
    training = LinearTraining.of(knowledge.local, lr, max(sizes[client] for client in update.clients))
    return LinearTraining(lr, 1) if isinstance(training, str) else training


def _local_steps(update: IsolatedUpdate, knowledge: PublicKnowledge, training: LinearTraining) -> LocalSteps | None:
    """Local steps of the one attacked client; None where there are several clients, or a single step."""
    if len(update.clients) > 1 or training.steps == 1:
        return None
    samples = knowledge.plan(update.round).client_pool.sizes[update.clients[0]]
    least = 2 if uses_batch_statistics(knowledge.prototype) else 1
    return LocalSteps.of(knowledge.local, training.lr, samples, least)


def _gradient(update: IsolatedUpdate, training: LinearTraining, parameters: int) -> tuple[Tensor, Tensor]:
    """Mean gradient, flat over the parameters of the clients' submodel, and bool, which entries are known."""
    held = torch.isin(update.index, update.own)
    places = torch.searchsorted(update.own, update.index).clamp(max=len(update.own) - 1)
    trained = held & (places < parameters)
    gradient, known = torch.zeros(parameters, dtype=torch.float64), torch.zeros(parameters, dtype=torch.bool)
    change = update.without_decay(update.index, training.shrinkage)
    gradient[places[trained]] = (-change / update.weight / (training.lr * training.steps))[trained]
    known[places[trained]] = True
    return gradient, known


DEFAULT_EXTRACTION = DenseRatio()
