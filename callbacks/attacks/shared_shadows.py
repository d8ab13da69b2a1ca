"""Central training of shadow models by all processes of a run."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from app.attacks.models import Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.federation.module import FederatedModule

KnowledgeOf = Callable[[FederatedModule, int], PublicKnowledge]
"""Public knowledge of a federation after so many rounds."""


@dataclass(frozen=True)
class CentralTraining:
    """Trains some of the shadow models on any process, with public knowledge that it makes of its own federation."""

    knowledge_of: KnowledgeOf
    learning_rates: tuple[float, ...]
    changed: Mapping[str, Any]  # network and local training, where they are not those of the federation
    rounds: tuple[int, ...]

    def __call__(self, federation: FederatedModule, jobs: Sequence[ShadowJob]) -> list[tuple[Snapshot, ...]]:
        knowledge = self.knowledge_of(federation, len(self.learning_rates))
        knowledge = replace(knowledge, learning_rates=self.learning_rates, **self.changed)
        knowledge.prototype.to(federation.device)
        return train_centrally(knowledge, jobs, self.rounds, federation.worker_count)


def shared_training(
    federation: FederatedModule, knowledge_of: KnowledgeOf
) -> Callable[..., list[tuple[Snapshot, ...]]]:
    """Trains shadow models as `train_centrally` does, each on one of the processes of the run."""

    def train(
        knowledge: PublicKnowledge, jobs: Sequence[ShadowJob], rounds: tuple[int, ...]
    ) -> list[tuple[Snapshot, ...]]:
        work = CentralTraining(knowledge_of, knowledge.learning_rates, _changed(knowledge, federation), rounds)
        if len(jobs) < 2 or not _can_be_sent(work):
            return train_centrally(knowledge, jobs, rounds)
        return federation.helpers.share(work, jobs, [len(job.samples) * job.rate**2 for job in jobs])

    return train


def _changed(knowledge: PublicKnowledge, federation: FederatedModule) -> dict[str, Any]:
    """What an attack trains its shadows with instead of the federation's own network or local training."""
    changed: dict[str, Any] = {}
    if knowledge.prototype is not federation.net:
        changed["prototype"] = deepcopy(knowledge.prototype).cpu()  # every process has a device of its own
    if knowledge.local is not federation.local:
        changed["local"] = knowledge.local
    return changed


def _can_be_sent(work: CentralTraining) -> bool:
    """Whether another process can be given the work; not where an optimiser or a network is a local function."""
    try:
        pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
