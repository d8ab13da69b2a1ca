"""Common parts of the papers' protocols: the attacker's labelled samples, thresholds, figures and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve as thinned_roc_curve

from app.attacks.adaptive.base import Adaptation
from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, Finding, ReportedNumber, unavailable
from app.attacks.membership.base import Threat
from app.attacks.models import AttackedModel, Ids, TargetKind
from app.attacks.protocols.base import few, guarded, measured
from app.attacks.protocols.target_selection import TargetSelection
from app.attacks.targets import Models
from app.common.errors import UserError
from app.common.progress import track
from app.common.wording import counted
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.metrics.roc import Decision

OFFICIAL_TEST = "non-members are the common test set, which need not be drawn like the members"


@dataclass(frozen=True, eq=False)
class LabelledSets:
    """Samples of one target: those that the attacker knows, and as many evaluated members as non-members."""

    known_members: Ids
    known_nonmembers: Ids
    members: Ids
    nonmembers: Ids

    @property
    def evaluated(self) -> Ids:
        """Evaluated members, then evaluated non-members."""
        return np.concatenate([self.members, self.nonmembers])

    @property
    def known(self) -> LabelledSets:
        """The known samples, as if they were evaluated."""
        return replace(self, members=self.known_members, nonmembers=self.known_nonmembers)

    @property
    def overlap(self) -> int:
        """Number of known samples that are evaluated, too."""
        inside = np.intersect1d(self.known_members, self.members).size
        return inside + np.intersect1d(self.known_nonmembers, self.nonmembers).size


def chosen_attacks(attacks: Sequence[str] | None, possible: Sequence[str], protocol: str) -> tuple[str, ...]:
    """The chosen attacks in the paper's order, None for all; refuses attacks that the paper does not have."""
    unknown = [] if attacks is None else [name for name in attacks if name not in possible]
    if unknown:
        raise UserError.of(
            f"protocol {protocol} has no attack {', '.join(map(repr, unknown))}",
            "the paper says nothing about how to evaluate it",
            f"choose from {', '.join(possible)}, or use --attacks.membership.protocol audit",
        )
    return tuple(name for name in possible if attacks is None or name in attacks)


def known_count(size: int) -> int:
    """Members that the attacker of MaPP-FL and of the taxonomy knows: max(3, floor(0.01 * size)).

    Both papers print min (MaPP-FL sec. 3.2), but say that clients below 400 samples have fewer than 4: their code has
    max.
    """
    return max(3, int(0.01 * size))


def legacy_order(pool: Ids, seed: int) -> Ids:
    """The samples permuted by NumPy's legacy generator, as in the papers' code."""
    return pool[np.random.RandomState(seed % 2**32).permutation(len(pool))]


def both_ends(members: Ids, test: Ids, known: int, most: int, seed: int, exclude_known: bool) -> LabelledSets:
    """Known samples from the front of a permuted pool, evaluated ones from its end, with one seed for both pools.

    Both are cut to the smaller pool, and evaluated ones to `most` of each kind. In the code known samples may be
    evaluated, too, unless `exclude_known`. Refused where no sample is left to evaluate.
    """
    known = min(known, len(members), len(test))
    inside, outside = legacy_order(members, seed), legacy_order(test, seed)
    fronts = inside[:known], outside[:known]
    if exclude_known:
        inside, outside = inside[known:], outside[known:]
    count = min(len(inside), len(outside), most)
    if count == 0:
        raise UserError.of(
            f"there are {counted(len(inside), 'member')} and {counted(len(outside), 'non-member')} to evaluate",
            "no accuracy can be measured",
            "let known samples be evaluated, or give the clients and the test set more samples",
        )
    return LabelledSets(*fronts, inside[len(inside) - count :], outside[len(outside) - count :])


def on_last_round(
    audit: AuditContext,
    kind: TargetKind,
    named: tuple[str, str, Threat],
    attack: Callable[[AuditContext, TargetSelection, AttackConditions], Finding],
    adaptations: tuple[Adaptation, ...] = (),
) -> Finding:
    """Finding of an attack, named with its protocol and threat, on the last models of one kind."""
    selection = TargetSelection(kind, audit.knowledge.rounds, all_rounds=False, adaptations=adaptations)
    conditions = selection.conditions(audit, *named)
    return guarded(conditions, lambda: attack(audit, selection, conditions))


def evaluated_rows(scores: Array, sets: LabelledSets, client: int) -> MembershipScores:
    """Rows of one client: its members first, then the non-members."""
    truth = np.arange(len(scores)) < len(sets.members)
    return MembershipScores.of(scores, truth, sets.evaluated, np.full(len(scores), client))


def federation_rows(audit: AuditContext, scores: Array, sets: LabelledSets) -> MembershipScores:
    """Rows of the whole federation: members with the client that owns them, then non-members of NO_CLIENT."""
    samples = sets.evaluated
    owner = np.full(len(samples), NO_CLIENT, dtype=np.int64)
    for client in audit.clients:
        owner[np.isin(samples, audit.truth.members[client])] = client
    return MembershipScores.of(scores, owner != NO_CLIENT, samples, owner)


def unit_scores(losses: Array) -> Array:
    """1 - loss, with the losses scaled to 0 .. 1; all 1 where they are equal."""
    low, width = losses.min(), np.ptp(losses)
    return 1 - (losses - low) / (width if width > 0 else 1.0)


def grid_threshold(scores: Array, truth: NDArray[np.bool_]) -> float:
    """The lowest threshold of 0, 0.01 ... 1 with the highest accuracy on known samples (member: score >= threshold)."""
    grid = np.linspace(0, 1, 101)
    return float(grid[np.argmax([((scores >= threshold) == truth).sum() for threshold in grid])])


def nearest_tpr(rows: MembershipScores, target: float) -> float:
    """TPR, 0 to 1, at the point of scikit-learn's curve whose FPR is nearest to the target, as the taxonomy's code.

    Of equally near points the first one, so it is 0 with fewer than 1 / (2 target) non-members; the FPR may lie above
    the target.
    """
    fpr, tpr, _ = thinned_roc_curve(rows.members, rows.scores)
    return float(tpr[int(np.argmin(np.abs(fpr - target)))])


def accuracy(decision: Decision) -> float:
    """Share of evaluated samples that are classified correctly, 0 to 1."""
    right = decision.true_positives + decision.nonmembers - decision.false_positives
    return right / (decision.members + decision.nonmembers)


def client_figure(name: str, values: Mapping[int, float]) -> ReportedNumber:
    """The mean over clients, and the value of every client."""
    return ReportedNumber(name, float(np.mean(list(values.values()))), tuple(sorted(values.items())))


def client_figures(values: Mapping[str, Mapping[int, float]]) -> list[ReportedNumber]:
    """Figures by name that have a value for any client."""
    return [client_figure(name, own) for name, own in values.items() if own]


@dataclass
class PaperResults:
    """Evaluated rows and decisions of a paper's attack by client, NO_CLIENT for the whole federation.

    Models that could not be attacked are `missing`, with the reason.
    """

    notes: list[str]
    rows: dict[int, MembershipScores] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def attackable(
        self, models: Models, sets: Callable[[int], LabelledSets]
    ) -> Iterator[tuple[int, AttackedModel, LabelledSets]]:
        """Every client with its model and samples, where there are both."""
        for client, model in track(models.items(), "attacked models", total=len(models), delay=0):
            if isinstance(model, NotAvailable):
                self.missing.append(model.reason)
                continue
            try:
                drawn = sets(client)
            except UserError as error:
                self.missing.append(f"client {client}: {error.problems[0].cause}")
            else:
                yield client, model, drawn

    def percent(self, measure: Callable[[Decision], float]) -> dict[int, float]:
        """A measure of every decision, in percent."""
        return {client: 100 * measure(decision) for client, decision in self.decisions.items()}

    def finding(
        self, audit: AuditContext, conditions: AttackConditions, figures: Sequence[ReportedNumber] = ()
    ) -> Finding:
        """The finding with numbers as the paper reports them; without any where no model could be attacked."""
        reasons = few(self.missing)
        if not self.rows:
            return unavailable(conditions, "; ".join(reasons) or "there is no model to attack")
        scores, notes = MembershipScores.joined(list(self.rows.values())), (*dict.fromkeys(self.notes), *reasons)
        return measured(audit, conditions, scores, list(self.decisions.values()), notes, figures)
