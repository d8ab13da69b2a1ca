"""How much of a private choice of factors a server can tell from uploads, judged by somebody who knows the truth.

WAFFLe holds that nobody can rebuild a client's model who does not know which factors the client uses (sec. 2.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.attacks.adaptive.base import ObservedModel
from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.adaptive.factors import FactorLayout
from app.attacks.audit_context import AuditContext
from app.attacks.models import Snapshot
from app.attacks.protocols.base import few
from app.attacks.targets import observed_uploads
from app.federation.evaluation import score, statistics_context
from app.metrics.fairness import mean_estimate, swap_estimate
from app.metrics.intervals import Estimate
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.roc import roc_curve
from app.seeding import numpy_generator

Choices = Mapping[int, Tensor]
"""Every client's choice coordinates, all layers in a row: the truth, which no attacker sees."""


@dataclass(frozen=True)
class ClientRecovery:
    """What the server can tell of one client. Areas and accuracies are fractions; NaN where there is none.

    Attributes:
        client: client id.
        round: round of its last upload, counted from 1.
        used: factors that it uses with a probability above 1/2.
        support: area under the ROC curve of the server's ranking of factors, for telling those that it uses.
        moved: the same for how far they moved alone.
        prior: the same for the public prior alone, which takes no upload.
        population: the same for the mean choice of all clients, which no upload of this client tells.
        specific: for telling the factors that it uses more than the others do: how far they moved by their mean.
        own: accuracy on its own test set of its upload with its true choice.
        recovered: with the choice that the server takes it for.
        concealed: without a choice: as the server has it.
        another: with another client's choice.
    """

    client: int
    round: int
    used: int
    support: float
    moved: float
    prior: float
    population: float
    specific: float
    own: float
    recovered: float
    concealed: float
    another: float


MEASURED = ("support", "moved", "prior", "population", "specific", "own", "recovered", "concealed", "another")
"""What is measured of every client."""

COSTS = {"concealed_cost": "concealed", "recovered_cost": "recovered", "another_cost": "another"}
"""Accuracy with the true choice less that with another one, client by client: what not knowing it costs."""


@dataclass(frozen=True, eq=False)
class FactorFinding:
    """What the server can tell of all clients whose uploads it saw.

    Attributes:
        clients: client by client.
        means: mean over clients of everything in `MEASURED` and `COSTS`, with an interval over clients.
        moved: (clients, factors) how far factors moved, divided by the mean of the layer.
        chosen: (clients, factors) probability that the client uses the factor.
        notes: what must be known to read the numbers.
    """

    clients: tuple[ClientRecovery, ...]
    means: Mapping[str, Estimate | NotAvailable]
    moved: Array
    chosen: Array
    notes: tuple[str, ...] = ()


def recover_factors(audit: AuditContext, truth: Choices) -> FactorFinding | NotAvailable:
    """Compare what the server can tell of every client's choice of factors with the truth.

    Args:
        audit: the run under attack.
        truth: choice coordinates of every client that has any of its own.
    """
    layout = FactorLayout.of(audit.knowledge.prototype)
    seen = observed_uploads(audit.transcript.server_view(), audit.knowledge, audit.kept_rounds)
    heard = {client: own for client, own in seen.items() if not isinstance(own, NotAvailable) and client in truth}
    if not heard:
        return NotAvailable("; ".join(few([one.reason for one in seen.values() if isinstance(one, NotAvailable)], 2)))
    return RecoveryScoring(audit, layout, truth, heard).finding()


class RecoveryScoring:
    """The server's guesses beside the truth."""

    def __init__(
        self, audit: AuditContext, layout: FactorLayout, truth: Choices, heard: Mapping[int, Sequence[ObservedModel]]
    ) -> None:
        """Rank the factors of every client.

        Args:
            audit: the run under attack.
            layout: where factors lie.
            truth: choice coordinates of every client that has any of its own.
            heard: uploads of every client that was heard, by round; at least one each.
        """
        self._audit, self._layout, self._truth, self._heard = audit, layout, truth, heard
        self._scores = {client: layout.moved(own) for client, own in heard.items()}
        self._usual = torch.stack(list(self._scores.values())).mean(dim=0)
        self._chosen = {client: layout.probabilities(own) for client, own in truth.items()}
        self._population = torch.stack(list(self._chosen.values())).mean(dim=0)

    def finding(self) -> FactorFinding:
        """All clients that were heard."""
        clients = tuple(self._of(client) for client in sorted(self._heard))
        means = {name: _mean([getattr(one, name) for one in clients]) for name in MEASURED}
        means |= {cost: _cost(clients, name) for cost, name in COSTS.items()}
        moved = torch.stack([self._layout.levelled(self._scores[one.client]) for one in clients])
        chosen = torch.stack([self._chosen[one.client] for one in clients])
        return FactorFinding(clients, means, moved.numpy(), chosen.numpy(), tuple(self._notes()))

    def _of(self, client: int) -> ClientRecovery:
        scores, chosen, last = self._scores[client], self._chosen[client], self._heard[client][-1]
        specific = torch.where(self._usual > 0, scores / self._usual, 0)
        guess = FactorChoice(self._layout).applied(self._heard[client])[-1]
        return ClientRecovery(
            client=client,
            round=last.round,
            used=int((chosen > 0.5).sum()),
            support=self._area(self._layout.ranking(scores), chosen > 0.5),
            moved=self._area(scores, chosen > 0.5),
            prior=self._area(self._layout.prior, chosen > 0.5),
            population=self._area(self._population, chosen > 0.5),
            specific=self._area(specific, chosen > self._population),
            own=self._accuracy(client, self._with(last, self._truth[client])),
            recovered=self._accuracy(client, guess.snapshot),
            concealed=self._accuracy(client, last.snapshot),
            another=self._accuracy(client, self._with(last, self._truth[self._partner(client)])),
        )

    def _area(self, scores: Tensor, truth: Tensor) -> float:
        """Mean over layers of the area under the ROC curve; NaN where no layer has factors of both kinds."""
        areas = [
            roc_curve(MembershipScores.of(own.numpy(), used.numpy())).auc
            for own, used in zip(self._layout.split(scores), self._layout.split(truth), strict=True)
            if bool(used.any()) and not bool(used.all())
        ]
        return math.fsum(areas) / len(areas) if areas else math.nan

    def _with(self, observed: ObservedModel, choice: Tensor) -> Snapshot:
        return self._layout.choosing(observed, choice).snapshot

    def _partner(self, client: int) -> int:
        """Another client that has a choice of its own; the client itself where it is the only one."""
        order = numpy_generator(self._audit.knowledge.seed, "swapped-choices").permutation(sorted(self._truth)).tolist()
        return int(order[(order.index(client) + 1) % len(order)])

    def _accuracy(self, client: int, snapshot: Snapshot) -> float:
        """On the client's own test set, as the client itself would be evaluated."""
        knowledge, truth = self._audit.knowledge, self._audit.truth
        net, test = self._audit.query.network(snapshot), torch.from_numpy(truth.nonmembers[client])
        train = torch.from_numpy(truth.members[client])
        with knowledge.precision(), statistics_context(net, knowledge.store, train, knowledge.batch_size):
            return score(net, knowledge.store, test, knowledge.batch_size).accuracy

    def _notes(self) -> list[str]:
        heard, everybody = len(self._heard), len(self._audit.clients)
        if heard == everybody:
            return []
        kept = ", ".join(map(str, self._audit.kept_rounds))
        return [f"{heard} of {everybody} clients were heard in rounds {kept} (--transcript.last keeps more)"]


def _mean(values: Sequence[float]) -> Estimate | NotAvailable:
    present = [value for value in values if not math.isnan(value)]
    if not present:
        return NotAvailable("no client has factors of both kinds, or a test set")
    return mean_estimate(present, [""] * len(present))


def _cost(clients: Sequence[ClientRecovery], name: str) -> Estimate | NotAvailable:
    """Mean loss of accuracy, -1 to 1, paired by client."""
    tested = [one for one in clients if not math.isnan(one.own)]
    if not tested:
        return NotAvailable("no client has a test set")
    return swap_estimate([one.own for one in tested], [getattr(one, name) for one in tested]).cost
