"""Everything an evaluation of attacks has in hand. The truth is for the evaluator; attacks never get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from app.attacks.model_query import ModelQuery
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.responses import Ids
from app.attacks.shadows.federated import Federations
from app.errors import UserError
from app.federation.transcript import Transcript
from app.metrics.membership import NO_CLIENT
from datamodules.split import Membership


@dataclass(frozen=True, eq=False)
class AuditContext:
    """One run under attack.

    Attributes:
        knowledge: what every adversary knows; its rounds are those that have been trained.
        transcript: what was recorded; attacks get views of it.
        sets: who owns what, newcomers and clients that were never asked included.
        final: whether the run is over, so that its last model is released.
        federations: repeats the federation for `shadows: federated`, None where that is not possible.
        cache: folder of shadow models, None to keep none.
    """

    knowledge: PublicKnowledge
    transcript: Transcript
    sets: Membership
    final: bool = True
    federations: Federations | None = None
    cache: Path | None = None

    @cached_property
    def query(self) -> ModelQuery:
        """Asks models; one for all attacks, so that they share answers."""
        return ModelQuery(self.knowledge)

    @cached_property
    def truth(self) -> Membership:
        """Who was trained on what. Clients that took part in no round own nothing here: their samples are no members,
        and as non-members they would not be compared with their like."""
        return self.sets.among(self.knowledge.took_part)

    @property
    def clients(self) -> tuple[int, ...]:
        """Ids of the clients that took part in any round."""
        return tuple(sorted(self.knowledge.took_part))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known about who is audited."""
        everybody = len(self.sets.members)
        absent = everybody - len(self.clients)
        return (f"{absent} of {everybody} clients took part in no round, and are not audited",) if absent else ()

    @cached_property
    def audited(self) -> Mapping[int, Ids]:
        """Samples of every client, members and non-members together, ascending; NO_CLIENT for all audited ones."""
        pairs = zip(self.sets.members, self.sets.nonmembers, strict=True)
        own = {client: np.sort(np.concatenate(pair)) for client, pair in enumerate(pairs)}
        return {**own, NO_CLIENT: np.sort(np.concatenate([own[client] for client in self.clients]))}

    @property
    def rates(self) -> tuple[float, ...]:
        """Width of each client of the federation, by id, in the last round."""
        assert self.knowledge.plan_of is not None
        plan = self.knowledge.plan_of(self.knowledge.rounds - 1)
        return tuple(plan.rate(client) for client in range(len(self.sets.members)))

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """Rounds of the transcript, ascending, counted from 1.

        Raises:
            UserError: where nothing was kept.
        """
        rounds = tuple(round_ for round_ in self.transcript.rounds if round_ <= self.knowledge.rounds)
        if not rounds:
            raise UserError.of(
                "the run has no transcript",
                "nobody has seen anything that could be attacked",
                "train it again with --transcript.last 2 (the default) or with --transcript.rounds",
            )
        return rounds

    def check_disjoint(self) -> None:
        """Refuse sets that overlap: an attack would be judged on what it was trained on."""
        parts = {"audited": self.audited[NO_CLIENT], "shadow": self.knowledge.auxiliary}
        parts["population"] = self.knowledge.population
        names = list(parts)
        for number, first in enumerate(names):
            for second in names[number + 1 :]:
                if len(shared := np.intersect1d(parts[first], parts[second])):
                    raise UserError.of(
                        f"{len(shared)} samples are both {first} and {second} data, such as sample {shared[0]}",
                        "the attack would be judged on what it was told",
                        "draw the sets with the data module's holdout, which keeps them apart",
                    )
