"""What can be wrong with the options of a factorised network, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal, get_args

from torch import nn

from app.errors import Problem
from app.models.checks import above_problems, choice_problems
from app.models.factor_layers import DivergenceKind, FactorInit, FactorSettings, GateRule

Unqueried = Literal["everything", "prior"]


def obstacle(layer: nn.Module) -> str | None:
    """Why a layer cannot be factorised, as what it is; None where it can."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1:
            return f"a convolution of {layer.groups} groups"
        return None if layer.padding_mode == "zeros" else f"a convolution with padding mode {layer.padding_mode}"
    return None if isinstance(layer, nn.Linear) else f"a {type(layer).__name__}"


def chosen_layers(inner: nn.Module, factors: Mapping[str, int]) -> dict[str, int]:
    """Number of factors by full name of a layer; a full name counts more than a pattern, a later pattern more."""
    able = [name for name, layer in inner.named_modules() if obstacle(layer) is None]
    by_pattern = {name: count for key, count in factors.items() for name in able if fnmatchcase(name, key)}
    return by_pattern | {name: factors[name] for name in able if name in factors}


def setting_problems(settings: FactorSettings, kl_weight: float, unqueried: str) -> list[Problem]:
    """Problems of how clients choose factors."""
    option = "--model.net."
    problems = [
        *choice_problems("kl", settings.kl, get_args(DivergenceKind)),
        *choice_problems("init", settings.init, get_args(FactorInit)),
        *choice_problems("evaluation", settings.evaluation, get_args(GateRule)),
        *choice_problems("unqueried", unqueried, get_args(Unqueried)),
        *above_problems(
            "temperature",
            settings.temperature,
            "the relaxed choice of factors is not defined",
            f"give a positive number, for example {option}temperature 0.667",
        ),
        *above_problems(
            "speed",
            settings.speed,
            "the choice of factors would never move, or away from what it learns",
            f"give a positive number: {option}speed 1 is the paper's, 1000 lets the choice become personal",
        ),
        *above_problems(
            "kl_weight",
            kl_weight,
            "clients would be driven away from the prior",
            f"give {option}kl_weight 0 to do without the prior, or a positive number",
            least=0,
        ),
    ]
    if settings.alpha is not None:
        problems += above_problems(
            "alpha",
            settings.alpha,
            "the prior would use no factor at all",
            f"give a positive number, or leave {option}alpha out to use the number of factors",
        )
    if not 0 <= settings.threshold <= 1:
        cause, consequence = f"threshold is {settings.threshold}, outside [0, 1]", "it is compared with probabilities"
        problems.append(Problem(cause, consequence, f"give a probability, for example {option}threshold 0.5"))
    return problems


def full_width_problems(rate: float) -> list[Problem]:
    """Problem of any width but the full one."""
    if rate == 1:
        return []
    return [
        Problem(
            f"rate is {rate}, but a factorised network has the full width only",
            "factors are not channels: a narrower network would have other factors",
            "leave --model.net.rate at 1, give all clients the full width, and use fewer --model.net.factors instead",
        )
    ]


def factor_problems(inner: nn.Module, factors: Mapping[str, int]) -> list[Problem]:
    """Problems of the layers that are to be factorised, and of their numbers of factors."""
    layers = dict(inner.named_modules())
    able = [name for name, layer in layers.items() if obstacle(layer) is None]
    listed = f"{type(inner).__name__} has {', '.join(able) or 'none that can be'}"
    if not factors:
        remedy = f"name a layer, such as --model.net.factors '{{\"{(able or ['NAME'])[0]}\": 25}}' ({listed})"
        return [Problem("factors names no layer", "nothing would be factorised, nor private", remedy)]
    problems = [problem for key in factors for problem in _name_problems(key, layers, able, listed)]
    few = {key: count for key, count in factors.items() if count < 1}
    for key, count in few.items():
        cause, consequence = f"factors gives {key!r} {count} factors", "its weight would be zero for ever"
        problems.append(Problem(cause, consequence, "give at least 1 to every layer in --model.net.factors"))
    return problems


def _name_problems(key: str, layers: Mapping[str, nn.Module], able: list[str], listed: str) -> list[Problem]:
    if any(fnmatchcase(name, key) for name in able):
        return []
    near = get_close_matches(key, able, n=1, cutoff=0.0)
    remedy = f"use {near[0]!r} in --model.net.factors ({listed})" if near else f"use another --model.net.net ({listed})"
    found = [name for name in layers if name and fnmatchcase(name, key)]
    if not found:
        return [Problem(f"factors names {key!r}, which is no layer of the network", "it cannot be factorised", remedy)]
    cause = f"factors names {key!r}, which is {obstacle(layers[found[0]])}"
    return [Problem(cause, "only linear layers and plain convolutions have a weight to factorise", remedy)]
