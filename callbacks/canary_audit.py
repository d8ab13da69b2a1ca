"""What audits by canaries have in common: coins that fit the claims, scores over rounds, and the measured epsilon."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch import Trainer

from app.attacks.canaries import standardised
from app.common.ranges import Inside, Several
from app.federation.checks.federation import stack_traits
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.promises import statements
from app.metrics.membership import Array
from app.privacy.auditing.empirical import measured_epsilon
from app.privacy.statements import PrivacyStatement, Unit
from app.privacy.traits import Trait
from app.results.attacks.canaries import CanaryRecord, ClaimCheck

Adversary = Literal["server", "outside"]
"""Who measures: the server, which sees single uploads, or those who see the model of every round."""

USUAL_DELTA = 1e-5
"""Where nothing is claimed."""

PER_UPLOAD: frozenset[Trait] = frozenset({"nominal-dp", "upload-dp"})
"""Traits of claims whose neighbours differ in a replaced record, and that hold for every single upload."""

SEES = {"server": "the server, from the uploads of all rounds", "outside": "outsiders, from the models of all rounds"}


class CanaryAudit(FederatedCallback):
    """Inserts canaries by fair coins, scores them by what an adversary sees, and measures epsilon in one run.

    The canaries take part in the training, so use a run of its own. They are independent and fair whatever else the
    run does; where a claim is about replaced records, a coin chooses between two versions instead.
    """

    kind = "attack"
    unit: ClassVar[Literal["sample", "client"]]
    trait: ClassVar[Trait]

    def __init__(self, count: Several, adversary: Adversary | None, delta: Inside | None) -> None:
        self.count, self.adversary, self.delta = count, adversary, delta
        self._sums: Array = np.zeros(count)
        self._seen = np.zeros(count, dtype=np.int64)
        self._new: list[tuple[np.ndarray, Array]] = []

    def traits(self) -> frozenset[Trait]:
        return frozenset({self.trait})

    @property
    @abstractmethod
    def inserted(self) -> np.ndarray:
        """(count) bool, the coins."""

    @property
    def groups(self) -> np.ndarray:
        """(count) number of the part of the federation in which a canary is: scores are standardised within it."""
        return np.zeros(self.count, dtype=np.int64)

    def pairs(self, federation: FederatedModule) -> bool:
        """Whether coins choose between two versions of a canary, as claims on replaced records need."""
        return bool(PER_UPLOAD & stack_traits(federation))

    @abstractmethod
    def sees(self, federation: FederatedModule) -> Adversary:
        """The adversary: the chosen one, or the one against whom the claim is made."""

    def record_scores(self, canaries: np.ndarray, scores: Array) -> None:
        """Note scores of some canaries in this round."""
        self._new.append((canaries, scores))

    def on_round_end(
        self,
        trainer: Trainer,
        federation: FederatedModule,
        metrics: Mapping[str, float],
        costs: Mapping[str, float],
    ) -> None:
        """Add up the scores of all processes."""
        for canaries, scores in [one for part in gather(self._new) for one in part]:
            self._sums[canaries] += scores
            self._seen[canaries] += 1
        self._new = []

    def results(self, federation: FederatedModule) -> Iterator[CanaryRecord]:
        adversary, claims = SEES[self.sees(federation)], list(self.claims(federation))
        replaced = "which of two versions is inserted" if self.pairs(federation) else "whether it is inserted"
        about = (f"{self.unit}-canaries", self.unit, adversary, f"a fair coin decides {replaced}")
        present = np.flatnonzero(self._seen)
        if len(present) < 2:
            yield CanaryRecord(*about, reason=self.nothing_seen(federation))
            return
        scores = standardised(self._sums[present] / self._seen[present], self.groups[present])
        coins = self.inserted[present]
        if not np.isfinite(scores).all():
            yield CanaryRecord(*about, reason="scores are not finite: the model has diverged")
            return
        delta = self.delta if self.delta is not None else max((one.delta for one in claims), default=USUAL_DELTA)
        measured = measured_epsilon(scores, coins, delta)
        checks = tuple(ClaimCheck.of(one, measured) for one in claims if one.delta <= delta)
        yield CanaryRecord(*about, measured, checks, tuple(self.notes(federation)), scores=scores, inserted=coins)

    def nothing_seen(self, federation: FederatedModule) -> str:
        """Why there is no score."""
        return "no client with canaries has taken part"

    def notes(self, federation: FederatedModule) -> Iterator[str]:
        yield "canaries take part in the training: accuracy and other attacks of this run are not those of the data"

    def claims(self, federation: FederatedModule) -> Iterator[PrivacyStatement]:
        """Claims about what the coins decide, as they hold in this run: of this unit, and with these neighbours."""
        neighbours = "replace one" if self.pairs(federation) else "add or remove one"
        units: tuple[Unit, ...] = (self.unit, "local model")
        yield from (one for one in statements(federation) if one.unit in units and one.adjacency == neighbours)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": torch.from_numpy(self._sums.copy()), "seen": torch.from_numpy(self._seen.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums, self._seen = state_dict["sums"].numpy().copy(), state_dict["seen"].numpy().copy()
