"""Evaluation of WAFFLe: attack models from three shadows, on the released model and on intercepted uploads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.audit_context import AuditContext
from app.attacks.context import AttackContext, ShadowKind, ShadowSet, ShadowSource
from app.attacks.findings import AttackConditions, Finding
from app.attacks.membership.shokri import Shokri
from app.attacks.models import AttackedModel, Ids, Shadow, TargetKind
from app.attacks.protocols import papers
from app.attacks.protocols.base import Protocol, guarded
from app.attacks.protocols.target_selection import TargetSelection, adaptation_notes, seen_models
from app.attacks.public_knowledge import no_samples
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob
from app.attacks.shadows.private_parts import reading_notes, shadow_reading
from app.attacks.shadows.shadow_store import ShadowOrder, train_or_find
from app.attacks.shadows.splits import FEWEST, shared_size
from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Count
from app.common.seeding import derive_key, numpy_generator
from app.common.wording import counted
from app.metrics.membership import NO_CLIENT
from app.metrics.roc import Decision
from app.metrics.thresholds import decide

UNSTATED = "the paper states neither the data of its shadows nor its attack models: both follow Shokri et al."
OTHERS_DATA = "shadows are trained on the other clients' members, for want of data of the attacker's own"


@dataclass(frozen=True)
class FixedShadows(ShadowSource):
    """Existing shadows, the same for every target."""

    made: tuple[Shadow, ...]

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        return ShadowSet(self.made[:first])


class ShadowMaker:
    """Trains `count` shadows per target, on data without the attacked client's members."""

    def __init__(self, audit: AuditContext, count: int) -> None:
        self._audit, self._count = audit, count
        self._cache = ShadowCache(audit.cache)
        self._made: dict[tuple[object, ...], FixedShadows] = {}

    @property
    def own_data(self) -> bool:
        return len(self._audit.knowledge.auxiliary) >= FEWEST

    def pool(self, client: int) -> Ids:
        """The attacker's own data, or the members of all other clients."""
        if self.own_data:
            return self._audit.knowledge.auxiliary
        others = [own for other, own in enumerate(self._audit.truth.members) if other != client]
        if sum(map(len, others)) < FEWEST:
            raise UserError.of(
                f"there are {counted(sum(map(len, others)), 'sample')} beside those of client {client}",
                "no shadow model can be trained",
                "use more clients, or keep some data out of training with --data.holdout.shadow",
            )
        return np.concatenate(others)

    def shadows(self, target: AttackedModel, client: int) -> FixedShadows:
        """Shadows for an attack on a client's members, with the target's width and recipe."""
        owner, size = NO_CLIENT if self.own_data else client, shared_size(target.size)
        key = (owner, size, target.last.rate, target.rounds, shadow_reading(self._audit.knowledge, target.reading))
        if key not in self._made:
            self._made[key] = self._make(target, owner, self.pool(client), size)
        return self._made[key]

    def _make(self, target: AttackedModel, owner: int, pool: Ids, size: int) -> FixedShadows:
        seed, half = self._audit.knowledge.seed, min(size, len(pool) // 2)
        draws = [numpy_generator(seed, "waffle-draws", owner, number) for number in range(self._count)]
        orders = [generator.permutation(pool) for generator in draws]
        key, rate = derive_key(seed, "waffle-shadows", owner, size), target.last.rate
        jobs = [ShadowJob(number, rate, np.sort(order[:half]), key) for number, order in enumerate(orders)]
        wanted = ShadowOrder(jobs, target.rounds, NO_CLIENT, target.reading)
        (models,) = train_or_find(self._audit.knowledge, [wanted], self._cache)
        made = zip(models, jobs, orders, strict=True)
        return FixedShadows(
            tuple(Shadow(model, job.samples, np.sort(order[half : 2 * half])) for model, job, order in made)
        )


class WafflePaper(Protocol):
    """Membership inference as in WAFFLe's sec. 4.4 and Table 3: Shokri et al.'s attack with three shadow models.

    Every client's members are compared with test samples, on the released model and on the client's intercepted upload,
    which the text of the paper is about. Private coordinates have the broadcast's values; where they are a choice of
    factors, an attacker who knows the method estimates it.

    Args:
        attacks: `shokri`, the only one.
        shadows: shadow models per target.
        targets: attacked models: the released one, the clients' uploads, or both.
        clients: attack the first so many clients only; without data of the attacker's own, each needs shadows.
        adaptive: where the run hides which factors clients use, attack uploads a second time with the factors that an
            attacker who knows the method estimates.
    """

    name = "waffle"
    possible = ("shokri",)

    def __init__(
        self,
        attacks: Sequence[str] | None = None,
        *,
        shadows: Count = 3,
        targets: Sequence[TargetKind] = ("global", "uploads"),
        clients: Count | None = None,
        adaptive: bool = True,
    ) -> None:
        self._attacks = papers.chosen_attacks(attacks, self.possible, self.name)
        unknown = [kind for kind in targets if kind not in ("global", "uploads")]
        problems = [Problem(f"waffle has no target {kind!r}", "", "choose global or uploads") for kind in unknown]
        raise_all(problems)
        self._shadows, self._targets, self._clients = shadows, tuple(targets), clients
        self._adaptive = adaptive

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        maker, attack = ShadowMaker(audit, self._shadows), Shokri()
        for selection in self._selections(audit):
            shadows = f"{self._shadows} central"
            conditions = selection.conditions(audit, attack.name, self.name, attack.threat, shadows)
            yield guarded(conditions, partial(self._attacked, audit, maker, attack, selection, conditions))

    def _selections(self, audit: AuditContext) -> Iterator[TargetSelection]:
        for kind in self._targets if self._attacks else ():
            yield TargetSelection(kind, audit.knowledge.rounds, all_rounds=False)
            if self._adaptive and kind == "uploads" and "hidden-choice" in audit.knowledge.traits:
                yield TargetSelection(kind, audit.knowledge.rounds, all_rounds=False, adaptations=(FactorChoice(),))

    def sets(self, audit: AuditContext, client: int) -> papers.LabelledSets:
        """The client's members and as many test samples; the attacker knows none of them."""
        members, test = (
            papers.legacy_order(ids, audit.knowledge.seed) for ids in (audit.truth.members[client], audit.truth.test)
        )
        count = min(len(members), len(test))
        return papers.LabelledSets(no_samples(), no_samples(), members[:count], test[:count])

    def _attacked(
        self,
        audit: AuditContext,
        maker: ShadowMaker,
        attack: Shokri,
        selection: TargetSelection,
        conditions: AttackConditions,
    ) -> Finding:
        seen = seen_models(audit, selection, ())
        notes = [papers.OFFICIAL_TEST, UNSTATED, *([] if maker.own_data else [OTHERS_DATA])]
        results = papers.PaperResults([*notes, *reading_notes(audit.knowledge), *adaptation_notes(seen)])
        models = {client: seen[client if client in seen else NO_CLIENT] for client in audit.clients[: self._clients]}
        for client, model, sets in results.attackable(models, partial(self.sets, audit)):
            context = AttackContext(audit.knowledge, audit.query, maker.shadows(model, client), model)
            scores = attack.scores(model, sets.evaluated, context)
            results.rows[client] = papers.evaluated_rows(scores, sets, client)
            results.decisions[client] = decide(results.rows[client], 0.0)
            results.notes += context.notes
        if self._clients is not None and self._clients < len(audit.clients):
            results.notes.append(f"only the first {counted(self._clients, 'client')} were attacked")
        measures = {"accuracy %": papers.accuracy, "F1 %": f1_score}
        figures = papers.client_figures({name: results.percent(measure) for name, measure in measures.items()})
        return results.finding(audit, conditions, figures)


def f1_score(decision: Decision) -> float:
    """Harmonic mean of precision and recall with members as positives, 0 to 1."""
    wrong = decision.false_positives + decision.members - decision.true_positives
    return 2 * decision.true_positives / (2 * decision.true_positives + wrong)
