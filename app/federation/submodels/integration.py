"""The integration taxonomy: nine methods on three axes, grouping x dynamics x policy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from app.common.errors import Problem, UserError
from app.common.ranges import Count
from app.common.seeding import torch_generator
from app.federation.parameters import Axis, ParameterSpace
from app.federation.submodels.base import ClientRound, SubmodelMethod
from app.models.base import scaled_width

Grouping = Literal["one", "groups", "unique"]
Dynamics = Literal["fixed", "resampled"]
Policy = Literal["submatrix", "random"]
IndexScheme = Literal["seeded", "original"]
Coupling = Literal["layerwise", "independent"]

PRESETS: dict[str, tuple[Grouping, Dynamics, Policy]] = {
    "OFM": ("one", "fixed", "submatrix"),
    "OFR": ("one", "fixed", "random"),
    "OSM": ("one", "resampled", "submatrix"),
    "OSR": ("one", "resampled", "random"),
    "GFM": ("groups", "fixed", "submatrix"),
    "GFR": ("groups", "fixed", "random"),
    "GSR": ("groups", "resampled", "random"),
    "UFR": ("unique", "fixed", "random"),
    "USR": ("unique", "resampled", "random"),
}
"""The nine methods of the taxonomy by their codes (MaPP-FL, sec. 5.4)."""

NAMES = {"heterofl": "OFM", "mapp-fl": "GFM", "mapp-fl-r": "GFR", "fdropout": "USR"}
"""Names under which four of them are known."""


class ChannelSubset(SubmodelMethod):
    """The nine methods of the taxonomy: which clients share a channel set, whether sets change, and how they are drawn.

    A client whose width is 1/k of the server's is in one of k^2 groups: with `policy: submatrix` a layer has k blocks
    of channels, and a group alternates between two of them from layer to layer, so that the groups together tile every
    matrix between two cut layers once (MaPP-FL, sec. 4.2.2, where k = 2). Blocks overlap where k does not divide the
    width. Shortcuts that skip a layer are not tiled: both their ends take the same block. Clients, the large ones
    included, are assigned to the groups (or to the unique sets) anew in every round; `dynamics` says whether the sets
    themselves change.
    """

    def __init__(
        self,
        grouping: Grouping = "groups",
        dynamics: Dynamics = "fixed",
        policy: Policy = "submatrix",
        groups: Count | None = None,
        index_scheme: IndexScheme = "seeded",
        coupling: Coupling = "layerwise",
    ) -> None:
        """Choose a method; the default is GFM = MaPP-FL.

        Args:
            grouping: clients of one width share one set of channels, are assigned to groups with a set each, or have a
                unique set each.
            dynamics: sets are fixed for the whole run, or resampled in every round.
            policy: blocks of neighbouring channels (`submatrix`), or random channels.
            groups: number of groups, a square (4, 9, 16 ...) for submatrices; by default k^2 for width 1/k.
            index_scheme: draw sets from the run's seed, or use exactly those of the papers' code, which are the same in
                every run.
            coupling: a layer reads the channels that the layer before writes, or (an ablation that costs accuracy)
                both are drawn independently of each other.
        """
        self.grouping, self.dynamics, self.policy = grouping, dynamics, policy
        self.groups, self.index_scheme, self.coupling = groups, index_scheme, coupling

    @classmethod
    def preset(
        cls,
        name: str,
        groups: int | None = None,
        index_scheme: IndexScheme = "seeded",
        coupling: Coupling = "layerwise",
    ) -> Self:
        """A method by its code (`GFM`) or name (`mapp-fl`), in any case."""
        code = NAMES.get(name.lower(), name.upper())
        if code not in PRESETS:
            raise UserError.of(
                f"there is no integration method {name!r}",
                "no submodels could be chosen",
                f"choose one of {', '.join(PRESETS)} or {', '.join(NAMES)}",
            )
        grouping, dynamics, policy = PRESETS[code]
        return cls(grouping, dynamics, policy, groups, index_scheme, coupling)

    @property
    def code(self) -> str:
        first = {"one": "O", "groups": "G", "unique": "U"}[self.grouping]
        return first + ("F" if self.dynamics == "fixed" else "S") + ("M" if self.policy == "submatrix" else "R")

    @property
    def title(self) -> str:
        names = [name for name, code in NAMES.items() if code == self.code]
        return f"{self.code} ({names[0]})" if names else self.code

    def group_count(self, rate: float) -> int:
        """Groups of the clients of one width: as set, or k^2 for the least k submodels that cover a layer."""
        return self.groups or math.ceil(round(1 / rate, 6)) ** 2

    def key(self, client_round: ClientRound) -> Hashable:
        if client_round.capacity == 1:
            return 1.0
        if self.policy == "submatrix":
            return client_round.capacity, self._group(client_round)
        return client_round.capacity, *self._drawn(client_round)

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        return self._choose(axis, keep, client_round, reading=False)

    def inputs(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor | None:
        return None if self.coupling == "layerwise" else self._choose(axis, keep, client_round, reading=True)

    def _choose(self, axis: Axis, keep: int, client_round: ClientRound, reading: bool) -> Tensor:
        if keep == axis.width:
            return torch.arange(keep)
        if self.policy == "submatrix":
            return self._block(axis, keep, client_round, reading)
        return self._permutation(axis, client_round, reading)[:keep].sort().values

    def _block(self, axis: Axis, keep: int, client_round: ClientRound, reading: bool) -> Tensor:
        blocks = math.isqrt(self.group_count(client_round.capacity))
        odd, even = divmod(self._group(client_round), blocks)
        second = reading if self.coupling == "independent" else axis.depth % 2 == 1
        block = odd if second else even
        start = block * (axis.width - keep) // (blocks - 1) if blocks > 1 else 0
        return torch.arange(start, start + keep)

    def _group(self, client_round: ClientRound) -> int:
        """The pair of blocks the client takes; with `resampled`, every client moves on by one pair per round."""
        number, turn = self._drawn(client_round)
        return (number + turn) % self.group_count(client_round.capacity)

    def _permutation(self, axis: Axis, client_round: ClientRound, reading: bool) -> Tensor:
        number, turn = self._drawn(client_round)
        if self.index_scheme == "seeded":
            generator = torch_generator(client_round.seed, "channels", number, turn, axis.number, int(reading))
            return torch.randperm(axis.width, generator=generator)
        drawn = number + turn * (1 if self.grouping == "one" else client_round.clients)
        factor = axis.number + 1 if self.coupling == "layerwise" else 1 + int(reading)
        return torch.from_numpy(np.random.RandomState((drawn + 1) * factor).permutation(axis.width))

    def _drawn(self, client_round: ClientRound) -> tuple[int, int]:
        """The client's set: its number, and the 1-based round it was drawn in (0: before the first)."""
        turn = 0 if self.dynamics == "fixed" else client_round.round + 1
        if self.grouping == "one":
            return 0, turn
        groups = self.group_count(client_round.capacity) if self.grouping == "groups" else client_round.clients
        places = max(client_round.clients, groups)  # with fewer clients than groups, some groups are empty each round
        order = _deal(self.index_scheme, client_round.seed, client_round.round, places)
        return order[client_round.client] % groups, turn

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        if self.code not in PRESETS:
            yield self._outside()
            return
        if self.groups is not None and self.policy == "submatrix" and math.isqrt(self.groups) ** 2 != self.groups:
            yield Problem(
                f"groups is {self.groups}",
                "a group pairs a block of outputs with a block of inputs, so their number is a square",
                "set --model.method.groups to 4, 9 or 16, or leave it out",
            )
            return
        for rate in sorted({rate for rate in capacities if 0 < rate < 1}):
            yield from self._room(space, rate, clients)

    def _outside(self) -> Problem:
        return Problem(
            f"{self.code} is not one of the nine methods",
            "there are only as many submatrices as groups: clients cannot each have their own (UFM, USM), and groups "
            "that are dealt anew in every round are resampled already (GSM = GFM)",
            f"set --model.method.grouping, .dynamics and .policy to one of {', '.join(PRESETS)}",
        )

    def _room(self, space: ParameterSpace, rate: float, clients: int) -> Iterator[Problem]:
        wanted = {"one": 1, "groups": self.group_count(rate), "unique": clients}[self.grouping]
        kept = [(axis, scaled_width(axis.width, rate)) for axis in space.axes.values()]
        remedy = "use fewer groups (--model.method.groups), wider layers (--model.net) or other --model.capacities"
        if self.policy == "random":
            if math.prod(math.comb(axis.width, keep) for axis, keep in kept) < wanted:
                yield Problem(
                    f"{self.code} needs {wanted} different sets of channels at width {rate:g}",
                    "the layers are too narrow to have so many",
                    remedy,
                )
            return
        blocks = math.isqrt(self.group_count(rate))
        narrow = [f"{axis.name} ({axis.width})" for axis, keep in kept if axis.width - keep < blocks - 1]
        if narrow and self.code != "OFM":  # HeteroFL only ever takes the first block
            yield Problem(
                f"{self.code} with {blocks**2} groups needs {blocks} different blocks at width {rate:g}",
                f"too narrow for that many: {', '.join(narrow)}",
                remedy,
            )


@lru_cache(maxsize=16)
def _deal(scheme: IndexScheme, seed: int, round_: int, places: int) -> tuple[int, ...]:
    """The order in which sets are assigned to clients in a round: a permutation of 0 .. places-1."""
    if scheme == "original":
        return tuple(np.random.RandomState(round_ + 1).permutation(places).tolist())
    return tuple(torch.randperm(places, generator=torch_generator(seed, "deal", round_)).tolist())
