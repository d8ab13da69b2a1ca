"""The ledger of a mechanism: what every client has spent, by round and attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from app.privacy.accounting import Composition, Steps, epsilon

ALL_CLIENTS = -1
"""Stands for the clients of a mechanism whose releases concern all of them at once."""


@dataclass(frozen=True)
class Spend:
    """What one attempt at a round releases."""

    mechanism: str
    round: int  # from 0
    # random name of the attempt under secret noise; empty where a repeated round repeats its noise
    attempt: str
    steps: Mapping[int, Steps]  # by client, or for ALL_CLIENTS

    def record(self) -> dict[str, Any]:
        """For a JSON file, in which rounds count from 1."""
        spent = [[client, each.noise, each.rate, each.count] for client, each in self.steps.items()]
        return {"mechanism": self.mechanism, "round": self.round + 1, "attempt": self.attempt, "spent": spent}

    @classmethod
    def restored(cls, plain: Mapping[str, Any]) -> Self:
        """The way back from `record`."""
        steps = {int(client): Steps(noise, rate, int(count)) for client, noise, rate, count in plain["spent"]}
        return cls(str(plain["mechanism"]), int(plain["round"]) - 1, str(plain["attempt"]), steps)


class Ledger:
    """Steps that every client of a federation has taken, over all rounds; epsilon is composed of these alone.

    Under repeatable noise, a round that is repeated after an interruption releases the same numbers again and counts
    once. Under secret noise every attempt at a round is a release of its own, and counts.
    """

    def __init__(self, accountant: Composition = "rdp") -> None:
        self.accountant = accountant
        self._rounds: dict[tuple[int, str], dict[int, Steps]] = {}
        self._counts: dict[int, Counter[tuple[float, float]]] = {}  # steps of every client by noise and rate
        self._ahead: dict[int, dict[int, Steps]] = {}  # repeatable rounds that were released and are to be repeated

    def enter(self, round_: int, attempt: str, steps: Mapping[int, Steps]) -> None:
        """Enter what an attempt at a round releases, in place of what was entered for it before."""
        if not attempt:
            self._ahead.pop(round_, None)
        self._count(self.entered(round_, attempt), -1)
        self._rounds[(round_, attempt)] = dict(steps)
        self._count(steps, 1)

    def entered(self, round_: int, attempt: str) -> Mapping[int, Steps]:
        """What an attempt at a round releases, by client."""
        return self._rounds.get((round_, attempt), {})

    def rewind(self, round_: int) -> None:
        """Go on from a round (from 0): later ones under repeatable noise wait until they are repeated."""
        for place in [place for place in self._rounds if not place[1] and place[0] >= round_]:
            steps = self._rounds.pop(place)
            self._count(steps, -1)
            self._ahead[place[0]] = steps

    def ahead(self, round_: int) -> Mapping[int, Steps]:
        """What a round that is still to be repeated has released, by client; empty where there is no such round."""
        return self._ahead.get(round_, {})

    def clients(self, everything: bool = True) -> list[int]:
        """Clients that have spent anything, ascending; see `history`."""
        waiting = {client for steps in self._ahead.values() for client in steps} if everything else set()
        return sorted(waiting | {client for client, counts in self._counts.items() if any(counts.values())})

    @property
    def latest_noise(self) -> float | None:
        """Noise of the latest round; None where nothing was released."""
        rounds = [(place[0], steps) for place, steps in self._entries() if steps]
        latest = max(rounds, key=lambda one: one[0], default=None)
        return None if latest is None else next(iter(latest[1].values())).noise

    def history(self, client: int, everything: bool = True) -> list[Steps]:
        """Steps of a client; without `everything`, not those of rounds that are still to be repeated."""
        counts = self._counts.get(client, Counter())
        waiting = self._ahead.values() if everything else ()
        own = [Steps(noise, rate, count) for (noise, rate), count in counts.items() if count]
        return own + [steps[client] for steps in waiting if client in steps]

    def epsilon(self, client: int, delta: float, more: Iterable[Steps] = (), everything: bool = True) -> float:
        """Epsilon that a client has spent, or would have spent after `more` steps; see `history`.

        Clients with equal histories share one computation, and an unchanged history is not computed again.
        """
        return epsilon([*self.history(client, everything), *more], delta, self.accountant)

    def state_dict(self) -> dict[str, list[list[Any]]]:
        """Plain data: client, noise, rate, count and attempt, with all rounds in which they were the same."""
        rounds: dict[tuple[Any, ...], list[int]] = {}
        for (round_, attempt), steps in self._entries():
            for client, each in steps.items():
                rounds.setdefault((client, each.noise, each.rate, each.count, attempt), []).append(round_)
        return {"entries": [[*entry, places] for entry, places in rounds.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        entries = state["entries"] if "entries" in state else _without_rounds(state)
        found: dict[tuple[int, str], dict[int, Steps]] = {}
        for client, noise, rate, count, attempt, places in entries:
            for round_ in places:
                found.setdefault((round_, attempt), {})[client] = Steps(noise, rate, count)
        self._rounds, self._counts, self._ahead = {}, {}, {}
        for (round_, attempt), steps in found.items():
            self.enter(round_, attempt, steps)

    def _entries(self) -> Iterator[tuple[tuple[int, str], Mapping[int, Steps]]]:
        yield from self._rounds.items()
        yield from (((round_, ""), steps) for round_, steps in self._ahead.items())

    def _count(self, steps: Mapping[int, Steps], sign: int) -> None:
        for client, each in steps.items():
            self._counts.setdefault(client, Counter())[(each.noise, each.rate)] += sign * each.count


def _without_rounds(state: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Entries of a checkpoint of version 0.3 or earlier, which held no rounds; each counts."""
    for client, history in state.items():
        for place, (noise, rate, count) in enumerate(history):
            yield [int(client), noise, rate, int(count), f"earlier {place}", [-1]]
