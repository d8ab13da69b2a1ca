"""How images are read from an update: row by row of a dense first layer, or by a search for a batch that fits it."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.models.base import DataShape
from app.seeding import torch_generator


class ImageExtraction(ABC):
    """Turns an update into images. One way of reading = one subclass."""

    baited: ClassVar[bool]
    """Whether it reads better from clients that got trap weights."""

    def obstacle(self, local: LocalTraining, space: ParameterSpace, shape: DataShape) -> str | None:
        """Why nothing can be read; None where it can."""
        training = LinearTraining.of(local, 1.0, 1)
        return training if isinstance(training, str) else None

    def reads(self, space: ParameterSpace) -> Tensor:
        """(coordinates) bool: which coordinates of the server's vector it looks at."""
        return torch.arange(space.size) < space.trainable

    @abstractmethod
    def candidates(
        self, update: IsolatedUpdate, public: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        """Images that the update tells of.

        Args:
            update: what the attacked clients did.
            public: the network, the training recipe and the plan.
            space: layout of the server's vector.
            labels: classes of the images, in no useful order; only for attackers that are said to know them.
        """


class DenseRatio(ImageExtraction):
    """Divides the change of a neuron's weights by that of its bias: exact where it fired for one image alone."""

    baited = True

    def __init__(self, decay: Decay = "corrected") -> None:
        """Settings.

        Args:
            decay: subtract what weight decay, which the server knows of, did to the weights; or ignore it, as
                published.
        """
        self.decay: Decay = decay

    def obstacle(self, local: LocalTraining, space: ParameterSpace, shape: DataShape) -> str | None:
        """Steps that are no gradients, or a first layer that does not see the image."""
        layer = first_dense(space, shape.channels * shape.height * shape.width)
        return super().obstacle(local, space, shape) or (layer if isinstance(layer, str) else None)

    def reads(self, space: ParameterSpace) -> Tensor:
        """The first layer."""
        first = space.blocks[0].name.rpartition(".")[0] + "."
        coordinates = torch.zeros(space.size, dtype=torch.bool)
        for block in space.blocks:
            coordinates[block.coordinates] = block.name.startswith(first)
        return coordinates

    def candidates(
        self, update: IsolatedUpdate, public: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        """One image per row that moved."""
        shape = public.store.shape
        layer = first_dense(space, shape.channels * shape.height * shape.width)
        assert isinstance(layer, DenseLayer)
        training, count = _training(update, public), _count(update, public)
        return invert(layer, update, public.store, training, self.decay, count)


class Matching(ImageExtraction):
    """Searches for a batch whose gradient points where the update does; for any network, and small batches."""

    baited = False

    def __init__(
        self,
        steps: int = 1000,
        restarts: int = 1,
        lr: float = 0.1,
        tv: float = 0.02,
        labels: Literal["inferred", "known"] = "inferred",
    ) -> None:
        """Settings of the search.

        Args:
            steps: optimisation steps per restart, at least 1.
            restarts: searches from different noise, at least 1; the one with the smallest distance wins.
            lr: step in units of normalised pixels, above 0.
            tv: weight of the total variation, 0 or more.
            labels: whether labels are read from the gradient, or given to the attacker.
        """
        self.search = GradientMatching(steps, restarts, lr, tv, labels)

    def candidates(
        self, update: IsolatedUpdate, public: PublicKnowledge, space: ParameterSpace, labels: Tensor
    ) -> Candidates:
        """As many images as the attacked clients have."""
        assert public.plan_of is not None
        plan = public.plan_of(update.round)
        count = _count(update, public)
        rate = max(plan.rate(client) for client in update.clients)
        net = ModelQuery(public).network(Snapshot(update.round, rate, update.model))
        gradient, known = _gradient(update, _training(update, public), int((update.own < space.trainable).sum()))
        low, high = pixel_bounds(public.store)
        draw = torch_generator(public.seed, "gradient matching", update.round, *update.clients)
        shape = public.store.shape
        found = self.search.images(net, gradient, known, shape, count, labels, low, high, draw, progress=True)
        return Candidates(to_pixels(public.store, found.images.double()).cpu(), torch.zeros(count))


def _count(update: IsolatedUpdate, public: PublicKnowledge) -> int:
    """Images that the attacked clients go through in the round, together; sizes and recipe are public."""
    assert public.plan_of is not None
    sizes, local = public.plan_of(update.round).client_pool.sizes, public.local
    most = local.batch_size * local.steps if local.steps is not None else max(sizes)
    return sum(min(sizes[client], most) for client in update.clients)


def _training(update: IsolatedUpdate, public: PublicKnowledge) -> LinearTraining:
    """How the attacked clients train; as if by plain SGD where an attacker insists on other optimisers."""
    assert public.plan_of is not None
    sizes, lr = public.plan_of(update.round).client_pool.sizes, public.learning_rates[update.round]
    training = LinearTraining.of(public.local, lr, max(sizes[client] for client in update.clients))
    return LinearTraining(lr, 1) if isinstance(training, str) else training


def _gradient(update: IsolatedUpdate, training: LinearTraining, parameters: int) -> tuple[Tensor, Tensor]:
    """Mean gradient over the clients' submodel, flat over its parameters, and which coordinates of it are known."""
    held = torch.isin(update.index, update.own)
    places = torch.searchsorted(update.own, update.index).clamp(max=len(update.own) - 1)
    trained = held & (places < parameters)
    gradient, known = torch.zeros(parameters, dtype=torch.float64), torch.zeros(parameters, dtype=torch.bool)
    change = update.without_pull(update.index, training.pull)
    gradient[places[trained]] = (-change / update.weight / (training.lr * training.steps))[trained]
    known[places[trained]] = True
    return gradient, known


DEFAULT_EXTRACTION = DenseRatio()
