"""Two AlexNets for 32x32 images: the membership-attack literature's, and a stronger one with batch normalisation."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Literal, NamedTuple, get_args

from torch import Tensor, nn

from app.common.errors import raise_all
from app.common.ranges import Count, Decay, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.checks import choice_problems, image_problems
from app.models.layers import SeededDropout, conv_block, conv_chain_axes
from app.models.norms import BatchStatistics, NormKind, make_norm, norm_problems

AlexNetVariant = Literal["bn", "nasr"]


class _Conv(NamedTuple):
    """One block: output channels, kernel side, stride and padding in pixels, 2x2 pool after it."""

    channels: int
    kernel: int
    stride: int
    padding: int
    pool: bool


_TAIL = (_Conv(192, 5, 1, 2, True), _Conv(384, 3, 1, 1, False), _Conv(256, 3, 1, 1, False), _Conv(256, 3, 1, 1, True))
_BLOCKS: dict[str, tuple[_Conv, ...]] = {
    "bn": (_Conv(64, 5, 1, 2, True), *_TAIL),
    "nasr": (_Conv(64, 11, 4, 5, True), *_TAIL),
}
_OWN_NORM: dict[str, NormKind] = {"bn": "batch", "nasr": "none"}


class AlexNet(ScalableNet):
    """AlexNet for small images: five convolutions, three 2x2 max-pools and a linear classifier (MemDefense sec. V).

    MemDefense does not say which AlexNet it used. "nasr" is the one of the white-box membership attack it runs (11x11
    convolution of stride 4 first; 2,472,266 parameters with 10 classes of 3x32x32). "bn" starts with 5x5 of stride 1,
    normalises (2,493,386 parameters); the published accuracies look out of reach of "nasr", so it is the default.

    Args:
        shape: image size (at least 8x8 pixels for "bn", 29x29 for "nasr") and number of classes.
        variant: "bn" or "nasr".
        norm: normalisation after each convolution; by default batch for "bn" and none for "nasr". Convolutions have a
            bias only without a norm, which would cancel it or bring its own.
        statistics: what batch normalisation uses in evaluation: the evaluation batch, a pass over training data, or
            running averages.
        channels_per_group: group size of group normalisation, at least 1.
        dropout: fraction of the classifier's inputs dropped in training, in [0, 1).
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        variant: AlexNetVariant = "bn",
        norm: NormKind | None = None,
        statistics: BatchStatistics = "batch",
        channels_per_group: Count = 8,
        dropout: Decay = 0.0,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        raise_all(choice_problems("variant", variant, get_args(AlexNetVariant)))
        blocks, kind = _BLOCKS[variant], norm or _OWN_NORM[variant]
        widths = [scaled_width(block.channels, rate) for block in blocks]
        smallest = next(side for side in count(1) if _side_of_map(blocks, side) >= 1)
        nasr = "use --model.net.variant bn, which needs 8x8, or --model.net CNN"
        remedy = nasr if variant == "nasr" else "use --model.net MLP for tiny images"
        raise_all(
            image_problems("AlexNet", shape.height, shape.width, smallest, remedy),
            norm_problems(kind, widths, statistics, channels_per_group),
        )
        normalise = partial(make_norm, kind, statistics=statistics, channels_per_group=channels_per_group)
        self.blocks = nn.Sequential(
            *(
                conv_block(
                    nn.Conv2d(inputs, outputs, block.kernel, block.stride, block.padding, bias=kind == "none"),
                    normalise(outputs),
                    pool=block.pool,
                )
                for block, inputs, outputs in zip(blocks, [shape.channels, *widths], widths, strict=False)
            )
        )
        self.pixels = _side_of_map(blocks, shape.height) * _side_of_map(blocks, shape.width)
        self.dropout = SeededDropout(dropout)
        self.classifier = nn.Linear(widths[-1] * self.pixels, shape.classes)

    def layer_axes(self) -> dict[str, LayerAxes]:
        return conv_chain_axes(len(self.blocks), spread=self.pixels)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.blocks(images).flatten(start_dim=1)))


def _side_of_map(blocks: tuple[_Conv, ...], side: int) -> int:
    """Side of the last map, in pixels, for an image of `side` pixels; 0 or less if nothing is left."""
    for block in blocks:
        side = (side + 2 * block.padding - block.kernel) // block.stride + 1
        side = side // 2 if block.pool else side
    return side
