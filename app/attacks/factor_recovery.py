"""How much of a client's private choice of factors a server can recover from uploads, compared with the truth.

WAFFLe assumes that a client's model cannot be rebuilt without knowing which factors the client uses (sec. 2.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.attacks.adaptive.base import ObservedModel
from app.attacks.adaptive.factor_choice import FactorChoice, FactorLayout
from app.attacks.audit_context import AuditContext
from app.attacks.protocols.base import few
from app.attacks.targets import observed_uploads
from app.common.progress import track
from app.common.seeding import numpy_generator
from app.federation.evaluation import score, statistics_context
from app.metrics.fairness import mean_estimate, swap_estimate
from app.metrics.intervals import Estimate
from app.metrics.membership import Array, MembershipScores, NotAvailable
from app.metrics.roc import roc_curve

Choices = Mapping[int, Tensor]
"""Every client's true choice coordinates, over all layers; no attacker sees them."""


@dataclass(frozen=True)
class ClientRecovery:
    """What the server can recover of one client. Areas and accuracies are fractions; NaN where there is none."""

    client: int
    round: int  # of its last upload, counted from 1
    used: int  # number of factors that it uses with a probability above 1/2
    support: float  # area under the ROC curve of the server's ranking of factors, for detecting those that it uses
    moved: float  # the same for a ranking by movement alone
    prior: float  # the same for the public prior alone, a control without any upload
    population: float  # the same for the mean choice of all clients, a control without this client's upload
    # for detecting the factors that it uses more than others do: movement relative to the mean movement
    specific: float
    own: float  # accuracy of its upload on its own test set, with its true choice
    recovered: float  # with the choice that the server estimates
    concealed: float  # without a choice, as the server receives it
    another: float  # with another client's choice


MEASURED = ("support", "moved", "prior", "population", "specific", "own", "recovered", "concealed", "another")
"""Measured for every client."""

COSTS = {"concealed_cost": "concealed", "recovered_cost": "recovered", "another_cost": "another"}
"""Accuracy with the true choice minus accuracy with another one, paired by client."""


@dataclass(frozen=True, eq=False)
class FactorFinding:
    """What the server can recover of all clients whose uploads it received."""

    clients: tuple[ClientRecovery, ...]
    # mean over clients of everything in `MEASURED` and `COSTS`, with an interval over clients
    means: Mapping[str, Estimate | NotAvailable]
    moved: Array  # (clients, factors) movement, divided by the mean of the layer
    chosen: Array  # (clients, factors) probability that the client uses the factor
    notes: tuple[str, ...] = ()  # remarks for the report


def recover_factors(audit: AuditContext, truth: Choices) -> FactorFinding | NotAvailable:
    """Compare the server's estimate of every client's choice of factors with the truth of clients that have one."""
    layout = FactorLayout.of(audit.knowledge.prototype)
    observed = observed_uploads(audit.transcript.server_view(), audit.knowledge, audit.kept_rounds)
    uploads = {client: own for client, own in observed.items() if not isinstance(own, NotAvailable) and client in truth}
    if not uploads:
        reasons = [own.reason for own in observed.values() if isinstance(own, NotAvailable)]
        return NotAvailable("; ".join(few(reasons, 2)))
    return RecoveryScoring(audit, layout, truth, uploads).finding()


class RecoveryScoring:
    """Scores the server's estimates against the truth; `uploads` has at least one model per client, by round."""

    def __init__(
        self, audit: AuditContext, layout: FactorLayout, truth: Choices, uploads: Mapping[int, Sequence[ObservedModel]]
    ) -> None:
        self._audit, self._layout, self._truth, self._uploads = audit, layout, truth, uploads
        self._scores = {client: layout.moved(own) for client, own in uploads.items()}
        self._usual = torch.stack(list(self._scores.values())).mean(dim=0)
        self._chosen = {client: layout.probabilities(own) for client, own in truth.items()}
        self._population = torch.stack(list(self._chosen.values())).mean(dim=0)

    def finding(self) -> FactorFinding:
        uploading = track(sorted(self._uploads), "factor recovery", "clients", delay=0)
        clients = tuple(self._recovery(client) for client in uploading)
        means = {name: _mean([getattr(one, name) for one in clients]) for name in MEASURED}
        means |= {cost: _cost(clients, name) for cost, name in COSTS.items()}
        moved = torch.stack([self._layout.levelled(self._scores[one.client]) for one in clients])
        chosen = torch.stack([self._chosen[one.client] for one in clients])
        kept, total = ", ".join(map(str, self._audit.kept_rounds)), len(self._audit.clients)
        note = f"{len(clients)} of {total} clients uploaded in rounds {kept} (--transcript.last keeps more)"
        notes = (note,) if len(clients) != total else ()
        return FactorFinding(clients, means, moved.numpy(), chosen.numpy(), notes)

    def _recovery(self, client: int) -> ClientRecovery:
        scores, chosen, last = self._scores[client], self._chosen[client], self._uploads[client][-1]
        specific = torch.where(self._usual > 0, scores / self._usual, 0)
        estimated = FactorChoice(self._layout).applied(self._uploads[client])[-1]
        return ClientRecovery(
            client=client,
            round=last.round,
            used=int((chosen > 0.5).sum()),
            support=self._area(self._layout.ranking(scores), chosen > 0.5),
            moved=self._area(scores, chosen > 0.5),
            prior=self._area(self._layout.prior, chosen > 0.5),
            population=self._area(self._population, chosen > 0.5),
            specific=self._area(specific, chosen > self._population),
            own=self._accuracy(client, self._layout.with_choice(last, self._truth[client])),
            recovered=self._accuracy(client, estimated),
            concealed=self._accuracy(client, last),
            another=self._accuracy(client, self._layout.with_choice(last, self._truth[self._partner(client)])),
        )

    def _area(self, scores: Tensor, truth: Tensor) -> float:
        """Mean over layers of the area under the ROC curve; NaN where no layer has factors of both kinds."""
        areas = [
            roc_curve(MembershipScores.of(own.numpy(), used.numpy())).auc
            for own, used in zip(self._layout.split(scores), self._layout.split(truth), strict=True)
            if bool(used.any()) and not bool(used.all())
        ]
        return math.fsum(areas) / len(areas) if areas else math.nan

    def _partner(self, client: int) -> int:
        """Another client that has a choice of its own; the client itself where it is the only one."""
        order = numpy_generator(self._audit.knowledge.seed, "swapped-choices").permutation(sorted(self._truth)).tolist()
        return int(order[(order.index(client) + 1) % len(order)])

    def _accuracy(self, client: int, model: ObservedModel) -> float:
        """On the client's own test set, 0 to 1, as in the evaluation of clients."""
        knowledge, truth = self._audit.knowledge, self._audit.truth
        net, test = self._audit.query.network(model.snapshot), torch.from_numpy(truth.nonmembers[client])
        train = torch.from_numpy(truth.members[client])
        with knowledge.precision(), statistics_context(net, knowledge.store, train, knowledge.batch_size):
            return score(net, knowledge.store.rightly_labelled, test, knowledge.batch_size).accuracy


def _mean(values: Sequence[float]) -> Estimate | NotAvailable:
    present = [value for value in values if not math.isnan(value)]
    if not present:
        return NotAvailable("no client has factors of both kinds, or a test set")
    return mean_estimate(present, [""] * len(present))


def _cost(clients: Sequence[ClientRecovery], name: str) -> Estimate | NotAvailable:
    tested = [one for one in clients if not math.isnan(one.own)]
    if not tested:
        return NotAvailable("no client has a test set")
    return swap_estimate([one.own for one in tested], [getattr(one, name) for one in tested]).cost
