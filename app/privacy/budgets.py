"""Privacy budgets of clients that train by DP-SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.privacy.accounting import AccountantName, Steps, epsilon, noise_for
from app.privacy.ledger import Ledger


@dataclass(frozen=True)
class RoundOfSteps:
    """The steps of one client in one round."""

    samples: int
    batches: int  # batches of one pass over its samples; one over it is the probability that a sample enters a step
    count: int  # steps of the round

    @property
    def rate(self) -> float:
        """Probability that a sample enters a step."""
        return 1 / self.batches

    def steps(self, noise: float, rounds: int = 1) -> Steps:
        """The steps of so many rounds, for the accountant."""
        return Steps(noise, self.rate, self.count * rounds)


class Budgets:
    """One budget per client: clients hold disjoint samples, so their budgets do not add up.

    Args:
        accountant: how steps are composed.
        target: largest epsilon of a client, None for no limit.
        delta: of every client; None for a tenth of one over its samples, at most 1e-5.

    Attributes:
        noise: noise multiplier of the steps to come; set it before anything is spent.
        ledger: what clients have spent.
    """

    def __init__(self, accountant: AccountantName, target: float | None, delta: float | None) -> None:
        self.noise: float | None = None
        self._target, self._delta = target, delta
        self.ledger = Ledger(accountant)
        self._rounds: tuple[RoundOfSteps, ...] = ()

    def plan(self, rounds: Sequence[RoundOfSteps]) -> None:
        """Set what every client does in a round in which it takes part."""
        self._rounds = tuple(rounds)

    def of(self, client: int) -> RoundOfSteps:
        return self._rounds[client]

    def steps(self, client: int) -> Steps:
        assert self.noise is not None
        return self._rounds[client].steps(self.noise)

    def delta(self, client: int) -> float:
        return self._delta if self._delta is not None else min(1e-5, 0.1 / self._rounds[client].samples)

    @property
    def largest_delta(self) -> float:
        return max(map(self.delta, range(len(self._rounds))))

    def noise_for(self, rounds: Mapping[int, int]) -> float:
        """Smallest noise with which no client exceeds its budget; `rounds` counts the rounds of each client."""
        assert self._target is not None
        accountant, needed = self.ledger.accountant, 0.0
        plans = {(self.delta(client), self.of(client).steps(1.0, count)) for client, count in rounds.items()}
        for delta, steps in sorted(plans, key=lambda plan: -plan[1].count * plan[1].rate ** 2):  # the costliest first
            if epsilon([replace(steps, noise=needed)], delta, accountant) > self._target:
                needed = noise_for(self._target, delta, [steps], accountant)
        return needed

    def is_out(self, client: int) -> bool:
        """Whether one more round would exceed the client's budget."""
        if self._target is None:
            return False
        return self.ledger.epsilon(client, self.delta(client), [self.steps(client)], everything=False) > self._target

    @property
    def out(self) -> int:
        """Number of clients whose budget does not allow another round."""
        return sum(map(self.is_out, range(len(self._rounds))))

    @property
    def everybody_is_out(self) -> bool:
        return self.out == len(self._rounds)

    def spent(self, everything: bool = True) -> tuple[tuple[int, float], ...]:
        """Epsilon of every client that has spent any; see `Ledger.history`."""
        clients = self.ledger.clients(everything)
        return tuple((client, self.ledger.epsilon(client, self.delta(client), (), everything)) for client in clients)

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise, "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.noise = state["noise"]
        self.ledger.load_state_dict(state["ledger"])
