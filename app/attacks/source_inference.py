"""Hu et al. 2021, source inference: which client owns a sample that is known to be a member.

The honest-but-curious server takes the client whose uploaded model has the lowest loss on the sample. Losses of unequal
widths have different scales, so beside the raw loss stands one that is calibrated on data that no client has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.attacks.adaptive.base import ObservedModel
from app.attacks.audit_context import AuditContext
from app.attacks.models import Ids, Responses
from app.attacks.protocols.base import few
from app.attacks.targets import observed_uploads
from app.common.progress import track
from app.common.seeding import numpy_generator
from app.metrics.intervals import Interval, clopper_pearson
from app.metrics.membership import Array, NotAvailable

MOST = 2000
"""Most samples of the population that a model is calibrated on."""

FEWEST = 2
"""Samples of the population without which there is no calibration."""


@dataclass(frozen=True)
class SourceShare:
    """How many samples of a group are attributed to the client that owns them.

    Attributes:
        rule: `loss`, or `calibrated`: the logit of the true class's probability in standard deviations of the
            population's under the same model.
        group: whose samples, in words.
        clients: number of clients that own them.
        correct: number of samples that are attributed to their owner.
        samples: number of samples, at least 1.
    """

    rule: str
    group: str
    clients: int
    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        """Fraction correct, 0 to 1."""
        return self.correct / self.samples

    @property
    def interval(self) -> Interval:
        """Clopper-Pearson interval of the accuracy, as if samples were independent of each other."""
        return clopper_pearson(self.correct, self.samples)


@dataclass(frozen=True)
class SourceFinding:
    """Result of source inference among the clients whose uploads the server can read.

    Attributes:
        shares: by rule; all members, members by width of their owner (widest first; where widths differ), and
            non-members, a control: how much the clients' data alone tell, since no model was trained on them.
        candidates: number of clients among which the server chooses; a blind guess is right once in so many times.
        largest: share of the members, 0 to 1, that the client with the most members owns: what always naming it gives.
        notes: remarks for the report.
        seconds: duration.
    """

    shares: tuple[SourceShare, ...]
    candidates: int
    largest: float
    notes: tuple[str, ...]
    seconds: float

    @property
    def chance(self) -> float:
        """Accuracy of a blind guess."""
        return 1 / self.candidates


def infer_sources(audit: AuditContext) -> SourceFinding | NotAvailable:
    """Attribute every audited sample to the client whose model fits it best, on average over the kept rounds."""
    started = time.perf_counter()
    uploads = observed_uploads(audit.transcript.server_view(), audit.knowledge, audit.kept_rounds)
    seen = {client: models for client, models in uploads.items() if not isinstance(models, NotAvailable)}
    hidden = few([models.reason for models in uploads.values() if isinstance(models, NotAvailable)])
    if len(seen) < 2:
        return NotAvailable("; ".join(hidden) or "one client alone has uploaded: there is nothing to choose from")
    clients = tuple(seen)
    reference = _reference(audit)
    notes = list(hidden) if len(reference) else [*hidden, NO_POPULATION]
    truths = (("members", audit.truth.members), ("non-members", audit.truth.nonmembers))
    owned = {name: {client: sets[client] for client in clients} for name, sets in truths}
    samples = np.concatenate([ids for sets in owned.values() for ids in sets.values()])
    losses = _client_losses(audit, seen, samples, reference)
    shares: list[SourceShare] = []
    for rule, by_client in losses.items():
        chosen = dict(zip(samples.tolist(), np.array(clients)[by_client.argmin(axis=0)].tolist(), strict=True))
        shares += _shares(rule, chosen, owned, audit.rates)
    sizes = [len(ids) for ids in owned["members"].values()]
    seconds = time.perf_counter() - started
    return SourceFinding(tuple(shares), len(clients), max(sizes) / max(1, sum(sizes)), tuple(notes), seconds)


NO_POPULATION = (
    "losses are not calibrated, for want of data that no client has: --data.holdout.population keeps some, such as 0.1"
)


def _reference(audit: AuditContext) -> Ids:
    """Samples to calibrate on, of the population or else of the attacker's own data; empty where there are too few."""
    knowledge = audit.knowledge
    pools = (knowledge.population, knowledge.auxiliary)
    pool = next((ids for ids in pools if len(ids) >= FEWEST), pools[0][:0])
    return np.sort(numpy_generator(knowledge.seed, "source-reference").permutation(pool)[:MOST])


def _client_losses(
    audit: AuditContext, seen: Mapping[int, Sequence[ObservedModel]], samples: Ids, reference: Ids
) -> dict[str, Array]:
    """(clients, samples) loss of every client's models by rule, mean over its rounds."""
    rows: dict[str, list[Array]] = {"loss": []}
    for models in track(list(seen.values()), "source inference", "clients"):
        made = [audit.query.run(model.snapshot, samples) for model in models]
        rows["loss"].append(np.mean([responses.losses for responses in made], axis=0))
        if len(reference):
            known = [audit.query.run(model.snapshot, reference) for model in models]
            pairs = zip(made, known, strict=True)
            rows.setdefault("calibrated", []).append(np.mean([calibrated(*pair) for pair in pairs], axis=0))
    return {rule: np.stack(losses) for rule, losses in rows.items()}


def calibrated(responses: Responses, reference: Responses) -> Array:
    """(samples,) -phi in standard deviations above the mean of -phi of other samples under the same model."""
    known = reference.margins
    return (known.mean() - responses.margins) / max(known.std(), 1e-6)


def _shares(
    rule: str, chosen: Mapping[int, int], owned: Mapping[str, Mapping[int, Ids]], rates: Sequence[float]
) -> Iterator[SourceShare]:
    members, widths = owned["members"], sorted({rates[client] for client in owned["members"]}, reverse=True)
    groups = {"all members": members}
    if len(widths) > 1:
        for rate in widths:
            own = {client: ids for client, ids in members.items() if rates[client] == rate}
            groups[f"members of width {rate:g}"] = own
    groups["non-members"] = owned["non-members"]
    for group, sets in groups.items():
        if total := sum(map(len, sets.values())):
            correct = sum(chosen[sample] == client for client, ids in sets.items() for sample in ids.tolist())
            yield SourceShare(rule, group, len(sets), correct, total)
