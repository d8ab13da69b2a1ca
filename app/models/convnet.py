"""A plain convolutional network of any depth, the network of WAFFLe on FashionMNIST."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise

from torch import Tensor, nn

from app.common.errors import Problem, raise_all
from app.common.ranges import Count, Decay, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.checks import image_problems
from app.models.layers import conv_block, linear_chain


class ConvNet(ScalableNet):
    """Convolutions, each with ReLU and a 2x2 max-pool, then linear layers; WAFFLe's has 28,880 parameters on FMNIST.

    That is without biases (Table 1). With `channels` (16, 16), `kernel` 3 and `hidden` (80, 60) it is the CIFAR-10 net
    of WAFFLe's appendix C: 54,216 parameters without padding and 90,056 with, where Table 1 counts those of LeNet5.

    Args:
        shape: image size and number of classes; a pixel must be left after the last pool.
        channels: output channels of the convolutions, each at least 1.
        kernel: side of the kernels, in pixels, at least 1; odd with padding.
        padding: whether convolutions keep the size of their map.
        hidden: widths of the hidden linear layers, each at least 1; none by default.
        bias: whether layers have a bias.
        dropout: fraction of each hidden linear layer's activations dropped in training, in [0, 1).
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        channels: Sequence[Count] = (16, 32),
        kernel: Count = 5,
        padding: bool = True,
        hidden: Sequence[Count] = (),
        bias: bool = True,
        dropout: Decay = 0.0,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        raise_all(_kernel_problems(kernel, padding) or _size_problems(shape, len(channels), kernel, padding))
        maps = [shape.channels, *(scaled_width(width, rate) for width in channels)]
        margin = kernel // 2 if padding else 0
        self.blocks = nn.Sequential(
            *(
                conv_block(nn.Conv2d(before, after, kernel, padding=margin, bias=bias), nn.Identity(), pool=True)
                for before, after in pairwise(maps)
            )
        )
        height, width = (_side_of_map(side, len(channels), kernel, padding) for side in (shape.height, shape.width))
        self.pixels, self.depth = height * width, len(hidden)
        widths = [maps[-1] * self.pixels, *(scaled_width(width, rate) for width in hidden)]
        self.layers = linear_chain(widths, shape.classes, bias, dropout)

    def layer_axes(self) -> dict[str, LayerAxes]:
        convs = [f"conv{number}" for number in range(1, len(self.blocks) + 1)]
        hidden = [f"hidden{number}" for number in range(1, self.depth + 1)]
        names = [f"blocks.{number}.conv" for number in range(len(convs))]
        names += [f"layers.{name}" for name in [*hidden, "classifier"]]
        ends = zip([*convs, *hidden, None], [None, *convs, *hidden], strict=True)
        axes = {name: LayerAxes(*pair) for name, pair in zip(names, ends, strict=True)}
        flattened = names[len(convs)]
        return axes | {flattened: replace(axes[flattened], spread=self.pixels)}

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(self.blocks(images))


def _side_of_map(side: int, depth: int, kernel: int, padding: bool) -> int:
    """Side of the last pooled map, in pixels, for an image of `side` pixels; 0 or less if nothing is left."""
    for _ in range(depth):
        side = (side if padding else side - kernel + 1) // 2
    return side


def _size_problems(shape: DataShape, depth: int, kernel: int, padding: bool) -> Iterator[Problem]:
    smallest = next(side for side in count(1) if _side_of_map(side, depth, kernel, padding) >= 1)
    fewer = "use fewer --model.net.channels"
    remedy = fewer if padding else f"set --model.net.padding true, use a smaller --model.net.kernel, or {fewer}"
    return image_problems("ConvNet", shape.height, shape.width, smallest, remedy)


def _kernel_problems(kernel: int, padding: bool) -> list[Problem]:
    if padding and kernel % 2 == 0:
        cause, consequence = f"kernel is {kernel} pixels, an even number", "padding cannot keep the size of a map"
        return [Problem(cause, consequence, f"use --model.net.kernel {kernel + 1}, or --model.net.padding false")]
    return []
