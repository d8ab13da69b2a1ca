"""What every adversary is assumed to know: the network, the training recipe, the plan, and data of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from app.attacks.models import Ids, Snapshot
from app.federation.evaluation import Evaluation
from app.federation.execution.client_trainer import LocalContext
from app.federation.local_training import LocalTraining
from app.federation.plan import Plan
from app.models.base import ScalableNet
from app.privacy.traits import Component, Trait
from datamodules.store import ImageStore


def no_samples() -> Ids:
    """An empty array of sample ids."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """Public knowledge, and the data that the attacker owns."""

    prototype: ScalableNet  # the server's network, for its architecture; its present values are never read
    store: ImageStore  # images and labels by sample id; an attack reads audited samples and its own only
    local: LocalTraining
    learning_rates: tuple[float, ...]  # the clients' learning rate in every round, before `local.lr_factors`
    # augmentation of training batches, None for none
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    # ids of the attacker's own data, from the distribution of the members but disjoint from them; shadow models are
    # trained on them
    auxiliary: Ids = field(default_factory=no_samples)
    # ids of further data from that distribution, which no shadow is trained on
    population: Ids = field(default_factory=no_samples)
    plan_of: Callable[[int], Plan] | None = None  # the public plan of every round (0-based)
    seed: int = 0  # key of the attacker's random choices
    batch_size: int = 128  # samples per query for networks that normalise by the statistics of the batch
    precision: Callable[[], AbstractContextManager[None]] = nullcontext  # makes the context in which networks run
    # trains shadow models on several processes, as `train_centrally` does on this one; None for this one alone
    shared_training: Callable[..., list[tuple[Snapshot, ...]]] | None = None
    # shadow models that were `trained` for the attacker, and those that were `reused`, since an earlier run kept them
    shadow_counts: Counter[str] = field(default_factory=Counter)
    # defenses of the run that declare their traits, in the order in which they act
    defenses: tuple[Component, ...] = ()

    @property
    def rounds(self) -> int:
        return len(self.learning_rates)

    def plan(self, round_: int) -> Plan:
        """The public plan of a round, counted from 0."""
        assert self.plan_of is not None, "the attack needs the public plan"
        return self.plan_of(round_)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training samples of every client, by id."""
        return self.plan(0).client_pool.sizes

    @cached_property
    def took_part(self) -> frozenset[int]:
        """Clients that take part in any round of the plan."""
        client_pool = self.plan(0).client_pool
        return frozenset(client for round_ in range(self.rounds) for client in client_pool.participants(round_))

    @property
    def traits(self) -> frozenset[Trait]:
        """Traits of all defenses of the run together."""
        return frozenset().union(*(defense.traits for defense in self.defenses))

    @property
    def classes(self) -> int:
        return self.store.classes

    @property
    def device(self) -> torch.device:
        return next(self.prototype.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.prototype.parameters()).dtype

    def local_context(self) -> LocalContext:
        """Settings of a local training with the clients' recipe and without any defense."""
        return LocalContext(
            prototype=self.prototype,
            store=self.store,
            common_test=torch.empty(0, dtype=torch.long),
            augment=self.augment,
            local=self.local,
            evaluation=Evaluation(clients=False),
            seed=self.seed,
            needs_received_loss=False,
            loss_hooks=(),
            penalty_hooks=(),
            start_hooks=(),
            end_hooks=(),
            widths=None,
            precision=self.precision,
        )
