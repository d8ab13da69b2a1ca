"""Scores of a membership inference attack: the higher, the more likely a member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.common.errors import Problem, raise_all
from app.common.wording import counted

NO_CLIENT = -1
"""Client id of a non-member that is compared with the members of every client (an attack on the global model)."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NotAvailable:
    """Takes the place of a result that cannot be computed, with the reason."""

    reason: str


@dataclass(frozen=True, eq=False)
class MembershipScores:
    """One attack on one run: a row for every audited pair of sample and attacked client."""

    scores: Array  # finite, the higher the more likely a member; equal scores are ties, whatever the order of the rows
    members: NDArray[np.bool_]  # whether the sample was trained on
    samples: NDArray[np.int64]  # sample ids
    # client whose model was attacked or whose sample it is, 0 or more; NO_CLIENT for non-members of no client
    clients: NDArray[np.int64]

    def __post_init__(self) -> None:
        raise_all(_shape_problems(self))
        for name, kind in (("scores", np.float64), ("samples", np.int64), ("clients", np.int64)):
            object.__setattr__(self, name, getattr(self, name).astype(kind))
        raise_all(_value_problems(self))

    @classmethod
    def of(
        cls, scores: ArrayLike, members: ArrayLike, samples: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> MembershipScores:
        """Scores from anything array-like; by default, samples are numbered and belong to client 0."""
        values = np.asarray(scores, dtype=np.float64)
        numbers = np.arange(values.size) if samples is None else np.asarray(samples)
        owners = np.zeros(values.size, dtype=np.int64) if clients is None else np.asarray(clients)
        return cls(values, np.asarray(members), numbers, owners)

    @classmethod
    def joined(cls, parts: Sequence[MembershipScores]) -> MembershipScores:
        names = ("scores", "members", "samples", "clients")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @property
    def member_count(self) -> int:
        return int(self.members.sum())

    @property
    def nonmember_count(self) -> int:
        return int(self.members.size - self.members.sum())

    @property
    def client_ids(self) -> NDArray[np.int64]:
        """Clients that own rows, ascending, without NO_CLIENT."""
        ids = np.unique(self.clients)
        return ids[ids != NO_CLIENT]

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> MembershipScores:
        """The rows of a mask or of positions; refused when they lack members or non-members."""
        return MembershipScores(self.scores[rows], self.members[rows], self.samples[rows], self.clients[rows])

    def select_clients(
        self, clients: Sequence[int], have: str = "the chosen clients have"
    ) -> MembershipScores | NotAvailable:
        """Rows of these clients and non-members of no client, or why there is none; `have` begins the reason."""
        return self.select_some(np.flatnonzero(np.isin(self.clients, [*clients, NO_CLIENT])), have)

    def select_some(self, rows: NDArray[np.int64], have: str) -> MembershipScores | NotAvailable:
        """The rows of positions, or why they have no members or no non-members; `have` begins the reason."""
        inside = self.members[rows]
        for name, part in (("members", inside), ("non-members", ~inside)):
            if not part.any():
                return NotAvailable(f"{have} no {name} in the audit set")
        return self.select(rows)

    def rows_by_client(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Every client that owns rows, by id, with the positions of its rows and of those of no client."""
        order = np.argsort(self.clients, kind="stable")
        ids, starts = np.unique(self.clients[order], return_index=True)
        parts = dict(zip(ids.tolist(), np.split(order, starts[1:]), strict=True))
        unowned = parts.pop(NO_CLIENT, order[:0])
        for client, own in parts.items():
            yield client, np.concatenate([own, unowned])


def _shape_problems(rows: MembershipScores) -> Iterator[Problem]:
    """Wrong lengths and types; must be excluded before the values are checked."""
    arrays = {"scores": rows.scores, "members": rows.members, "samples": rows.samples, "clients": rows.clients}
    if len({array.shape for array in arrays.values()}) > 1 or rows.scores.ndim != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        yield Problem(f"the arrays differ in shape: {shapes}", "rows could not be matched", "give one entry per row")
    expected = {"scores": ("f", "float"), "members": ("b", "bool"), "samples": ("iu", "int"), "clients": ("iu", "int")}
    for name, (kinds, meant) in expected.items():
        if arrays[name].dtype.kind not in kinds:
            cause = f"{name} has type {arrays[name].dtype}"
            yield Problem(cause, "its meaning would be guessed", f"convert it to {meant} first")


def _value_problems(rows: MembershipScores) -> Iterator[Problem]:
    bad = np.flatnonzero(~np.isfinite(rows.scores))
    if bad.size:
        example = f"{rows.scores[bad[0]]} for sample {rows.samples[bad[0]]} of client {rows.clients[bad[0]]}"
        yield Problem(
            f"{bad.size} of {rows.scores.size} scores are not finite, such as {example}",
            "a model that diverged would look like one that keeps its secrets",
            "compute the score in double precision from logits, or leave out the diverged model",
        )
    for name, part in (("members", rows.members), ("non-members", ~rows.members)):
        if not part.any():
            yield Problem(f"there are no {name}", "nothing can be told apart", f"audit {name} too")
    if np.any(rows.clients < NO_CLIENT) or np.any(rows.clients[rows.members] == NO_CLIENT):
        owner = f"client ids are 0 or more; only non-members may have {NO_CLIENT}"
        yield Problem("some rows have no valid client", "they would be missing from the tables of clients", owner)
    order = np.lexsort((rows.samples, rows.clients))
    clients, samples = rows.clients[order], rows.samples[order]
    if repeated := int(np.sum((clients[1:] == clients[:-1]) & (samples[1:] == samples[:-1]))):
        yield Problem(
            f"{counted(repeated, 'row')} with a pair of client and sample that another row has",
            "intervals would be too narrow",
            "give each sample one score per client",
        )
