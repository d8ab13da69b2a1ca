"""LeNet-5, the network of MemDefense on MNIST and of WAFFLe on CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn

from app.common.errors import Problem, raise_all
from app.common.ranges import Decay, Share, Whole
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.checks import image_problems
from app.models.layers import SeededDropout, conv_block

_SMALLEST_PADDED = 16  # two 5x5 convolutions, each followed by a 2x2 pool, must leave a pixel


class LeNet5(ScalableNet):
    """LeNet-5 with ReLU and max-pooling: 6 and 16 channels of 5x5, then 120, 84 and the classes.

    Used by MemDefense (sec. V; 61,706 parameters on MNIST) and WAFFLe (Table 1: 61,770 on CIFAR-10, without biases).

    Args:
        shape: image size (at least 16x16 pixels with padding) and number of classes.
        padding: zero pixels around the image, at least 0; by default 2 for 28x28 images, to make them 32x32, else 0.
        bias: whether layers have a bias.
        dropout: fraction of the 120 and 84 hidden activations dropped in training, in [0, 1).
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        padding: Whole | None = None,
        bias: bool = True,
        dropout: Decay = 0.0,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if padding is None:
            padding = 2 if (shape.height, shape.width) == (28, 28) else 0
        raise_all(_size_problems(shape, padding))
        self.pixels = _side_of_map(shape.height + 2 * padding) * _side_of_map(shape.width + 2 * padding)
        six, sixteen, first, second = (scaled_width(width, rate) for width in (6, 16, 120, 84))
        self.conv1 = conv_block(nn.Conv2d(shape.channels, six, 5, padding=padding, bias=bias), nn.Identity(), pool=True)
        self.conv2 = conv_block(nn.Conv2d(six, sixteen, 5, bias=bias), nn.Identity(), pool=True)
        self.hidden1 = nn.Linear(sixteen * self.pixels, first, bias=bias)
        self.hidden2 = nn.Linear(first, second, bias=bias)
        self.classifier = nn.Linear(second, shape.classes, bias=bias)
        self.activation = nn.Sequential(nn.ReLU(), SeededDropout(dropout))

    def layer_axes(self) -> dict[str, LayerAxes]:
        return {
            "conv1.conv": LayerAxes(output="conv1"),
            "conv2.conv": LayerAxes(output="conv2", input="conv1"),
            "hidden1": LayerAxes(output="hidden1", input="conv2", spread=self.pixels),
            "hidden2": LayerAxes(output="hidden2", input="hidden1"),
            "classifier": LayerAxes(input="hidden2"),
        }

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv2(self.conv1(images)).flatten(start_dim=1)
        hidden = self.activation(self.hidden1(features))
        return self.classifier(self.activation(self.hidden2(hidden)))


def _size_problems(shape: DataShape, padding: int) -> Iterable[Problem]:
    enough = math.ceil((_SMALLEST_PADDED - min(shape.height, shape.width)) / 2)
    remedy = f"pad them with --model.net.padding {enough}, or use --model.net CNN"
    return image_problems("LeNet5", shape.height, shape.width, _SMALLEST_PADDED - 2 * padding, remedy)


def _side_of_map(side: int) -> int:
    """Side of the second pooled map, in pixels, for a padded image of `side` pixels."""
    return ((side - 4) // 2 - 4) // 2
