"""Problems of a network's options, each with its remedy; a network collects them all before it builds anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.errors import Problem


def choice_problems(option: str, value: str, choices: Sequence[str]) -> Iterator[Problem]:
    """Problem of a value that is not among the choices of `--model.net.<option>`."""
    if value not in choices:
        yield Problem(
            f"{option} is {value!r}, which is not one of {', '.join(choices)}",
            "the network cannot be built",
            f"choose one of them, for example --model.net.{option} {choices[0]}",
        )


def rate_problems(rate: float) -> Iterator[Problem]:
    """Problem of a width rate outside (0, 1]."""
    if not 0 < rate <= 1:
        yield Problem(
            f"rate is {rate}, outside (0, 1]",
            "a submodel would have no channels, or more than the model it is cut from",
            "give a fraction of the full width, for example --model.net.rate 0.5; 1 is the full width",
        )


def dropout_problems(dropout: float) -> Iterator[Problem]:
    """Problem of a dropout probability outside [0, 1)."""
    if not 0 <= dropout < 1:
        yield Problem(
            f"dropout is {dropout}, outside [0, 1)",
            "every activation would be dropped, or the mask would not be a probability",
            "give the fraction of activations to drop, for example --model.net.dropout 0.5; 0 turns it off",
        )


def width_problems(option: str, widths: Iterable[int]) -> Iterator[Problem]:
    """Problem of layer widths below one channel, given by `--model.net.<option>`."""
    if empty := [width for width in widths if width < 1]:
        yield Problem(
            f"{option} asks for layers of {', '.join(map(str, empty))} channels",
            "a layer without channels passes nothing on",
            f"give positive numbers of channels to --model.net.{option}",
        )


def image_problems(net: str, height: int, width: int, smallest: int, remedy: str) -> Iterator[Problem]:
    """Problem of images with a side of fewer than `smallest` pixels."""
    if min(height, width) < smallest:
        yield Problem(
            f"{net} needs images of at least {smallest}x{smallest} pixels; these are {height}x{width}",
            "its convolutions and pools would leave no pixel to classify",
            remedy,
        )


def above_problems(
    option: str, value: float, consequence: str, remedy: str, least: float | None = None
) -> Iterator[Problem]:
    """Problem of a number that is not above 0, or, where `least` is given, below it (NaN is neither)."""
    if not (value >= least if least is not None else value > 0):
        wanted = "not above 0" if least is None else f"below {least:g}"
        yield Problem(f"{option} is {value}, {wanted}", consequence, remedy)
