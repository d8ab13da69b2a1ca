"""The strength of a defense as an axis of a comparison: an entry for every value of one of its options.

`memdefense: {sweep: {gamma: [0.5, 0.9]}}` stands for `memdefense gamma=0.5` and `memdefense gamma=0.9`, and
`memdefense: {sweep: default}` for the values that the defense declares (`knob`). Beside defenses of several strengths,
rows that only train for fewer rounds show what learning less would have done (`train-less rounds=0.5`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from app.common.errors import UserError
from app.experiments.spec import AxisEntry
from app.recipes import layered
from app.results.run.labels import NO_DEFENSE, TRAIN_LESS

DEFAULT = "default"
ROUNDS = "rounds"
"""Knob of rows that train less: the share of the rounds that they train for, in (0, 1)."""

FEWER_ROUNDS = (0.25, 0.5)
"""Shares of the rounds that are compared where a comparison has sweeps and does not say otherwise."""

OTHER_OPTIONS = ("model.", "data.", "trainer.")
"""Beginnings of options that are no defense's."""


def swept(entry: AxisEntry, sweep: Any) -> tuple[AxisEntry, ...]:
    """One entry per value of a sweep: a mapping of one option to a list of values, or `default`.

    Raises:
        UserError: where it cannot be one, with the remedy.
    """
    if sweep == DEFAULT:
        return tuple(_default(entry))
    if not isinstance(sweep, Mapping) or len(sweep) != 1:
        raise _wrong(f"is {sweep!r}", "write `sweep: {OPTION: [VALUE, VALUE]}` with one option, or `sweep: default`")
    option, values = next(iter(sweep.items()))
    if not isinstance(values, list) or not values or len({json.dumps(value) for value in values}) < len(values):
        raise _wrong(f"of {option} is {values!r}", "list its values, each once, from weak to strong")
    if entry.name == TRAIN_LESS:
        return tuple(_shares(entry, str(option), values))
    return tuple(_turned(entry, str(option).split(".")[-1], _path(entry, str(option)), values))


def with_less_training(entries: Sequence[AxisEntry]) -> tuple[AxisEntry, ...]:
    """The defenses of a comparison with rows that train less, where there are sweeps, `none`, and no such rows yet."""
    names = [entry.name for entry in entries]
    if NO_DEFENSE not in names or any(name.startswith(TRAIN_LESS) for name in names):
        return tuple(entries)
    return (*entries, *_shares(AxisEntry(TRAIN_LESS), ROUNDS, FEWER_ROUNDS))


def _default(entry: AxisEntry) -> Iterator[AxisEntry]:
    if entry.name == TRAIN_LESS:
        yield from _shares(entry, ROUNDS, FEWER_ROUNDS)
        return
    knobs = {name: kind.knob for name, kind in _classes(entry).items() if getattr(kind, "knob", None) is not None}
    if len(knobs) != 1:
        known = f"the options to turn are {', '.join(f'{name}.{knob.option}' for name, knob in knobs.items())}"
        remedy = f"name one: {known}" if knobs else "leave out the sweep: it has no strength that could be turned"
        raise _wrong(f"default is given to {entry.name}, which has {len(knobs) or 'no'} knobs", remedy)
    name, knob = next(iter(knobs.items()))
    yield from _turned(entry, knob.option, f"defenses.{name}.{knob.option}", knob.values)


def _turned(entry: AxisEntry, option: str, path: str, values: Sequence[Any]) -> Iterator[AxisEntry]:
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value)
        yield replace(entry, name=f"{entry.name} {option}={text}", options=(*entry.options, (path, text)), swept=path)


def _shares(entry: AxisEntry, option: str, values: Sequence[Any]) -> Iterator[AxisEntry]:
    for value in values:
        if option != ROUNDS or not isinstance(value, float) or not 0 < value < 1:
            raise _wrong(f"of {TRAIN_LESS} has {option} {value!r}", "write `sweep: {rounds: [0.25, 0.5]}`, in (0, 1)")
        yield replace(entry, name=f"{TRAIN_LESS} {ROUNDS}={value:g}", rounds=value)


def _path(entry: AxisEntry, option: str) -> str:
    """The full name of an option: of the defense that has it, or as it stands where it is another part's."""
    if option.startswith(OTHER_OPTIONS):
        return option
    *front, last = option.split(".")
    names = list(_classes(entry)) if not front else front[-1:]
    if len(names) == 1:
        return f"defenses.{names[0]}.{last}"
    remedy = f"name it, such as {names[0]}.{last}" if names else "give the entry a recipe of a defense"
    raise _wrong(f"of {option}: {entry.name} stands for {len(names) or 'no'} defenses", remedy)


def _classes(entry: AxisEntry) -> dict[str, Any]:
    """Classes of the defenses in an entry's recipes, by their names there."""
    defenses = layered(entry.configs).get("defenses") or {}
    return {name: class_at(content["class_path"]) for name, content in defenses.items()}


def class_at(path: str) -> Any:
    """The class of a path, such as `callbacks.MemDefense`."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _wrong(cause: str, remedy: str) -> UserError:
    return UserError.of(f"a sweep {cause}", "no run starts", remedy)
