"""Layers whose weight is a sum of shared rank-one factors, of which every client chooses its own (WAFFLe sec. 2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from app.models import ibp

DivergenceKind = Literal["closed", "sampled"]
FactorInit = Literal["balanced", "ibp-wf"]
GateRule = Literal["expectation", "threshold", "sample"]

PRIVATE = ("pi", "c", "d")
"""Parameters of a layer that belong to the client."""

NOISE = ("uniform_b", "uniform_v")
"""Buffers of a layer that a local step draws."""


@dataclass(frozen=True)
class FactorSettings:
    """How clients choose factors."""

    alpha: float | None = None  # concentration of the prior, above 0; None for the number of factors of the layer
    temperature: float = 2 / 3  # of the relaxed choice in training, above 0
    # how many times as fast as a weight the logits and logs of the private parameters move, above 0
    speed: float = 1000.0
    kl: DivergenceKind = "closed"  # divergence of the choice from its prior in closed form, or from one sample
    init: FactorInit = "balanced"  # factors as strong as the layer they replace, or those of IBP-WF
    # what stands for the choice in evaluation: its probability, its probability where that is at least `threshold` and
    # else 0, or a sample
    evaluation: GateRule = "expectation"
    threshold: float = 0.5  # in [0, 1]


class FactorLayer(nn.Module, ABC):
    """Weight left diag(strength * b) right, where b (factors) in [0, 1] is the client's choice.

    The private parameters are stored as logit(pi), log(c) and log(d), each divided by sqrt(speed): a step of plain
    gradient descent then moves the logit `speed` times as far as it would move a weight. The layer draws no noise: the
    training loop writes it into the buffers `uniform_b` and `uniform_v`.

    Attributes:
        left: (outputs, factors) shared.
        strength: (factors,) shared.
        right: (factors, columns) shared; columns are the inputs that one output pixel sees.
        bias: (outputs,) shared, or None.
        pi: (factors,) private: probability that the client uses each factor.
        c: (factors,) private: first parameter of the sticks' Kumaraswamy distributions.
        d: (factors,) private: second parameter.
        alpha: concentration of the prior.
    """

    bias: nn.Parameter | None
    uniform_b: Tensor
    uniform_v: Tensor

    def __init__(self, outputs: int, columns: int, factors: int, bias: bool, settings: FactorSettings) -> None:
        super().__init__()
        self.settings = settings
        self.alpha = float(factors) if settings.alpha is None else settings.alpha
        self.left = nn.Parameter(torch.empty(outputs, factors))
        self.strength = nn.Parameter(torch.empty(factors))
        self.right = nn.Parameter(torch.empty(factors, columns))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        self.pi, self.c, self.d = (nn.Parameter(torch.empty(factors)) for _ in PRIVATE)
        for name in NOISE:
            self.register_buffer(name, torch.full((factors,), 0.5), persistent=False)
        self._scale = math.sqrt(settings.speed)
        self._initialise()

    @property
    def factors(self) -> int:
        return self.strength.shape[0]

    def logits(self) -> Tensor:
        """Logits (factors,) of the probabilities that the client uses each factor, clamped."""
        return self._bounded(self.pi, ibp.LIMIT)

    def gates(self) -> Tensor:
        """The choice b (factors,): relaxed in training, by the rule of the settings in evaluation."""
        logits, settings = self.logits(), self.settings
        if self.training:
            return ibp.relaxed_bernoulli(logits, self.uniform_b, settings.temperature)
        pi = torch.sigmoid(logits)
        if settings.evaluation == "threshold":
            pi = torch.where(pi >= settings.threshold, pi, 0)
        elif settings.evaluation == "sample":
            pi = (self.uniform_b < pi).to(pi.dtype)
        certain = ibp.LIMIT - _slack(logits.dtype)
        return torch.where(logits >= certain, 1, torch.where(logits <= -certain, 0, pi))

    def weight(self) -> Tensor:
        """The composed weight (outputs, columns) of the present choice."""
        return (self.left * (self.strength * self.gates())) @ self.right

    def divergence(self) -> Tensor:
        """Divergence of the client's choice and sticks from their priors, with one sample of the sticks."""
        logits = self.logits()
        c, d = (self._bounded(log, ibp.LOG_LIMIT).exp() for log in (self.c, self.d))
        p = ibp.stick_probabilities(ibp.kumaraswamy(c, d, self.uniform_v))
        if self.settings.kl == "sampled":
            choice = ibp.concrete_kl(logits, p, self.uniform_b)
        else:
            choice = ibp.bernoulli_kl(torch.sigmoid(logits), p)
        return choice + ibp.kumaraswamy_beta_kl(c, d, self.alpha)

    def clamp_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Smallest and largest stored value of the private parameters."""
        limits = {"pi": ibp.LIMIT, "c": ibp.LOG_LIMIT, "d": ibp.LOG_LIMIT}
        return {name: (-limit / self._scale, limit / self._scale) for name, limit in limits.items()}

    @torch.no_grad()
    def choose(self, everything: bool = False, used: int | None = None) -> None:
        """Set the private parameters to the mean of the prior; `everything` uses every factor with certainty.

        Factors after the first `used` are switched off.
        """
        self.pi.copy_(torch.logit(ibp.prior_means(self.alpha, self.factors)) / self._scale)
        self.c.fill_(min(max(math.log(self.alpha), -ibp.LOG_LIMIT), ibp.LOG_LIMIT) / self._scale)
        self.d.zero_()
        if everything:
            self.pi.fill_(ibp.LIMIT / self._scale)
        if used is not None:
            self.pi[used:] = -ibp.LIMIT / self._scale

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The output of the layer that was replaced, with the composed weight."""

    def extra_repr(self) -> str:
        rows, columns = self.left.shape[0], self.right.shape[1]
        return f"{columns} -> {rows}, factors={self.factors}, bias={self.bias is not None}"

    def _bounded(self, kept: Tensor, limit: float) -> Tensor:
        """The logit or logarithm that a stored private parameter stands for."""
        # A value on its bound may round to a little more, and must not lose its gradient.
        limit += _slack(kept.dtype)
        return (kept * self._scale).clamp(-limit, limit)

    def _composes(self, rows: int) -> bool:
        """Whether composing the weight takes fewer multiplications than applying both factors to `rows` inputs."""
        (outputs, factors), columns = self.left.shape, self.right.shape[1]
        return outputs * columns * (factors + rows) < rows * factors * (outputs + columns)

    @torch.no_grad()
    def _initialise(self) -> None:
        (outputs, factors), columns = self.left.shape, self.right.shape[1]
        if self.settings.init == "ibp-wf":
            nn.init.normal_(self.strength, std=0.1)
            nn.init.xavier_uniform_(self.left)
            nn.init.xavier_uniform_(self.right)
        else:
            used = ibp.expected_factors(self.alpha, factors)
            deviation = (3 * columns * used) ** -0.25  # torch's own layers have weights of variance 1 / (3 inputs)
            nn.init.ones_(self.strength)
            nn.init.normal_(self.left, std=deviation * (columns / outputs) ** 0.25)
            nn.init.normal_(self.right, std=deviation * (outputs / columns) ** 0.25)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -(columns**-0.5), columns**-0.5)
        self.choose()


class FactorLinear(FactorLayer):
    """`nn.Linear` with a factorised weight."""

    def __init__(
        self, inputs: int, outputs: int, factors: int, bias: bool = True, settings: FactorSettings | None = None
    ) -> None:
        super().__init__(outputs, inputs, factors, bias, settings or FactorSettings())

    def forward(self, x: Tensor) -> Tensor:
        if self._composes(x.numel() // x.shape[-1]):
            return functional.linear(x, self.weight(), self.bias)
        scores = functional.linear(x, self.right) * (self.strength * self.gates())
        return functional.linear(scores, self.left, self.bias)


class FactorConv2d(FactorLayer):
    """`nn.Conv2d` with a factorised kernel: (outputs, inputs x height x width) as a matrix (WAFFLe appendix A).

    Stride, padding (zeros only) and dilation are those of `nn.Conv2d`; `kernel` is its height and width in pixels.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        factors: int,
        bias: bool = True,
        settings: FactorSettings | None = None,
        stride: tuple[int, ...] = (1, 1),
        padding: str | tuple[int, ...] = (0, 0),
        dilation: tuple[int, ...] = (1, 1),
    ) -> None:
        super().__init__(outputs, inputs * math.prod(kernel), factors, bias, settings or FactorSettings())
        self.kernel_shape = (inputs, *kernel)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        if self._composes(x.shape[0] * self._pixels(x)):
            return self._convolve(x, self.weight(), self.bias)
        left = self.left * (self.strength * self.gates())
        return functional.conv2d(self._convolve(x, self.right, None), left[:, :, None, None], self.bias)

    def _convolve(self, x: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        kernel = rows.view(-1, *self.kernel_shape)
        return functional.conv2d(x, kernel, bias, self.stride, self.padding, self.dilation)

    def _pixels(self, x: Tensor) -> int:
        sides = zip(x.shape[2:], self.kernel_shape[1:], self.stride, self.dilation, self._margins(), strict=True)
        return math.prod(
            (side + margin - dilated * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, dilated, margin in sides
        )

    def _margins(self) -> list[int]:
        """Rows and columns of zero padding, both sides together."""
        if self.padding == "same":
            sides = zip(self.kernel_shape[1:], self.dilation, strict=True)
            return [dilated * (kernel - 1) for kernel, dilated in sides]
        return [0, 0] if isinstance(self.padding, str) else [2 * margin for margin in self.padding]


def per_sample_gradients(layer: FactorLayer, x: Tensor, gradient: Tensor) -> dict[nn.Parameter, Tensor]:
    """Every sample's gradient (samples, ...) of each parameter, with the layer's current noise.

    `x` (samples, ...) is the layer's input, `gradient` (samples, ...) that of the loss with respect to its output.
    """
    bare = _Bare(layer)

    def weighed(values: dict[str, Tensor], sample: Tensor, weights: Tensor) -> Tensor:
        return (functional_call(bare, values, (sample[None],)) * weights[None]).sum()

    parameters = dict(bare.named_parameters())
    detached = {name: parameter.detach() for name, parameter in parameters.items()}
    gradients = vmap(grad(weighed), in_dims=(None, 0, 0))(detached, x, gradient)
    return {parameter: gradients[name] for name, parameter in parameters.items()}


class _Bare(nn.Module):
    """A layer without its hooks: hooks that compute per-sample gradients would call themselves again."""

    def __init__(self, layer: FactorLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x)


def _slack(dtype: torch.dtype) -> float:
    """Rounding error allowed to a value that was clamped to its limit."""
    return max(1e-3, ibp.LIMIT * torch.finfo(dtype).eps)
