"""ResNet-18 for small images, with channel axes shared across its residual additions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor, nn

from app.common.errors import raise_all
from app.common.ranges import Count, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.layers import make_scaler
from app.models.norms import BatchStatistics, NormKind, make_norm, norm_problems

_GROWTH = (1, 2, 4, 8)
_BLOCKS_PER_STAGE = 2

_MakeConv = Callable[[int, int, int, int], nn.Module]
"""Builds a normalised convolution from its input channels, output channels, kernel side and stride in pixels."""


class ResNet18(ScalableNet):
    """ResNet-18 with a 3x3 stem for small images: stages of base, 2, 4 and 8 times base channels, two blocks each.

    With 10 classes of 3x32x32 images and base 64 it has 11,173,962 parameters. The two ends of a residual addition
    share their choice of channels, so a stage has one axis for its outputs and one inside each block.

    Args:
        shape: image size (any) and number of classes.
        base: channels of the stem and first stage, at least 1.
        norm: normalisation after each convolution; convolutions have a bias only without it.
        statistics: what batch normalisation uses in evaluation: the evaluation batch, a pass over training data
            (HeteroFL), or running averages.
        channels_per_group: group size of group normalisation, at least 1.
        scaler: divide the output of each convolution by the rate in training (HeteroFL). Without effect before
            a norm.
        keep_scaling: divide in evaluation as well.
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        base: Count = 64,
        norm: NormKind = "batch",
        statistics: BatchStatistics = "batch",
        channels_per_group: Count = 8,
        scaler: bool = True,
        keep_scaling: bool = False,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [scaled_width(growth * base, rate) for growth in _GROWTH]
        raise_all(norm_problems(norm, widths, statistics, channels_per_group))
        normalise = partial(make_norm, norm, statistics=statistics, channels_per_group=channels_per_group)

        def conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
            plain = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=norm == "none")
            scaling = make_scaler(scaler, rate, keep_scaling)
            return nn.Sequential(OrderedDict(conv=plain, scaler=scaling, norm=normalise(outputs)))

        self.stem = conv(shape.channels, widths[0], 3, 1)
        self.activation = nn.ReLU()
        self.blocks = nn.Sequential(*_blocks(widths, conv))
        self.classifier = nn.Linear(widths[-1], shape.classes)

    def layer_axes(self) -> dict[str, LayerAxes]:
        """Axes stage1 to stage4 of the residual stream and block1 to block8 inside the blocks, in order of depth."""
        axes = _conv_axes("stem", "stage1", None)
        stream = "stage1"
        for number, block in enumerate(self.blocks):
            inner, output = f"block{number + 1}", f"stage{number // _BLOCKS_PER_STAGE + 1}"
            axes |= _conv_axes(f"blocks.{number}.conv1", inner, stream)
            axes |= _conv_axes(f"blocks.{number}.conv2", output, inner)
            if not isinstance(block.shortcut, nn.Identity):
                axes |= _conv_axes(f"blocks.{number}.shortcut", output, stream)
            stream = output
        axes["classifier"] = LayerAxes(input=stream)
        return axes

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.activation(self.stem(images)))
        return self.classifier(features.mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added, through a 1x1 convolution where `resize` halves the map."""

    def __init__(self, inputs: int, outputs: int, resize: bool, conv: _MakeConv) -> None:
        super().__init__()
        stride = 2 if resize else 1
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.conv2 = conv(outputs, outputs, 3, 1)
        self.shortcut = conv(inputs, outputs, 1, stride) if resize else nn.Identity()
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.conv1(x))
        return self.activation(self.conv2(inner) + self.shortcut(x))


def _blocks(widths: list[int], conv: _MakeConv) -> Iterator[BasicBlock]:
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for position in range(_BLOCKS_PER_STAGE):
            # Decided by position, not by whether the widths differ: at tiny rates they may not, yet all widths of one
            # net must have the same layers.
            resize = stage > 0 and position == 0
            yield BasicBlock(inputs, width, resize, conv)
            inputs = width


def _conv_axes(name: str, output: str, previous: str | None) -> dict[str, LayerAxes]:
    return {f"{name}.conv": LayerAxes(output=output, input=previous), f"{name}.norm": LayerAxes(output=output)}
