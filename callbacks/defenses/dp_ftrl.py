"""DP-FTRL: client-level differential privacy without sampling, by noise that is correlated over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from app.common.errors import Problem
from app.common.ranges import Bound, Count, Inside, NonNegative, Positive
from app.federation.module import FederatedModule
from app.privacy.accounting import AccountantName, Steps, noise_for
from app.privacy.correlated_noise import CorrelatedNoise, Correlation, squared_sensitivities
from app.privacy.ledger import ALL_CLIENTS
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait
from callbacks.defenses.dp_fedavg import DPFedAvg


class DPFTRL(DPFedAvg):
    """DP-FedAvg with noise that cancels in part over the rounds (Kairouz et al. 2021, Choquette-Choo et al. 2023).

    Nothing rests on clients that are drawn in secret: the plan of who takes part in which round is public, and epsilon
    counts the rounds of the client that costs most (`app.privacy.correlated_noise`). It pays where every client takes
    part in few of many rounds; where all take part in all, DP-FedAvg's independent noise is better.

    Example::

        rampart fit --defenses.dp DPFTRL --defenses.dp.target_epsilon 8 --model.participation 0.1

    Args:
        target_epsilon: budget of the whole run, above 0; the noise is chosen for the planned rounds, and stays: a run
            that gets more rounds later ends when the budget is spent. This or `noise` is needed.
        noise: standard deviation, over the clipping norm, of the independent numbers that noise is made of; at least 0.
        clip: Euclidean norm that a client's change is scaled down to.
        delta: in (0, 1), below one over the number of clients; without a number, a tenth of that, at most 1e-5.
        accountant: as of DPFedAvg; all are nearly exact without sampling.
        max_samples: with --model.weighting samples: a client with so many samples or more has weight 1, others in
            proportion; without a number, the largest client's.
        secret_noise: key the noise by the operating system; such a run cannot be repeated.
        correlation: `banded` (square root of the prefix sums, cut to bands) or `tree` (sums of a binary tree).
        bands: of `banded` noise, over how many rounds it is correlated; the server keeps as many vectors less one.
    """

    def __init__(
        self,
        target_epsilon: Positive | None = None,
        noise: NonNegative | None = None,
        clip: Bound = 1.0,
        delta: Inside | None = None,
        accountant: AccountantName = "rdp",
        max_samples: Count | None = None,
        secret_noise: bool = False,
        correlation: Correlation = "banded",
        bands: Count = 16,
    ) -> None:
        super().__init__(target_epsilon, noise, clip, delta, accountant, max_samples, secret_noise)
        self.correlation, self.bands = correlation, bands
        self._correlated = CorrelatedNoise(correlation, bands)
        self._squares = np.zeros(0)
        self._own: float | None = None  # noise multiplier of the numbers that noise is made of, once it is chosen

    def traits(self) -> frozenset[Trait]:
        return super().traits() - {"sampled-client-dp"}

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if federation.sampling == "poisson" and federation.participation < 1:
            yield Problem(
                "DPFTRL with clients that are drawn by coins (--model.sampling poisson)",
                "its epsilon rests on a public plan, and sampling would not count",
                "set --model.sampling fixed, or use DPFedAvg",
            )
            return
        yield from super().problems(federation)

    def _steps(self, federation: FederatedModule, noise: float, round_: int) -> Steps:
        """What the numbers that a round completes add to the squared sensitivity, as one mechanism without sampling."""
        added = self._added(federation, round_)
        return Steps(noise / math.sqrt(added), 1.0, 1) if added > 0 else Steps(noise, 1.0, 0)

    def _added(self, federation: FederatedModule, round_: int) -> float:
        squares = self._encoded(federation)
        return float(squares[round_] - (squares[round_ - 1] if round_ else 0.0))

    def _encoded(self, federation: FederatedModule) -> np.ndarray:
        """Squared sensitivity up to every planned round."""
        if len(self._squares) != federation.rounds:
            pool = federation.client_pool
            rounds = [pool.participants(round_) for round_ in range(federation.rounds)]
            self._squares = squared_sensitivities(self._correlated, rounds, len(pool.sizes))
        return self._squares

    def _calibrated(self, federation: FederatedModule) -> float:
        if self.noise is not None:
            return self.noise
        assert self.target_epsilon is not None
        once = noise_for(self.target_epsilon, self._delta(federation), [Steps(1.0, 1.0, 1)], self.accountant)
        return once * math.sqrt(self._encoded(federation)[-1])

    def _planned(self, federation: FederatedModule, done: int) -> float:
        """The noise of the numbers, which stays throughout the run, also where its first rounds are repeated."""
        if not done:
            self._own, self._correlated = None, CorrelatedNoise(self.correlation, self.bands)
        if self._own is None:
            ahead = ((round_, self.ledger.ahead(round_)) for round_ in range(federation.rounds))
            own = (steps[ALL_CLIENTS].noise * self._added(federation, one) ** 0.5 for one, steps in ahead if steps)
            released = next((noise for noise in own if noise > 0), None)
            self._own = self._calibrated(federation) if released is None else released
        return self._own

    def _repeated(self, released: Steps) -> float:
        return self._multiplier

    def _mixed(self, draw: Callable[[], Tensor]) -> Tensor:
        return self._correlated.next(draw)

    def statement(self, federation: FederatedModule) -> PrivacyStatement:
        common = super().statement(federation)
        note = (
            f"{self.correlation} noise over rounds; neighbouring runs differ in one client's changes, in all rounds in "
            "which the public plan has it; checkpoints hold noise of later rounds, for the server only"
        )
        notes = (*(note for note in common.notes if "must stay secret" not in note), note)
        drawn = "public plan" if federation.participation < 1 else common.sampling
        return replace(common, mechanism="DP-FTRL", sampling=drawn, noise=self._multiplier, nominal=False, notes=notes)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "own": self._own, "correlated": self._correlated.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._own = state_dict["own"]
        self._correlated.load_state_dict(state_dict["correlated"])
