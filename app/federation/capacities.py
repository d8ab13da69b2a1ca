"""How wide a submodel each client can afford."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from app.common.errors import Problem
from app.common.ranges import Positive, Share, Whole
from app.common.seeding import torch_generator
from app.common.wording import counted

LEVELS = {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.125, "e": 0.0625}
"""HeteroFL's five levels (Diao et al. 2021)."""


@dataclass(frozen=True)
class Capacities:
    """Width rates of the clients, in (0, 1]; 1 is the server's whole network, which all clients train by default.

    Give one of `large`, `levels` or `rates`.

    Attributes:
        large: number of clients that train the whole network; the others train `small` of its width.
        small: width rate of the clients that are not large, in (0, 1].
        levels: HeteroFL's levels a = 1, b = 1/2, c = 1/4, d = 1/8, e = 1/16 with their shares, such as
            `a1-b1-c1-d1-e1` for a fifth each or `a2-e8` for two tenths and eight tenths.
        rates: one rate for all; or one per client, in the order of their ids; or, with `shares`, one per share.
        shares: fraction of the clients for each of `rates`, positive; need not add up to 1.
        widest: which clients get the widest submodels: those with most data (as in the papers), those with the lowest
            ids, or a random draw. One rate per client is taken as given, unless it is drawn.
        redraw: assign the rates to the clients anew in every round; needs `widest: draw`.
    """

    large: Whole | None = None
    small: Share = 0.5
    levels: str | None = None
    rates: list[Share] | None = None
    shares: list[Positive] | None = None
    widest: Literal["data", "first", "draw"] = "data"
    redraw: bool = False

    @staticmethod
    def of(settings: Capacities | Mapping[str, Any] | Sequence[float] | None) -> Capacities:
        """The settings themselves, or those that a mapping or a plain list of rates stands for."""
        if isinstance(settings, Mapping):
            return Capacities(**settings)
        return (
            settings
            if isinstance(settings, Capacities)
            else Capacities(rates=None if settings is None else list(settings))
        )

    def problems(self, clients: int) -> Iterator[Problem]:
        ways = [name for name in ("large", "levels", "rates") if getattr(self, name) is not None]
        if len(ways) > 1:
            yield Problem(
                f"capacities are given by {' and by '.join(ways)}",
                "they may contradict each other",
                f"keep one of them: a recipe's choice is taken back with --model.capacities.{ways[0]} null",
            )
        if self.large is None and self.small != 0.5:
            yield Problem(
                f"small clients are to have width {self.small:g}, but nothing says how many are large",
                "the width would have no effect",
                "set --model.capacities.large, or give --model.capacities.rates instead of .small",
            )
        if self.redraw and self.widest != "draw":
            yield Problem(
                f"capacities are to be redrawn, but the widest go to {self.widest}",
                "nothing would be drawn",
                "set --model.capacities.widest draw, or --model.capacities.redraw false",
            )
        yield from self._count_problems(clients)

    def _count_problems(self, clients: int) -> Iterator[Problem]:
        unclear = "it is not clear how wide each client's submodel is"
        if self.large is not None and self.large > clients:
            yield Problem(
                f"{counted(self.large, 'client')} are to be large, of {clients}",
                unclear,
                f"set --model.capacities.large between 0 and {clients}",
            )
        if self.levels is not None and not _parse(self.levels):
            yield Problem(
                f"capacity levels {self.levels!r} cannot be read",
                unclear,
                "write levels a to e with their shares, such as --model.capacities.levels a1-b1-c1-d1-e1",
            )
        if self.shares is not None:
            if len(self.shares) != len(self.rates or []):
                yield Problem(
                    f"there are {len(self.shares)} shares for {len(self.rates or [])} rates",
                    unclear,
                    "give --model.capacities.shares one number per rate",
                )
        elif self.rates is not None and len(self.rates) not in (1, clients):
            yield Problem(
                f"there are {len(self.rates)} capacities for {counted(clients, 'client')}",
                unclear,
                f"give --model.capacities.rates one rate for all or {clients} rates, add --model.capacities.shares, "
                "or change --data.partition.clients",
            )

    def assign(self, sizes: Sequence[int], seed: int) -> tuple[float, ...]:
        """Width rate of each client; `sizes` are the clients' numbers of training samples."""
        rates, shares = self._mix()
        clients = len(sizes)
        if self.large is not None:
            dealt = [1.0] * self.large + [self.small] * (clients - self.large)
        elif shares is None:
            dealt = list(rates) * clients if len(rates) == 1 else list(rates)
        else:
            dealt = _dealt(rates, shares, clients)
        in_order = shares is None and self.large is None  # a list says itself which client gets what
        by_client = dict(zip(self._order(sizes, seed, in_order), dealt, strict=True))
        return tuple(float(by_client[client]) for client in range(clients))

    def _mix(self) -> tuple[list[float], list[float] | None]:
        if self.large is not None:
            return [1.0, self.small], None
        if self.levels is not None:
            parsed = _parse(self.levels)
            return [LEVELS[level] for level, _ in parsed], [share for _, share in parsed]
        return self.rates or [1.0], self.shares

    def _order(self, sizes: Sequence[int], seed: int, in_order: bool) -> list[int]:
        clients = list(range(len(sizes)))
        if self.widest == "draw":
            return torch.randperm(len(sizes), generator=torch_generator(seed, "capacities")).tolist()
        return clients if in_order or self.widest == "first" else sorted(clients, key=lambda client: -sizes[client])


def _dealt(rates: Sequence[float], shares: Sequence[float], clients: int) -> list[float]:
    """Rates for all clients, widest first, in the shares that whole numbers of clients come closest to."""
    parts = [share / max(shares) for share in shares]  # whose sum is finite
    exact = [part / sum(parts) * clients for part in parts]
    counts = [math.floor(value) for value in exact]
    by_rest = sorted(range(len(rates)), key=lambda position: (counts[position] - exact[position], position))
    for position in by_rest[: clients - sum(counts)]:
        counts[position] += 1
    dealt = [rate for rate, count in zip(rates, counts, strict=True) for _ in range(count)]
    return sorted(dealt, reverse=True)


def _parse(levels: str) -> list[tuple[str, float]]:
    """Levels with their shares; empty where the text cannot be read."""
    parts = [re.fullmatch(r"([a-e])(\d+)", part) for part in levels.split("-")]
    pairs = [(match[1], float(match[2])) for match in parts if match]
    return pairs if len(pairs) == len(parts) and all(share > 0 for _, share in pairs) else []
