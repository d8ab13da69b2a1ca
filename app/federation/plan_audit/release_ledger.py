"""All rounds' sums of every block of coordinates, and the clients that combinations of these sums isolate.

A server that sends nearly the same model in several rounds gets nearly the same updates, added up over other clients
each time, and can solve for single ones. Sums of different blocks are about different coordinates and do not combine:
every block has its own system of equations.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from app.common.progress import track
from app.federation.plan import Plan
from app.federation.plan_audit.row_spaces import RowSpaces
from app.federation.private_coordinates import UploadedRound, uploaded_keys, uploaded_round
from app.federation.reports import listed

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

MOST_ENTRIES = 500_000
"""Of the matrices of all blocks; where there would be more, the blocks with the most coordinates are examined."""

MOST_WORK = 10**9
"""Entries that are changed while a plan is examined; later rounds are left out."""


@dataclass(frozen=True)
class Isolation:
    """Clients that combinations of sums narrow down to fewer than `k`, if the model stood still over the rounds."""

    first: int  # the first round (from 1) whose sums isolate a client
    clients: tuple[int, ...]  # all that are isolated, ascending
    coordinates: int  # coordinates on which some client is isolated


class PlanBlocks:
    """Sorts coordinates into blocks by the submodels of a plan: those of a block have the same clients in all rounds.

    Every submodel adds a random word to the signature of its coordinates; coordinates with other submodels have equal
    signatures with a chance of 2^-64.
    """

    def __init__(self, federation: FederatedModule) -> None:
        self._federation = federation
        self._words = np.random.default_rng(0)
        self._seen: set[Hashable] = set()
        self._signatures = np.zeros(federation.space.size, dtype=np.uint64)

    def follow(self, rounds: Iterable[UploadedRound]) -> Iterator[UploadedRound]:
        """The same rounds, whose submodels are added on the way."""
        for uploaded in rounds:
            for client, key in uploaded_keys(self._federation, uploaded.plan).items():
                if key not in self._seen:
                    self._seen.add(key)
                    word = self._words.integers(1, 2**64, dtype=np.uint64)
                    self._signatures[_uploaded(self._federation, uploaded, client)] += word
            yield uploaded

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """A coordinate of every block, and the number of its coordinates; largest blocks first."""
        signatures, first, sizes = np.unique(self._signatures, return_index=True, return_counts=True)
        sent = np.flatnonzero(signatures)
        order = sent[np.argsort(-sizes[sent], kind="stable")]
        return first[order], sizes[order]


class ReleaseLedger:
    """The sums that were released in a run, and whom they isolate: narrow down to fewer than `k` clients.

    What it finds is exact for the blocks and the rounds that it examines, and a lower bound beyond.

    Args:
        federation: a prepared one.
        blocks: of all planned rounds.
        k: at least 2.
        rounds: number of planned rounds; by default all of the run.

    Attributes:
        rounds: number of planned rounds that were examined; all but for very large plans.
        planned: clients that the sums of these rounds isolate if no client drops out; None for none.
        released: the same for the sums released so far.
    """

    def __init__(self, federation: FederatedModule, blocks: PlanBlocks, k: int = 2, rounds: int | None = None) -> None:
        self._federation, self._k = federation, k
        self._rounds = federation.rounds if rounds is None else rounds
        self._clients = len(federation.client_pool.sizes)
        first, sizes = blocks.found()
        most = max(1, MOST_ENTRIES // (self._clients * min(self._clients, max(1, self._rounds))))
        self._first, self._sizes, self._sent = first[:most], sizes[:most], int(sizes.sum())
        self._members: dict[Hashable, np.ndarray] = {}
        self._releases: list[tuple[int, tuple[int, ...]]] = []
        self.released: Isolation | None = None
        self._spaces = self._empty()
        self.rounds = 0
        self.planned = self._planned()

    def isolates(self, plan: Plan, clients: Collection[int]) -> tuple[int, ...]:
        """Clients whom the sums of a round over these clients would isolate, and the sums before did not, ascending."""
        spaces = self._spaces.copy()
        spaces.add(self._sets(plan, clients))
        after = np.flatnonzero(spaces.isolated(self._k).any(axis=0)).tolist()
        before = self.released.clients if self.released is not None else ()
        return tuple(client for client in after if client not in before)

    def release(self, plan: Plan, clients: Collection[int]) -> None:
        """Enter the sums of a round over these clients."""
        self._releases.append((plan.round, tuple(sorted(clients))))
        self._spaces.add(self._sets(plan, clients))
        self.released = self._isolation(self._spaces, self.released, plan.round)

    def text(self, found: Isolation | None) -> str:
        """What was found, in words, with its bounds."""
        what = "single clients" if self._k == 2 else f"fewer than {self._k} clients"
        examined = int(self._sizes.sum())
        bounds = [f"{examined:,} of {self._sent:,} weights"] if examined < self._sent else []
        bounds += [f"{self.rounds:,} of {self._rounds:,} rounds"] if self.rounds < self._rounds else []
        bound = f" (examined: {', '.join(bounds)})" if bounds else ""
        if found is None:
            return f"no combination of sums isolates {what}{bound}"
        weights = f"{found.coordinates:,} of {self._sent:,} weights"
        start = f"from round {found.first} on, combinations of sums isolate {what}"
        return f"{start} on {weights}: {listed(found.clients)}{bound}"

    def state_dict(self) -> list[list[Any]]:
        return [[round_, list(clients)] for round_, clients in self._releases]

    def load_state_dict(self, releases: list[list[Any]]) -> None:
        self._releases, self._spaces, self.released = [], self._empty(), None
        for round_, clients in releases:
            self.release(self._federation.plan_of(round_), clients)

    def _empty(self) -> RowSpaces:
        return RowSpaces(len(self._first), self._clients)

    def _planned(self) -> Isolation | None:
        spaces, found, work = self._empty(), None, 0
        seen: set[Hashable] = set()
        rounds = range(self._rounds)
        for round_ in track(rounds, "combining sums", "rounds", delay=2):
            self.rounds = round_ + 1
            plan = self._federation.plan_of(round_)
            keys = frozenset(uploaded_keys(self._federation, plan).items())
            if keys in seen:
                continue
            seen.add(keys)
            spaces.add(self._sets(plan, plan.participants))
            found = self._isolation(spaces, found, round_)
            work += len(self._first) * self._clients * int(spaces.rank.max(initial=0))
            if work > MOST_WORK:
                break
        return found

    def _isolation(self, spaces: RowSpaces, before: Isolation | None, round_: int) -> Isolation | None:
        """What the sums up to a 0-based round isolate; `before` is the same for the rounds before it."""
        isolated = spaces.isolated(self._k)
        clients = tuple(np.flatnonzero(isolated.any(axis=0)).tolist())
        coordinates = int(self._sizes[isolated.any(axis=1)].sum())
        return Isolation(before.first if before else round_ + 1, clients, coordinates) if clients else None

    def _sets(self, plan: Plan, clients: Collection[int]) -> np.ndarray:
        """(blocks, clients) bool: those of the clients given that contribute to each block in a round."""
        sets = np.zeros((len(self._first), self._clients), dtype=bool)
        keys, uploaded = uploaded_keys(self._federation, plan), uploaded_round(self._federation, plan)
        for client in clients:
            key = keys[client]
            if key not in self._members:
                index = _uploaded(self._federation, uploaded, client)
                place = np.searchsorted(index, self._first)
                self._members[key] = np.append(index, -1)[place] == self._first
            sets[:, client] = self._members[key]
        return sets


def _uploaded(federation: FederatedModule, uploaded: UploadedRound, client: int) -> np.ndarray:
    index = uploaded.index(client)
    return index[federation.personal.shared(index)].cpu().numpy()
