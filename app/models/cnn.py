"""The convolutional network of HeteroFL and MaPP-FL."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from app.common.errors import raise_all
from app.common.ranges import Count, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.checks import image_problems
from app.models.layers import conv_block, conv_chain_axes, make_scaler
from app.models.norms import BatchStatistics, NormKind, make_norm, norm_problems

_GROWTH = (1, 2, 4, 8)


class CNN(ScalableNet):
    """Four-block convolutional network of HeteroFL and MaPP-FL (sec. 7): 3x3 convolutions of u, 2u, 4u, 8u channels.

    Each block is convolution, Scaler, norm, ReLU and a 2x2 max-pool (none in the last); then global average pooling and
    a linear classifier. With 10 classes of 3x32x32 images it has 99,210 parameters at u=16 and 25,418 at u=8.

    Args:
        shape: image size (at least 8x8 pixels) and number of classes.
        u: channels of the first block, at least 1; the papers use 8, 16, 32 and 64.
        norm: normalisation after each convolution.
        statistics: what batch normalisation uses in evaluation: the evaluation batch (MaPP-FL), a pass over training
            data (HeteroFL) or running averages.
        channels_per_group: group size of group normalisation, at least 1.
        scaler: divide the output of each convolution by the rate in training. Without effect before a norm.
        keep_scaling: divide in evaluation as well.
        bias: whether convolutions and classifier have a bias.
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        u: Count = 16,
        norm: NormKind = "batch",
        statistics: BatchStatistics = "batch",
        channels_per_group: Count = 8,
        scaler: bool = True,
        keep_scaling: bool = False,
        bias: bool = True,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [scaled_width(growth * u, rate) for growth in _GROWTH]
        raise_all(
            # three 2x2 pools must leave a pixel
            image_problems("CNN", shape.height, shape.width, 8, "use --model.net MLP for tiny images"),
            norm_problems(norm, widths, statistics, channels_per_group),
        )
        normalise = partial(make_norm, norm, statistics=statistics, channels_per_group=channels_per_group)
        self.blocks = nn.Sequential(
            *(
                conv_block(
                    nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=bias),
                    normalise(outputs),
                    pool=number < len(widths) - 1,
                    scaler=make_scaler(scaler, rate, keep_scaling),
                )
                for number, (inputs, outputs) in enumerate(zip([shape.channels, *widths], widths, strict=False))
            )
        )
        self.classifier = nn.Linear(widths[-1], shape.classes, bias=bias)

    def layer_axes(self) -> dict[str, LayerAxes]:
        return conv_chain_axes(len(_GROWTH))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.blocks(images).mean(dim=(2, 3)))
