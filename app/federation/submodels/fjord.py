"""FjORD: ordered dropout, a client trains prefixes of changing width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch

from app.errors import Problem
from app.federation.parameters import ParameterSpace
from app.federation.submodels.base import LocalWidths, Seat
from app.federation.submodels.prefix import Prefix
from app.seeding import torch_generator


class FjORD(Prefix):
    """Ordered dropout (Horvath et al. 2021): prefixes of a width drawn up to what the client can afford.

    A client's capacity is its largest width. With `draw: batch` it receives and returns the prefix of that width and
    draws a new width for every local step, which trains the narrower prefix inside it. With `draw: round` it receives,
    trains and returns a prefix whose width is drawn once for the round.
    """

    def __init__(
        self,
        levels: list[float] | None = None,
        draw: Literal["batch", "round"] = "batch",
        distillation: float = 0.0,
        temperature: float = 1.0,
    ) -> None:
        """Choose the widths.

        Args:
            levels: width rates in (0, 1] to draw from with equal chances; a client leaves out those above its capacity
                and adds its capacity. Without any: 0.2, 0.4, 0.6, 0.8, 1.
            draw: a new width for every batch, or one per client and round.
            distillation: self-distillation: weight in [0, 1] of the widest network's output as the narrower one's
                target, 0 = off. Needs `draw: batch`; costs a second pass per step.
            temperature: of the self-distillation, above 0.
        """
        self.levels = tuple(levels) if levels else (0.2, 0.4, 0.6, 0.8, 1.0)
        self.draw = draw
        self.distillation, self.temperature = distillation, temperature

    @property
    def local_widths(self) -> LocalWidths | None:
        """The levels, where a width is drawn for every batch."""
        return self._widths if self.draw == "batch" else None

    def rate(self, seat: Seat) -> float:
        """The client's capacity, or with `draw: round` one of the levels up to it."""
        if self.draw == "batch":
            return seat.capacity
        choices = self._widths.affordable(seat.capacity)
        generator = torch_generator(seat.seed, "width", seat.round, seat.client)
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def rates(self, capacities: Iterable[float]) -> tuple[float, ...]:
        """The capacities and all levels below them."""
        levels = {level for capacity in capacities for level in self._widths.affordable(capacity)}
        return tuple(sorted(levels, reverse=True))

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        """Settings out of range."""
        if wrong := [level for level in self.levels if not 0 < level <= 1]:
            yield Problem(
                f"FjORD's levels hold {', '.join(map(str, wrong))}",
                "a submodel can be neither empty nor larger than the server's network",
                "give rates in (0, 1] to --model.method.levels",
            )
        if not 0 <= self.distillation <= 1 or self.temperature <= 0:
            yield Problem(
                f"FjORD's distillation is {self.distillation} and its temperature {self.temperature}",
                "the local loss would have no minimum",
                "set --model.method.distillation in [0, 1] and --model.method.temperature above 0",
            )
        if self.distillation and self.draw == "round":
            yield Problem(
                "FjORD's self-distillation needs a wider network than the one drawn",
                "with `draw: round` a client holds only the drawn width, so there would be no teacher",
                "set --model.method.draw batch, or --model.method.distillation 0",
            )

    @property
    def _widths(self) -> LocalWidths:
        return LocalWidths(self.levels, self.distillation, self.temperature)
