"""What every adversary is taken to know: the network, the training recipe, the plan, and data of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from app.attacks.responses import Ids
from app.federation.evaluation import Evaluation
from app.federation.execution.client_trainer import LocalContext
from app.federation.local_training import LocalTraining
from app.federation.plan import Plan
from app.models.base import ScalableNet
from app.privacy.traits import Component, Trait
from datamodules.store import ImageStore


def no_samples() -> Ids:
    """No sample at all."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """Public knowledge, and the data that the attacker owns.

    Attributes:
        prototype: the server's network, for its architecture; its present values are never read.
        store: images and labels by sample id. An attack asks it only for samples it was given or owns.
        local: how clients train.
        learning_rates: the clients' learning rate in every round.
        augment: augmentation of training batches, None for none.
        auxiliary: ids of the attacker's own data, from the distribution of the members but disjoint from them: what
            shadow models are trained on.
        population: ids of further data of that kind, which no shadow is trained on.
        plan_of: the public plan of every round (0-based).
        seed: key of the attacker's random choices.
        batch_size: samples per query for networks that normalise by the statistics of the batch.
        precision: makes the context in which networks run.
        defenses: the defenses of the run that say what they do, in the order in which they act.
    """

    prototype: ScalableNet
    store: ImageStore
    local: LocalTraining
    learning_rates: tuple[float, ...]
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    auxiliary: Ids = field(default_factory=no_samples)
    population: Ids = field(default_factory=no_samples)
    plan_of: Callable[[int], Plan] | None = None
    seed: int = 0
    batch_size: int = 128
    precision: Callable[[], AbstractContextManager[None]] = nullcontext
    defenses: tuple[Component, ...] = ()

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return len(self.learning_rates)

    @cached_property
    def took_part(self) -> frozenset[int]:
        """Clients that the plan has in any round: of nobody else can a model know anything."""
        assert self.plan_of is not None, "who took part is known from the public plan alone"
        client_pool = self.plan_of(0).client_pool
        return frozenset(client for round_ in range(self.rounds) for client in client_pool.participants(round_))

    @property
    def traits(self) -> frozenset[Trait]:
        """What the defenses of the run do, all together."""
        return frozenset().union(*(defense.traits for defense in self.defenses))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.store.classes

    @property
    def device(self) -> torch.device:
        """Where networks run."""
        return next(self.prototype.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the networks."""
        return next(self.prototype.parameters()).dtype

    def local_context(self) -> LocalContext:
        """What training a model the way clients do depends on, without any defense."""
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
