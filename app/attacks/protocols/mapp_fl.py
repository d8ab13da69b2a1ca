"""Evaluation of MaPP-FL: a loss threshold from 1 % labelled members, on the last uploads and the server's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, Finding, ReportedNumber
from app.attacks.membership.base import Threat
from app.attacks.models import AttackedModel, Ids, Responses
from app.attacks.protocols import papers
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.federation.evaluation import evaluates_by_batch
from app.metrics.correlation import SizeCorrelation, size_correlation
from app.metrics.membership import NO_CLIENT, Array, MembershipScores
from app.metrics.roc import Decision
from app.metrics.thresholds import decide_with_knowledge

MOST_EVALUATED = 5000
SERVER_KNOWLEDGE = 500
"""Members of the whole federation known to the attacker of the server's model: 1 % of CIFAR's 50,000."""

CHUNK = 1000
"""Samples per query."""

SMALLEST_CLIENT = 400
"""Clients with fewer samples are left out of the correlation (sec. 3.2)."""

Rule = Callable[[Array, NDArray[np.bool_]], float]
"""A threshold, from the losses of known samples and whether each is a member."""


class MappFL(Protocol):
    """Yeom's attack as MaPP-FL (sec. 3.1 and 3.2) and its code run it.

    A sample counts as a member where its loss lies below the mean loss of known members (Eq. 2); the advantage is
    2 (accuracy - 50) in percent (Eq. 4). The further thresholds of the code are reported, too.

    Args:
        attacks: `yeom`, the only one.
        exclude_known: evaluate no sample that the attacker knows; the code does.
    """

    name = "mapp-fl"
    possible = ("yeom",)
    threat = Threat(sees="loss on the sample", data="labelled members and non-members of the target", trains="nothing")

    def __init__(self, attacks: Sequence[str] | None = None, *, exclude_known: bool = False) -> None:
        self._attacks, self._exclude = papers.chosen_attacks(attacks, self.possible, self.name), exclude_known

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        if self._attacks:
            yield papers.on_last_round(audit, "uploads", ("yeom", self.name, self.threat), self._uploads)
            yield papers.on_last_round(audit, "global", ("yeom", self.name, self.threat), self._server)

    def sets(self, members: Ids, test: Ids, known: int, seed: int) -> papers.LabelledSets:
        """Known and evaluated samples of one target, at most 5000 evaluated ones of each kind."""
        return papers.both_ends(members, test, known, MOST_EVALUATED, seed, self._exclude)

    def _uploads(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        def own_sets(client: int) -> papers.LabelledSets:
            members = audit.truth.members[client]
            return self.sets(members, audit.truth.test, papers.known_count(len(members)), audit.knowledge.seed)

        results, advantages = papers.PaperResults(_notes(audit)), {}
        for client, model, sets in results.attackable(seen_models(audit, selection, ()), own_sets):
            losses = _losses(audit, model, sets)
            results.rows[client] = papers.evaluated_rows(-losses.evaluated, sets, client)
            known = papers.evaluated_rows(-losses.known, sets.known, client)
            results.decisions[client] = self._decision(results.rows[client], known)
            results.notes += _overlaps(sets)
            advantages[client] = losses.advantages()
        names = next(iter(advantages.values()), {})
        by_name = {name: {client: own[name] for client, own in advantages.items()} for name in names}
        figures = papers.client_figures(by_name)
        extra, reason = _correlation(audit, figures)
        results.notes += reason
        return results.finding(audit, conditions, [*figures, *extra])

    def _server(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        (model,) = seen_models(audit, selection, ()).values()
        assert isinstance(model, AttackedModel)
        members = np.sort(np.concatenate(audit.truth.members))
        sets = self.sets(members, audit.truth.test, SERVER_KNOWLEDGE, audit.knowledge.seed)
        losses = _losses(audit, model, sets)
        rows = papers.federation_rows(audit, -losses.evaluated, sets)
        decision = self._decision(rows, papers.federation_rows(audit, -losses.known, sets.known))
        figures = [ReportedNumber(name, value) for name, value in losses.advantages().items()]
        notes = [*_notes(audit), *_overlaps(sets)]
        return papers.PaperResults(notes, {NO_CLIENT: rows}, {NO_CLIENT: decision}).finding(audit, conditions, figures)

    def _decision(self, rows: MembershipScores, known: MembershipScores) -> Decision:
        return decide_with_knowledge(rows, known, "mean", allow_overlap=not self._exclude)


@dataclass(frozen=True, eq=False)
class YeomLosses:
    """Losses and classes of the evaluated and of the known samples of one target, members before as many others."""

    evaluated: Array
    labels: Ids
    known: Array
    known_labels: Ids

    def advantages(self) -> dict[str, float]:
        """Adv in percent, -100 to 100, of every threshold in the code."""
        truth = _first_half(self.known)
        thresholds: dict[str, float | Array] = {
            "Adv %": mean_rule(self.known, truth),
            "Adv % with the best threshold": best_rule(self.known, truth),
            "Adv % with a threshold per class": self._by_class(mean_rule),
            "Adv % with the best threshold per class": self._by_class(best_rule),
        }
        members = _first_half(self.evaluated)
        return {name: advantage(self.evaluated < threshold, members) for name, threshold in thresholds.items()}

    def _by_class(self, rule: Rule) -> Array:
        """A threshold for every evaluated sample; classes without a known member take that of all classes."""
        truth = _first_half(self.known)
        thresholds = np.full(len(self.labels), rule(self.known, truth))
        for label in np.unique(self.known_labels[truth]):
            rows = self.known_labels == label
            thresholds[self.labels == label] = rule(self.known[rows], truth[rows])
        return thresholds


def mean_rule(losses: Array, truth: NDArray[np.bool_]) -> float:
    """Mean loss of the known members."""
    return float(losses[truth].mean())


def best_rule(losses: Array, truth: NDArray[np.bool_]) -> float:
    """Mean plus k standard deviations of the known members' losses, with the first most accurate k from -5 to 5."""
    thresholds = losses[truth].mean() + np.linspace(-5, 5, 1001) * losses[truth].std()
    right = [int(((losses < threshold) == truth).sum()) for threshold in thresholds]
    return float(thresholds[int(np.argmax(right))])


def advantage(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    """Adv = 2 (accuracy - 50) in percent (Eq. 4), -100 to 100; 0 at chance on balanced sets."""
    return 200 * (float((predicted == truth).mean()) - 0.5)


def _first_half(values: Array) -> NDArray[np.bool_]:
    return np.arange(len(values)) < len(values) // 2


def _losses(audit: AuditContext, model: AttackedModel, sets: papers.LabelledSets) -> YeomLosses:
    """Known members, known non-members and the evaluated samples are queried one after the other."""
    known = Responses.joined(
        [audit.query.in_order(model.last, part, CHUNK) for part in (sets.known_members, sets.known_nonmembers)]
    )
    evaluated = audit.query.in_order(model.last, sets.evaluated, CHUNK)
    return YeomLosses(evaluated.losses, evaluated.labels, known.losses, known.labels)


def _correlation(audit: AuditContext, figures: list[ReportedNumber]) -> tuple[list[ReportedNumber], list[str]]:
    """Figure 1(a): Pearson correlation of log10 size and advantage, or why there is none."""
    if not figures:
        return [], []
    clients, values = zip(*figures[0].per_client, strict=True)
    sizes = [len(audit.truth.members[client]) for client in clients]
    correlation = size_correlation(sizes, values, SMALLEST_CLIENT)
    if isinstance(correlation, SizeCorrelation):
        return [ReportedNumber("Pearson of log10 size and Adv", correlation.pearson.value)], []
    return [], [
        f"no correlation of size and Adv over clients with {SMALLEST_CLIENT} or more samples: {correlation.reason}"
    ]


def _overlaps(sets: papers.LabelledSets) -> list[str]:
    return ["some known samples are also evaluated, as in the paper's code"] if sets.overlap else []


def _notes(audit: AuditContext) -> list[str]:
    notes = ["the attacker is given labelled members of the target itself", papers.OFFICIAL_TEST]
    if evaluates_by_batch(audit.knowledge.prototype):
        notes.append("members are queried before non-members: the statistics of each batch reveal which is which")
    return notes
