"""Imprint attack (Fowl et al. 2022, "Robbing the Fed"): an inserted layer sorts images into bins, one image each."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from app.attacks.model_query import ModelQuery
from app.attacks.models import Snapshot
from app.attacks.reconstruction.active.base import ServerKnowledge
from app.attacks.reconstruction.active.imprint_block import (
    HEIGHT,
    MEASURE,
    SPREAD,
    BlockSettings,
    Variant,
    with_imprint_block,
)
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.attacks.reconstruction.inversion.extraction import DenseRatio
from app.common.ranges import Positive, Several
from app.common.seeding import torch_generator
from app.models.base import DataShape, ScalableNet

BINS_PER_IMAGE = 4
"""Bins for every image of a round: 7 of 9 images are then alone in their bin, if bins are equally probable."""

MOST_BINS = 4096
"""Largest number of bins that is chosen where none is set."""

SHIFT = 0.1
"""About the largest number, in normalised pixels, that the block adds to an image."""

LOUDNESS = 0.1
"""Usual size of the largest change of a neuron's weights: well above rounding, below what masked channels hold."""

BLIND_GAIN = 100.0
"""Gain of a server without images of its own."""

MOST_PROBED = 100
"""Largest number of its own images that a server estimates gradients on."""

QUIETEST = 1e-12
"""Smallest gradient that the gain is fitted to."""

PER_BIN = 20
"""Values per bin that its edges are quantiles of."""

NARROWEST = 1e-6
"""Smallest width of a bin, as a share of the range of all bins."""


class Imprint(TrapServer):
    """Inserts a layer in front of the network, and reads single images from the sum of all updates.

    The server ships the network's code, so that it can insert a layer whose neurons are bins of a linear measurement of
    the image; the images go on to the announced network, almost unchanged. A bin that one image alone falls into gives
    that image: the change of its weights over that of its bias. This holds for the sum over all clients as well, and
    for networks of any kind. All clients get the same model in one round; before and after, the layer does nothing.

    Neurons of the paper's `cumulative` variant fire for all images above them, and differences of neighbours are read,
    from one local step. `sparse` neurons pass gradients within their bin only (the paper's variant for several steps):
    the first image that falls into one drives it out of reach of all others.
    """

    name = "imprint"
    fits = "bins"

    def __init__(
        self,
        bins: Several | None = None,
        variant: Variant = "sparse",
        measurement: Literal["random", "brightness"] = "random",
        gain: Positive | None = None,
    ) -> None:
        """Set up the attack.

        Args:
            bins: neurons of the layer, at least 2; without a number, four for every image of a round, at most 4096.
            variant: which images a neuron passes gradients of.
            measurement: a random direction, or the mean of all pixels.
            gain: factor from a neuron's activation to what is added to a pixel, above 0: the larger, the larger the
                changes that are read, and the less is lost to pruning and rounding. Without one, changes are made 0.1
                as a rule, as images of the attacker's own show; with neither, it is 100.
        """
        super().__init__()
        self.bins, self.variant, self.measurement, self.gain = bins, variant, measurement, gain
        self.extraction = DenseRatio(differences=variant == "cumulative")

    def ships(self, net: ScalableNet, shape: DataShape, images: int) -> ScalableNet:
        bins = self.bins or min(MOST_BINS, max(2, BINS_PER_IMAGE * images))
        return with_imprint_block(net, BlockSettings(shape.channels * shape.height * shape.width, bins, self.variant))

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        if self.name not in knowledge.models:
            knowledge.models[self.name] = self._imprinted(knowledge)
        return knowledge.models[self.name]

    def _imprinted(self, knowledge: ServerKnowledge) -> Tensor:
        """The server's model with the bins in the inserted layer."""
        vector = knowledge.theta.clone()
        parts = {block.name: vector[block.coordinates].view(block.shape) for block in knowledge.space.blocks}
        weight, bias, spread = parts[f"{MEASURE}.weight"], parts[f"{MEASURE}.bias"], parts[f"{SPREAD}.weight"]
        bins, pixels = weight.shape
        draw = torch_generator(knowledge.public.seed, self.name, knowledge.first)
        direction = torch.full((pixels,), 1 / pixels, dtype=torch.float64)
        if self.measurement == "random":
            direction = torch.randn(pixels, generator=draw, dtype=torch.float64) / math.sqrt(pixels)
        edges, gain = self._edges(knowledge, direction, bins), self._gain(knowledge, bins)
        if self.variant == "sparse":
            slopes = HEIGHT / edges.diff()
            signs = torch.randint(0, 2, (bins,), generator=draw) * 2 - 1  # what they add cancels on average
        else:
            slopes = torch.full((bins,), SHIFT / (gain * bins * float(edges[-1] - edges[0])), dtype=torch.float64)
            signs = torch.ones(bins, dtype=torch.long)  # equal, so that neighbours pass on the same gradient
        weight.copy_(slopes[:, None] * direction)
        bias.copy_(-slopes * edges[:-1])
        spread.copy_(gain * signs)
        return vector

    def _edges(self, knowledge: ServerKnowledge, direction: Tensor, bins: int) -> Tensor:
        """(bins + 1) ascending edges, between which images of the attacker's own are spread evenly.

        Without any, the measurement is taken for standard normal, as that of pixels of mean square 1 on average is.
        """
        shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        own = knowledge.calibration
        if own is None:
            edges = torch.special.ndtri(shares.clamp(0.5 / bins, 1 - 0.5 / bins))
        else:
            edges = _smoothed(own.inputs.double() @ direction, bins).quantile(shares)
        reach = (edges[-1] - edges[0]).clamp(min=NARROWEST)
        edges[0], edges[-1] = edges[0] - reach / 2, edges[-1] + reach / 2
        return edges + torch.arange(bins + 1) * NARROWEST * reach

    def _gain(self, knowledge: ServerKnowledge, bins: int) -> float:
        """The gain, by default that which makes the largest change of a neuron's weights LOUDNESS for a usual image."""
        if self.gain is not None:
            return self.gain
        public = knowledge.public
        ids = torch.from_numpy(public.auxiliary[:MOST_PROBED])
        if not len(ids):
            return BLIND_GAIN
        net = ModelQuery(public).network(Snapshot(knowledge.first, 1.0, knowledge.theta))
        images, labels = public.store.batch(ids, public.dtype)
        images.requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(cross_entropy(net(images), labels, reduction="sum"), images)
        usual = float(slopes.flatten(1).sum(dim=1).abs().median() * images.detach().abs().amax())
        batch = min(public.local.batch_size, max(public.sizes))
        loud = LOUDNESS * batch / (public.learning_rates[knowledge.first] * max(usual, QUIETEST))
        return min(loud, SHIFT / (HEIGHT * math.sqrt(bins)))  # signs are random: sums grow with the root


def _smoothed(values: Tensor, bins: int) -> Tensor:
    """A larger sample from the density of the (n,) values: there are often fewer of them than bins.

    Each counts as several values around it, spread normally with half of Silverman's bandwidth (1986, eq. 3.31).
    """
    bandwidth = 0.45 * values.std(correction=0) * len(values) ** -0.2
    copies = math.ceil(PER_BIN * bins / len(values))
    offsets = torch.special.ndtri((torch.arange(copies, dtype=values.dtype) + 0.5) / copies)
    return (values[:, None] + bandwidth * offsets).flatten()
