"""Evaluation of the taxonomy of integration methods: three attacks on every client's last upload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, Finding, ReportedNumber
from app.attacks.membership import attack_net
from app.attacks.membership.distillation import TeacherMode
from app.attacks.protocols import papers
from app.attacks.protocols.base import Protocol, guarded
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.protocols.taxonomy_attacks import ATTACKS, THREATS, Confidence, TaxonomyContext
from app.common.errors import raise_all
from app.common.ranges import Count
from app.federation.evaluation import evaluates_by_batch
from app.metrics.roc import roc_curve
from app.metrics.thresholds import decide

MOST_EVALUATED = 5000


class Taxonomy(Protocol):
    """Yeom, LiRA and tMIA as in the taxonomy's sec. IV-A and App. B, with the sets of its code.

    The attacker chooses a threshold on samples it knows. AUC, advantage and TPR at 0.1 % FPR are given in percent, and
    their means over the attacks, as in the paper's figures.

    Args:
        attacks: some of `yeom`, `lira` and `tmia`.
        shadows: shadow models of LiRA per client.
        shadow_size: samples that each of them is trained on, at most.
        shadow_epochs: epochs of every shadow.
        conf: LiRA's confidence; `max` follows the code.
        ordered_quarters: cut tMIA's data in the order of the clients, as the code does, instead of shuffled.
        teacher_mode: mode of the distilled network; `train` follows the code.
        student_epochs: epochs of tMIA's distillation.
        attack_epochs: epochs of tMIA's attack network.
    """

    name = "taxonomy"
    possible = ("yeom", "lira", "tmia")

    def __init__(
        self,
        attacks: Sequence[str] | None = None,
        *,
        shadows: Count = 16,
        shadow_size: Count = 10_000,
        shadow_epochs: Count = 100,
        conf: Confidence = "true",
        ordered_quarters: bool = False,
        teacher_mode: TeacherMode = "eval",
        student_epochs: Count = 25,
        attack_epochs: Count = 30,
    ) -> None:
        self._attacks = papers.chosen_attacks(attacks, self.possible, self.name)
        raise_all(
            attack_net.choice_problem(self.name, "conf", conf, Confidence),
            attack_net.choice_problem(self.name, "teacher_mode", teacher_mode, TeacherMode),
        )
        self.shadows, self.shadow_size, self.shadow_epochs = shadows, shadow_size, shadow_epochs
        self.conf, self.ordered_quarters, self.teacher_mode = conf, ordered_quarters, teacher_mode
        self.student_epochs, self.attack_epochs = student_epochs, attack_epochs

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        """The attacks on all last uploads; the last result also has the means over the attacks."""
        context, figures = TaxonomyContext(audit, self), {}
        selection = TargetSelection("uploads", audit.knowledge.rounds, all_rounds=False)
        for name in self._attacks:
            conditions = selection.conditions(audit, name, self.name, THREATS[name], self._shadows(name))
            finding = guarded(conditions, partial(self._attacked, context, selection, conditions))
            figures[name] = finding.figures
            if name == self._attacks[-1]:
                finding = replace(finding, figures=(*finding.figures, *mean_figures(figures)))
            yield finding

    def sets(self, audit: AuditContext, client: int) -> papers.LabelledSets:
        """The first samples of client and test set, at most 5000 of each, and known ones drawn from all of them."""
        members, test, seed = audit.truth.members[client], audit.truth.test, audit.knowledge.seed
        known, count = papers.known_count(len(members)), min(len(members), len(test), MOST_EVALUATED)
        fronts = papers.legacy_order(members, seed)[:known], papers.legacy_order(test, seed)[:known]
        return papers.LabelledSets(*fronts, members[:count], test[:count])

    def _attacked(self, context: TaxonomyContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        context.notes = [*_common_notes(context.audit), *self._notes(conditions.attack)]
        results = papers.PaperResults(context.notes)
        models = seen_models(context.audit, selection, ())
        for client, model, sets in results.attackable(models, partial(self.sets, context.audit)):
            scores = ATTACKS[conditions.attack](context, model, sets)
            truth = np.arange(len(scores.known)) < len(sets.known_members)
            unit = papers.evaluated_rows(scores.evaluated, sets, client)
            results.decisions[client] = decide(unit, papers.grid_threshold(scores.known, truth), "knowledge")
            results.rows[client] = papers.evaluated_rows(scores.ranks, sets, client)
        return results.finding(context.audit, conditions, _figures(results))

    def _shadows(self, attack: str) -> str:
        return {"yeom": "none", "lira": f"{self.shadows} central", "tmia": "1 central"}[attack]

    def _notes(self, attack: str) -> list[str]:
        if attack == "yeom":
            return [
                "losses of known and of evaluated samples are scaled separately, so the threshold does not carry over"
            ]
        notes = ["shadows have the server's width and are trained on the other clients' members, whatever the target"]
        if attack == "lira":
            largest = "LiRA uses the largest probability, as the code does, not that of the true class"
            true = "LiRA uses the probability of the true class, as the paper says; its code takes the largest"
            return [*notes, largest if self.conf == "max" else true]
        if self.ordered_quarters:
            return [*notes, "tMIA's shadow members and non-members come from different clients, as in the code"]
        return notes


def mean_figures(figures: Mapping[str, Sequence[ReportedNumber]]) -> list[ReportedNumber]:
    """Mean over the attacks of every figure, client by client, then over clients; none with fewer than 2 attacks."""
    present = {name: own for name, own in figures.items() if own}
    if len(present) < 2:
        return []
    means = []
    for same in zip(*present.values(), strict=True):
        values = [dict(figure.per_client) for figure in same]
        by_client = {client: float(np.mean([value[client] for value in values])) for client in values[0]}
        means.append(papers.client_figure(f"mean {same[0].name} of {', '.join(present)}", by_client))
    return means


def _figures(results: papers.PaperResults) -> list[ReportedNumber]:
    areas = {client: 100 * roc_curve(own).auc for client, own in results.rows.items()}
    # the tables' 0.1 %; the text's "0.1 (10%)" (sec. IV-A) does not fit their values
    rates = {client: 100 * papers.nearest_tpr(own, 0.001) for client, own in results.rows.items()}
    advantages = results.percent(lambda decision: decision.advantage)
    return papers.client_figures({"AUC %": areas, "Adv %": advantages, "TPR % at 0.1 % FPR": rates})


def _common_notes(audit: AuditContext) -> list[str]:
    notes = [
        "the attacker is given labelled members of the target, and they are among the evaluated",
        papers.OFFICIAL_TEST,
        "TPR is taken at the nearest point of the curve, whose FPR may lie above 0.1 %",
    ]
    if evaluates_by_batch(audit.knowledge.prototype):
        notes.append(
            "members and non-members are queried separately: the statistics of each batch reveal which is which"
        )
    return notes
