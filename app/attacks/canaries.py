"""Canaries: samples and directions that an audit inserts by fair coins, and how an adversary scores them.

Scores come from what the adversary sees, from the canaries themselves, and never from the coins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from app.common.seeding import numpy_generator, torch_generator
from app.metrics.membership import Array
from datamodules.base import FederatedDataModule
from datamodules.store import ImageStore

CanaryImages = Literal["noise", "mislabelled"]
"""Images of independent black and white pixels, or of the population set; their labels are drawn at random."""

_CHUNK = 64
"""Canaries whose gradients are computed at once."""

FEWEST_SCALED = 8
"""Canaries of one client from which on their scores are standardised."""


@dataclass(frozen=True, eq=False)
class SampleCanaries:
    """Labelled images, dealt to the clients in turn; a coin inserts each, or chooses between two labels of it.

    Attributes:
        images: (n, height, width, channels), of the type of the store's images.
        labels: (n,) int64 classes; with pairs (n, 2), the classes to choose from.
        clients: (n,) client of each.
        inserted: (n,) bool; of a pair, whether the first label was taken.
    """

    images: Tensor
    labels: Tensor
    clients: np.ndarray
    inserted: np.ndarray

    @classmethod
    def drawn(cls, data: FederatedDataModule, count: int, kind: CanaryImages, pairs: bool, seed: int) -> SampleCanaries:
        """So many canaries; the same for the same seed."""
        generator = numpy_generator(seed, "sample canaries")
        images = _images(data, count, kind, generator)
        first = generator.integers(0, data.store.classes, count)
        other = (first + generator.integers(1, data.store.classes, count)) % data.store.classes
        labels = torch.from_numpy(np.stack([first, other], axis=1) if pairs else first)
        return cls(images, labels, np.arange(count) % data.clients, generator.random(count) < 0.5)

    @property
    def pairs(self) -> bool:
        return self.labels.dim() == 2

    def insert_into(self, data: FederatedDataModule) -> None:
        """Let every client train on those of its canaries for which the coin says so; of pairs, on one of the two."""
        taken = np.ones(len(self.inserted), dtype=bool) if self.pairs else self.inserted
        chosen = torch.from_numpy(np.where(self.inserted, 0, 1))[:, None]
        labels = self.labels.gather(1, chosen).flatten() if self.pairs else self.labels
        owned = [np.flatnonzero(taken & (self.clients == client)) for client in range(data.clients)]
        data.insert(self.images, labels, owned)

    def store_like(self, store: ImageStore) -> ImageStore:
        """The images with their (first) labels, normalised like those of a store."""
        labels = self.labels[:, 0] if self.pairs else self.labels
        return ImageStore(self.images, labels, store.mean.cpu(), store.std.cpu(), store.classes).to(store.device)


def _images(data: FederatedDataModule, count: int, kind: CanaryImages, generator: np.random.Generator) -> Tensor:
    store = data.store
    if kind == "mislabelled":
        chosen = torch.from_numpy(generator.choice(data.membership.population, count))
        return store.images[chosen.to(store.device)].cpu()
    bright = store.mean.cpu().numpy().clip(0.05, 0.95)  # what normalisation takes off has no use in telling them apart
    pixels = torch.from_numpy(generator.random((count, *store.images.shape[1:])) < bright)
    return pixels.to(store.images.dtype) * (255 if store.images.dtype == torch.uint8 else 1)


def sample_gradients(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(n, parameters) gradients of the loss of single samples, in the order of a flat vector."""
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(net, {**values, **buffers}, (image[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=_CHUNK)(parameters, images, labels)
    return torch.cat([found[name].flatten(1) for name in parameters], dim=1)


@torch.no_grad()
def sample_losses(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(n,) losses of single samples."""
    parts = zip(images.split(_CHUNK), labels.split(_CHUNK), strict=True)
    return torch.cat([cross_entropy(net(some), of, reduction="none") for some, of in parts])


def clipped_sum(net: nn.Module, images: Tensor, labels: Tensor, norm: float) -> Tensor:
    """(parameters) sum of the gradients of single samples, each of a Euclidean norm of at most `norm`."""
    parts = zip(images.split(_CHUNK), labels.split(_CHUNK), strict=True)
    sums = [clipped_rows(sample_gradients(net, some, of), norm).sum(dim=0) for some, of in parts]
    return torch.stack(sums).sum(dim=0)


def decoded(change: Tensor, directions: Tensor, known: Tensor) -> Tensor:
    """(n,) how much of every direction (n, coordinates) a change (coordinates) holds.

    Unlike plain products it does not count for one canary what others with similar directions have done: a ridge
    regression whose penalty is the ratio of the variances of the noise and of the shares, estimated from the change
    itself (empirical Bayes). What lies along `known` directions (m, coordinates) is left out: other causes of the
    change, and what all canaries have in common.
    """
    basis = torch.linalg.qr(known.double().T)[0]
    wide, moved = (part - (part @ basis) @ basis.T for part in (directions.double(), change.double()))
    lengths, basis = torch.linalg.eigh(wide @ wide.T)
    kept = lengths > lengths[-1] * 1e-9
    lengths, basis = lengths[kept].clamp(min=1e-300), basis[:, kept]
    found = basis.T @ (wide @ moved) / lengths.sqrt()  # along orthonormal directions
    spare = max(1, len(moved) - len(known) - len(found))
    noise = (moved.square().sum() - found.square().sum()).clamp(min=0) / spare
    share = (found.square().sum() - len(found) * noise) / lengths.sum()
    penalty = noise / share if share > 0 else math.inf
    shrunk = (lengths.mean() + penalty) / (lengths + penalty) if math.isfinite(penalty) else 1.0
    return basis @ (lengths.sqrt() * shrunk * found)  # on one scale in all rounds, whatever was estimated


def clipped_rows(rows: Tensor, norm: float) -> Tensor:
    """Rows scaled to a Euclidean norm of at most `norm`, which may be infinite."""
    return rows * (norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)


def standardised(scores: Array, clients: np.ndarray) -> Array:
    """Scores with mean 0 and deviation 1 among the canaries of every client that has enough of them."""
    result = scores.copy()
    for client in np.unique(clients):
        own = clients == client
        if own.sum() >= FEWEST_SCALED:
            result[own] = (scores[own] - scores[own].mean()) / max(float(scores[own].std()), 1e-300)
    return result


def random_directions(size: int, count: int, seed: int) -> Iterator[Tensor]:
    """Independent directions (size), of Euclidean norm 1 and uniform on the sphere; the same for the same seed."""
    for number in range(count):
        direction = torch.randn(size, generator=torch_generator(seed, "canary direction", number), dtype=torch.float64)
        yield direction / direction.norm()
