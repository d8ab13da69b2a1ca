"""Fully connected network, the network of WAFFLe on MNIST."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from app.common.ranges import Count, Decay, Positive, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.layers import linear_chain


class MLP(ScalableNet):
    """Fully connected network with ReLU; WAFFLe's 784-200-10 has 158,800 parameters without biases.

    WAFFLe Table 1 prints 155,800, probably a slip of one digit: 784 * 200 + 200 * 10 is 158,800.

    Args:
        shape: image size (any) and number of classes.
        hidden: widths of the hidden layers, each at least 1; empty for multinomial logistic regression.
        bias: whether layers have a bias.
        dropout: fraction of each hidden layer's activations dropped in training, in [0, 1).
        uniform: draw all weights and biases uniformly between 0 and this, above 0, as the public code of Haldankar et
            al. (2024) does; None for torch's own initialisation.
        rate: fraction of the full width, in (0, 1]; the server's model has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        hidden: Sequence[Count] = (200,),
        bias: bool = True,
        dropout: Decay = 0.0,
        uniform: Positive | None = None,
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [shape.channels * shape.height * shape.width, *(scaled_width(width, rate) for width in hidden)]
        self.layers = linear_chain(widths, shape.classes, bias, dropout)
        self.depth, self.uniform = len(hidden), uniform
        if uniform is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, 0.0, uniform)

    def layer_axes(self) -> dict[str, LayerAxes]:
        names = [f"hidden{number}" for number in range(1, self.depth + 1)]
        ends = zip([*names, None], [None, *names], strict=True)
        return {
            f"layers.{output or 'classifier'}": LayerAxes(output=output, input=previous) for output, previous in ends
        }

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def extra_repr(self) -> str:
        return "" if self.uniform is None else f"uniform={self.uniform}"
