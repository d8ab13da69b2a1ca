"""What is searched: options of a run, their ranges, and the points that are tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from app.common.errors import Problem, UserError
from app.common.seeding import numpy_generator
from app.common.wording import near
from app.experiments.sweeps import class_at
from app.federation.hooks import Around
from app.federation.local_training import LocalTraining

RATE = "model.local.optimizer.lr"
SHORT = {"lr": RATE} | {field.name: f"model.local.{field.name}" for field in fields(LocalTraining)}
"""Short names of options of local training."""

USUAL = {RATE: Around(10, 10), "model.local.epochs": Around(2, 2)}
"""What is searched in every row where a comparison does not say: learning rate and local epochs."""

DEFAULT = "default"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, above 0 on a logarithmic scale."""

    low: float
    high: float
    whole: bool  # whether they are whole numbers
    log: bool = True

    def at(self, share: float) -> float:
        """The number at a share in [0, 1) of the range, rounded to three digits; whole ones are equally wide."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        value = round(value) if self.whole else float(f"{value:.3g}")
        return min(max(value, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + ("" if self.log else ", linear")


@dataclass(frozen=True)
class Choices:
    """Values of which each is tried equally often."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1)."""
        return self.values[int(share * len(self.values))]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Span = Range | Choices


@dataclass(frozen=True)
class Searched:
    """An option of a row that is searched."""

    option: str  # of `rampart fit`
    span: Span
    recipe: Any  # its value without tuning
    asked: str  # the span as the comparison or the program asks for it, the same for rows that are tuned alike
    own: bool = False  # whether it is searched because of the row's defense


def read_span(name: str, wanted: Any) -> Span | Around | str:
    """What a comparison's file says about an option: `default`, choices, a range, or a range around the recipe's value.

    Raises:
        UserError: where it is none of them, with the forms.
    """
    if wanted == DEFAULT:
        return DEFAULT
    if isinstance(wanted, list) and wanted and all(isinstance(one, (str, bool, int, float)) for one in wanted):
        return Choices(tuple(wanted))
    if isinstance(wanted, Mapping) and (span := _range(wanted)) is not None:
        return span
    forms = f"{name}: [VALUE, VALUE], {name}: {{low: 0.01, high: 1}}, {name}: {{around: 10}}, or {name}: default"
    raise UserError.of(f"tune.space.{name} is {wanted!r}", "it is unclear what to search", f"write {forms}")


def _range(wanted: Mapping[str, Any]) -> Range | Around | None:
    numbers = [value for key, value in wanted.items() if key != "log"]
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers):
        return None
    if set(wanted) == {"around"} and wanted["around"] > 1:
        return Around(wanted["around"], wanted["around"])
    log = wanted.get("log", True)
    if set(wanted) - {"log"} != {"low", "high"} or not isinstance(log, bool) or not wanted["low"] < wanted["high"]:
        return None
    whole = all(isinstance(value, int) for value in numbers)
    return None if log and wanted["low"] <= 0 else Range(wanted["low"], wanted["high"], whole, log)


def row_space(space: Mapping[str, Span | Around | str], config: Mapping[str, Any], axis: str = "") -> list[Searched]:
    """Options that are searched in a row, by name.

    Args:
        space: what the comparison asks for; empty for what is usual and what defenses declare.
        config: complete configuration of the row.
        axis: option that the row is a strength of, which is never searched.
    """
    own = dict(_declared(config))
    declared = USUAL | own
    wanted = {_option(name, own): span for name, span in space.items()} or dict.fromkeys(declared, DEFAULT)
    found = []
    for option, asked in sorted(wanted.items()):
        recipe = value_at(config, option)
        span = declared.get(option) if asked == DEFAULT else asked
        if isinstance(span, Around):
            span = _around(recipe, span)
        elif isinstance(span, Range):
            span = replace(span, whole=span.whole and isinstance(recipe, int))
        if isinstance(span, (Range, Choices)) and _is_searched(option, config, axis):
            text = _text(declared[option] if asked == DEFAULT else asked)
            found.append(Searched(option, span, recipe, text, option in own))
    return found


def space_problems(space: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Options that no row has, or that must not be searched.

    Args:
        space: what the comparison asks for.
        rows: configurations of the rows.
    """
    own = [(config, dict(_declared(config))) for config in rows]
    for name in space:
        if not any(has(config, _option(name, declared)) for config, declared in own):
            known = [*SHORT, *(option.rpartition(".")[2] for _, declared in own for option in declared)]
            yield Problem(
                f"tune.space names {name}, which is not searched in any row",
                "data, rounds and the strength of a defense stay as they are, and of its options only those are "
                "searched that it declares",
                f"{near(name, known)}known are {', '.join(dict.fromkeys(known))}, and options that begin with model.",
            )


def points(searched: list[Searched], trials: int, seed: int) -> list[dict[str, Any]]:
    """Settings of every trial; those of the first one are empty, since it is the recipe as it stands.

    The others are a Latin hypercube: each option's range is cut into as many parts as there are trials, and every part
    is tried once. An option's parts are in an order of its own, which depends on its name and the seed only, so rows
    that share an option are tried at the same points, in the same trials.
    """
    count = trials - 1
    settings: list[dict[str, Any]] = [{} for _ in range(trials)]
    for each in searched:
        generator = numpy_generator(seed, f"tuning {each.option}")
        shares = (generator.permutation(count) + generator.random(count)) / max(1, count)
        for number, share in enumerate(shares.tolist(), 1):
            settings[number][each.option] = each.span.at(share)
    return settings


def value_at(config: Mapping[str, Any], option: str) -> Any:
    """The value of an option in a complete configuration; None where it has none."""
    node: Any = config
    for key in option.split("."):
        if isinstance(node, Mapping) and key not in node:
            node = node.get("init_args")
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def has(config: Mapping[str, Any], option: str) -> bool:
    """Whether a configuration has an option."""
    front, _, last = option.rpartition(".")
    node = value_at(config, front)
    return isinstance(node, Mapping) and last in {**node, **(node.get("init_args") or {})}


def _declared(config: Mapping[str, Any]) -> Iterator[tuple[str, Around]]:
    """What the row's defenses declare."""
    for name, defense in (config.get("defenses") or {}).items():
        for option, around in getattr(class_at(defense["class_path"]), "tuned", {}).items():
            yield option if option.startswith("model.") else f"defenses.{name}.{option}", around


def _option(name: str, own: Mapping[str, Around]) -> str:
    """The full name of an option; that of a defense's own where the row's defense declares it, else empty."""
    if name in SHORT or name.startswith("model."):
        return SHORT.get(name, name)
    return next((option for option in own if option == name or option.endswith(f".{name}")), "")


def _text(asked: Span | Around | str) -> str:
    if isinstance(asked, Around):
        return f"the recipe's over {asked.below:g} to times {asked.above:g}"
    return str(asked)


def _is_searched(option: str, config: Mapping[str, Any], axis: str) -> bool:
    steps = option == "model.local.epochs" and value_at(config, "model.local.steps") is not None
    return option != axis and has(config, option) and not steps


def _around(recipe: Any, around: Around) -> Range | None:
    """A range around the recipe's value; None where that is no number, is 0 or infinite, or nothing is left."""
    if not isinstance(recipe, (int, float)) or isinstance(recipe, bool) or not 0 < recipe < math.inf:
        return None
    whole = isinstance(recipe, int)
    low, high = recipe / around.below, recipe * around.above
    low, high = (max(1, round(low)), round(high)) if whole else (float(f"{low:.3g}"), float(f"{high:.3g}"))
    return Range(low, high, whole) if low < high else None
