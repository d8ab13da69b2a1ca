"""Checks of options of the data, named as below `--data`, and lists of names in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.errors import Problem

SHOWN = 5
"""Names that a message lists; further ones are only counted."""


def minimum_problems(options: Mapping[str, int | None], least: int, consequence: str) -> list[Problem]:
    """Options below the smallest value allowed; None is always allowed."""
    return [
        Problem(f"{option} is {value}", consequence, f"set --data.{option} to {least} or more")
        for option, value in options.items()
        if value is not None and value < least
    ]


def seed_problems(option: str, seed: int | None) -> list[Problem]:
    """A negative seed."""
    return minimum_problems({option: seed}, 0, "random generators take no negative seed")


def share_problems(options: Mapping[str, float]) -> list[Problem]:
    """Options outside [0, 1)."""
    return [
        Problem(f"{option} is {value}", "it is no share of the data", f"set --data.{option} to at least 0 and below 1")
        for option, value in options.items()
        if not 0 <= value < 1
    ]


def fraction_problems(fraction: float) -> list[Problem]:
    """A test fraction outside (0, 1)."""
    if 0 < fraction < 1:
        return []
    remedy = "set --data.test_fraction above 0 and below 1"
    return [Problem(f"test_fraction is {fraction}", "training or test set would be empty", remedy)]


def first_few(names: Sequence[str]) -> str:
    """The first names and how many more there are: "a, b, c, d, e and 7 more"."""
    text = ", ".join(names[:SHOWN])
    return text if len(names) <= SHOWN else f"{text} and {len(names) - SHOWN} more"
