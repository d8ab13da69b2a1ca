"""Clients that join a trained federation: what is shared stays as it is, and they fit only what is theirs alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.errors import Problem
from app.federation.everyone import Choice, Everyone, LocalScore
from app.seeding import numpy_generator


@dataclass(frozen=True)
class Newcomers:
    """Clients that take part in no round and join when the training is over.

    Attributes:
        clients: how many, drawn at random; 0 for none.
        visits: local trainings of what belongs to them alone, each with the usual epochs, at least 1.
    """

    clients: int = 0
    visits: int = 10

    def problems(self, clients: int) -> Iterator[Problem]:
        """What is wrong with these settings in a federation of so many clients."""
        if not 0 <= self.clients < clients:
            yield Problem(
                f"{self.clients} of {clients} clients are newcomers",
                "nobody would be left to train what they join",
                f"set --model.newcomers.clients to at least 0 and below {clients}",
            )
        if self.visits < 1:
            yield Problem(
                f"newcomers.visits is {self.visits}",
                "newcomers would not fit anything",
                "set --model.newcomers.visits to 1 or more",
            )

    def chosen(self, clients: int, seed: int) -> frozenset[int]:
        """Who they are."""
        return frozenset(numpy_generator(seed, "newcomers").permutation(clients)[: self.clients].tolist())


class Joining(Everyone):
    """Newcomers with the server's final model. Nothing they do is sent, and the federation does not change."""

    @property
    def _clients(self) -> tuple[int, ...]:
        return tuple(sorted(self._federation.roster.absent))

    def scores(self, choice: Choice = "none") -> tuple[LocalScore, ...]:
        """Newcomers as they come: with the server's model, or with the mean of the private parts in the federation."""
        return super().scores(choice)

    def fitted(self) -> tuple[LocalScore, ...]:
        """After they have fitted their private part to their data, with all that is shared frozen."""
        federation = self._federation
        context = replace(self._undefended(), trained=federation.space.names(federation.personal.mask))
        vectors = {client: self._started(client) for client in self._share()}
        for visit in range(federation.newcomers.visits):
            tasks = [self._task(client, vector, visit) for client, vector in vectors.items()]
            vectors = dict(self._trained(context, tasks))
        return self._scored(vectors.items())
