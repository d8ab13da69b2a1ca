"""Problems of a network's options, each with its remedy; a network collects them all before it builds anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.common.errors import Problem


def choice_problems(option: str, value: str, choices: Sequence[str]) -> Iterator[Problem]:
    """Problem of a value that is not among the choices of `--model.net.<option>`."""
    if value not in choices:
        yield Problem(
            f"{option} is {value!r}, which is not one of {', '.join(choices)}",
            "the network cannot be built",
            f"choose one of them, for example --model.net.{option} {choices[0]}",
        )


def image_problems(net: str, height: int, width: int, smallest: int, remedy: str) -> Iterator[Problem]:
    """Problem of images with a side of fewer than `smallest` pixels."""
    if min(height, width) < smallest:
        yield Problem(
            f"{net} needs images of at least {smallest}x{smallest} pixels; these are {height}x{width}",
            "its convolutions and pools would leave no pixel to classify",
            remedy,
        )
