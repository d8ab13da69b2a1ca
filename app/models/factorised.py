"""A network some of whose layers are sums of shared rank-1 factors (WAFFLe), and checks of its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal, Self, cast, get_args

import torch
from torch import Tensor, nn

from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Count, Fraction, NonNegative, Positive, Share
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.checks import choice_problems
from app.models.factor_layers import (
    NOISE,
    PRIVATE,
    DivergenceKind,
    FactorConv2d,
    FactorInit,
    FactorLayer,
    FactorLinear,
    FactorSettings,
    GateRule,
)
from app.models.mlp import MLP

Unqueried = Literal["everything", "prior"]


def obstacle(layer: nn.Module) -> str | None:
    """Why a layer cannot be factorised; None where it can."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1:
            return f"a convolution of {layer.groups} groups"
        return None if layer.padding_mode == "zeros" else f"a convolution with padding mode {layer.padding_mode}"
    return None if isinstance(layer, nn.Linear) else f"a {type(layer).__name__}"


def chosen_layers(inner: nn.Module, factors: Mapping[str, int]) -> dict[str, int]:
    """Number of factors by full layer name; a full name beats a pattern, a later pattern an earlier one."""
    able = [name for name, layer in inner.named_modules() if obstacle(layer) is None]
    by_pattern = {name: count for key, count in factors.items() for name in able if fnmatchcase(name, key)}
    return by_pattern | {name: factors[name] for name in able if name in factors}


def _setting_problems(settings: FactorSettings, unqueried: str) -> Iterator[Problem]:
    yield from choice_problems("kl", settings.kl, get_args(DivergenceKind))
    yield from choice_problems("init", settings.init, get_args(FactorInit))
    yield from choice_problems("evaluation", settings.evaluation, get_args(GateRule))
    yield from choice_problems("unqueried", unqueried, get_args(Unqueried))


def _factor_problems(inner: nn.Module, factors: Mapping[str, int]) -> Iterator[Problem]:
    layers = dict(inner.named_modules())
    able = [name for name, layer in layers.items() if obstacle(layer) is None]
    listed = f"{type(inner).__name__} has {', '.join(able) or 'none that can be'}"
    if not factors:
        remedy = f"name a layer, such as --model.net.factors '{{\"{(able or ['NAME'])[0]}\": 25}}' ({listed})"
        yield Problem("factors names no layer", "nothing would be factorised, nor private", remedy)
    for key in factors:
        yield from _name_problems(key, layers, able, listed)


def _name_problems(key: str, layers: Mapping[str, nn.Module], able: list[str], listed: str) -> list[Problem]:
    if any(fnmatchcase(name, key) for name in able):
        return []
    near = get_close_matches(key, able, n=1, cutoff=0.0)
    remedy = f"use {near[0]!r} in --model.net.factors ({listed})" if near else f"use another --model.net.net ({listed})"
    unfit = [name for name in layers if name and fnmatchcase(name, key)]
    if not unfit:
        return [Problem(f"factors names {key!r}, which is no layer of the network", "it cannot be factorised", remedy)]
    cause = f"factors names {key!r}, which is {obstacle(layers[unfit[0]])}"
    return [Problem(cause, "only linear layers and plain convolutions have a weight to factorise", remedy)]


DEFAULT_FACTORS = {"layers.hidden1": 120}


def plain_mlp(shape: DataShape) -> ScalableNet:
    """The MLP with its default options.

    A function, because the command line passes the options of a default class on to the class that replaces it where
    they have the same name: ConvNet would get the MLP's hidden layer.
    """
    return MLP(shape)


class Factorised(ScalableNet):
    """Any network with layers made of shared weight factors, of which every client privately chooses its own (WAFFLe).

    Only the factors and their strengths are ever sent. Published sizes (WAFFLe Table 1, without biases): the MLP with
    120 factors has 120,200 shared parameters. LeNet5 with 10, 10, 60 and 40 has 42,790, where the paper counts one
    vector of strengths for both convolutions (42,780). ConvNet with 25 factors in both convolutions has 27,555, or
    27,530 with one such vector; the 18,155 of the paper cannot be reached by its appendix A.

    Two defaults differ from the paper, whose choice of factors hardly moves: `speed` and `kl_weight` (both 1 there).

    Args:
        shape: image size and number of classes.
        net: the network whose layers are factorised; by default the MLP with 200 hidden units.
        factors: number of factors, at least 1, by layer of `net`, such as `layers.hidden1`; shell patterns such as
            `*hidden*` name several layers, and a full name counts more than a pattern. Linear layers and convolutions
            of one group can be factorised.
        alpha: concentration of the prior, above 0: the more, the more factors a client uses; by default the number of
            factors of the layer at rate 1, by which a client uses about 63 % of them at first.
        temperature: of the relaxed choice in training, above 0.
        speed: how many times as fast as a weight the logits of the choice move, above 0.
        kl_weight: weight of the divergence from the prior, at least 0.
        kl: that divergence in closed form, or estimated from one sample (IBP-WF).
        init: factors that compose weights as large as those of the layer they replace, or the small ones of IBP-WF.
        evaluation: what stands for a factor's choice in evaluation: its probability, its probability if that is at
            least `threshold` and else 0, or a sample.
        threshold: in [0, 1]; only for `evaluation` threshold.
        unqueried: what a client without a choice of its own uses, and so the server: all factors fully, or the prior.
        rate: fraction of the factors of every layer, in (0, 1]: the first ones, from which a dictionary grows; the
            server's network has 1.
    """

    def __init__(
        self,
        shape: DataShape,
        net: Callable[[DataShape], ScalableNet] = plain_mlp,
        factors: dict[str, Count] = DEFAULT_FACTORS,
        alpha: Positive | None = None,
        temperature: Positive = 2 / 3,
        speed: Positive = 1000.0,
        kl_weight: NonNegative = 0.1,
        kl: DivergenceKind = "closed",
        init: FactorInit = "balanced",
        evaluation: GateRule = "expectation",
        threshold: Fraction = 0.5,
        unqueried: Unqueried = "everything",
        rate: Share = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["net"])  # they are copied, and what a command line made cannot be
        self._make_inner = net
        settings = FactorSettings(alpha, temperature, speed, kl, init, evaluation, threshold)
        inner, wrong = _built(net, shape)
        raise_all(
            _setting_problems(settings, unqueried), wrong, _factor_problems(inner, factors) if inner is not None else []
        )
        assert inner is not None
        self.inner = inner
        self.kl_weight, self.unqueried = kl_weight, unqueried
        whole = {f"inner.{name}": count for name, count in chosen_layers(inner, factors).items()}
        self._sizes = {name: scaled_width(count, rate) for name, count in whole.items()}
        for name, count in self._sizes.items():
            own = replace(settings, alpha=float(whole[name]) if alpha is None else alpha)
            self.set_submodule(name, _replacement(self.get_submodule(name), count, own))

    def scaled(self, rate: float) -> Self:
        return type(self)(**{**self.hparams, "net": self._make_inner, "rate": rate})

    def factor_layers(self) -> dict[str, FactorLayer]:
        return {name: cast(FactorLayer, self.get_submodule(name)) for name in self._sizes}

    def layer_axes(self) -> dict[str, LayerAxes]:
        """No axis but the factors of every layer, which are not channels: only a growing dictionary cuts them."""
        layers = [name for name, layer in self.named_modules() if _has_coordinates(layer)]
        return {name: LayerAxes(factors=f"{name}.factors" if name in self._sizes else None) for name in layers}

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)

    def private_names(self) -> tuple[str, ...]:
        return tuple(f"{layer}.{name}" for layer in self._sizes for name in PRIVATE)

    def mask_private(self, used: float = 1.0) -> None:
        for layer in self.factor_layers().values():
            first = scaled_width(layer.factors, used) if used else 0
            layer.choose(everything=self.unqueried == "everything", used=first)

    def sample_noise(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        like = next(iter(self.factor_layers().values())).strength
        sizes = {f"{layer}.{name}": size for layer, size in self._sizes.items() for name in NOISE}
        drawn = torch.rand(sum(sizes.values()), generator=generator, device=generator.device, dtype=like.dtype)
        return dict(zip(sizes, drawn.split(list(sizes.values())), strict=True))

    def clamp_ranges(self) -> Mapping[str, tuple[float, float]]:
        layers = self.factor_layers().items()
        return {f"{layer}.{name}": bound for layer, part in layers for name, bound in part.clamp_ranges().items()}

    def penalty(self) -> Tensor | None:
        if self.kl_weight == 0:
            return None
        return self.kl_weight * torch.stack([layer.divergence() for layer in self.factor_layers().values()]).sum()


def _built(net: Callable[[DataShape], ScalableNet], shape: DataShape) -> tuple[ScalableNet | None, list[Problem]]:
    """The wrapped network, or the problems of its options under their names here.

    A function of its own, because `save_hyperparameters` of the wrapped network would otherwise collect the wrapper's.
    """
    try:
        return net(shape), []
    except UserError as error:
        return None, [replace(each, cause=_inner(each.cause), remedy=_inner(each.remedy)) for each in error.problems]


def _inner(text: str) -> str:
    return text.replace("model.net", "model.net.net")


def _has_coordinates(layer: nn.Module) -> bool:
    buffers = any(buffer.is_floating_point() for buffer in layer.buffers(recurse=False))
    return buffers or any(True for _ in layer.parameters(recurse=False))


def _replacement(layer: nn.Module, factors: int, settings: FactorSettings) -> FactorLayer:
    """A factor layer in place of a plain one; it keeps that one's bias."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    made: FactorLayer
    if isinstance(layer, nn.Linear):
        made = FactorLinear(layer.in_features, layer.out_features, factors, False, settings)
    else:
        made = FactorConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            factors,
            False,
            settings,
            layer.stride,
            layer.padding,
            layer.dilation,
        )
    made.register_parameter("bias", layer.bias if isinstance(layer.bias, nn.Parameter) else None)
    return made.to(layer.weight.device, layer.weight.dtype)
