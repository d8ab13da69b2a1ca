"""The run under attack. The true members are for the evaluation only; attacks never see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from app.attacks.findings import Finding
from app.attacks.model_query import ModelQuery
from app.attacks.models import Ids
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.federated import Federations
from app.common.errors import UserError
from app.common.wording import counted
from app.federation.collusion import JoinedTranscript, drawn_colluders
from app.federation.reports import listed
from app.federation.transcript import Transcript
from app.metrics.membership import NO_CLIENT
from datamodules.split import Membership


@dataclass(frozen=True, eq=False)
class AuditContext:
    """One run under attack."""

    knowledge: PublicKnowledge  # of every adversary; its rounds are those that have been trained
    transcript: Transcript  # recorded messages; attacks get an adversary's view of it
    sets: Membership  # samples of every client, including newcomers and clients that never took part
    final: bool = True  # whether the run is over, so that its last model is released
    # repeats the federation for `shadows: federated`, None where that is not possible
    federations: Federations | None = None
    cache: Path | None = None  # folder of shadow models, None to keep none
    done: Mapping[str, Finding] = field(default_factory=dict)  # of an attempt that was interrupted, by label
    colluders: tuple[int, ...] = ()  # participants that have joined the adversary, ascending

    def joined_by(self, colluding: int) -> AuditContext:
        """The same run, attacked by adversaries whom so many participants have joined, drawn at random.

        Their data are the attacker's own, and none of them is audited; the transcript decides what else they add.
        """
        if colluding == 0:
            return self
        clients = len(self.sets.members)
        if colluding >= clients:
            raise UserError.of(
                f"{colluding} of {counted(clients, 'client')} are to collude",
                "nobody is left to be attacked",
                f"let at most {clients - 1} collude",
            )
        colluders = drawn_colluders(self.knowledge.seed, clients, colluding)
        own = [part[client] for client in colluders for part in (self.sets.members, self.sets.nonmembers)]
        auxiliary = np.unique(np.concatenate([self.knowledge.auxiliary, *own]))
        return replace(
            self,
            knowledge=replace(self.knowledge, auxiliary=auxiliary),
            transcript=JoinedTranscript(self.transcript, colluders),
            colluders=colluders,
        )

    @cached_property
    def query(self) -> ModelQuery:
        """Shared by all attacks, and with it the cached responses."""
        return ModelQuery(self.knowledge)

    @cached_property
    def truth(self) -> Membership:
        """Members and non-members of every client; none of colluders and of clients that took part in no round.

        Their samples are no members, and as non-members they would not come from the distribution of the others.
        """
        return self.sets.among(self.clients)

    @property
    def clients(self) -> tuple[int, ...]:
        """Ids of the clients that took part in any round and do not collude."""
        return tuple(sorted(self.knowledge.took_part.difference(self.colluders)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on clients that are not audited."""
        count = len(self.sets.members)
        absent = count - len(self.knowledge.took_part)
        notes = [f"{absent} of {count} clients took part in no round, and are not audited"] if absent else []
        if self.colluders:
            notes.append(f"{listed(self.colluders)} collude: their data are the attacker's own, and are not audited")
        return tuple(notes)

    @cached_property
    def audited(self) -> Mapping[int, Ids]:
        """Samples of every client, members and non-members together, ascending; NO_CLIENT for all audited ones."""
        pairs = zip(self.sets.members, self.sets.nonmembers, strict=True)
        own = {client: np.sort(np.concatenate(pair)) for client, pair in enumerate(pairs)}
        return {**own, NO_CLIENT: np.sort(np.concatenate([own[client] for client in self.clients]))}

    @property
    def rates(self) -> tuple[float, ...]:
        """Width rate of each client, by id, in the last round."""
        plan = self.knowledge.plan(self.knowledge.rounds - 1)
        return tuple(plan.rate(client) for client in range(len(self.sets.members)))

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """Rounds of the transcript, ascending, counted from 1; refused where no round was kept."""
        rounds = tuple(round_ for round_ in self.transcript.rounds if round_ <= self.knowledge.rounds)
        if not rounds:
            raise UserError.of(
                "the run has no transcript",
                "there is no model that an adversary has observed",
                "train it again with --transcript.last 2 (the default) or with --transcript.rounds",
            )
        return rounds

    def check_disjoint(self) -> None:
        """Refuse overlapping sets: an attack would be evaluated on samples it was trained on."""
        parts = {"audited": self.audited[NO_CLIENT], "shadow": self.knowledge.auxiliary}
        parts["population"] = self.knowledge.population
        for first, second in combinations(parts, 2):
            if len(shared := np.intersect1d(parts[first], parts[second])):
                raise UserError.of(
                    f"both {first} and {second} data: {counted(len(shared), 'sample')}, such as sample {shared[0]}",
                    "the attack would be evaluated on samples whose membership it knows",
                    "draw the sets with the data module's holdout, which keeps them apart",
                )
