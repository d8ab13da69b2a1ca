"""Evaluation of MemDefense: a white-box attack that is trained on half of the target's own members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from app.attacks.adaptive.catalogue import called_for
from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, Finding, ReportedNumber, unavailable
from app.attacks.membership.base import Threat
from app.attacks.membership.nasr import NasrSettings, TrainedNasr, train_nasr
from app.attacks.model_query import ModelQuery, last_linear
from app.attacks.models import AttackedModel, Ids, Shadow, TargetKind
from app.attacks.protocols import papers
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.target_selection import TargetSelection, adaptation_notes, resolved, seen_models
from app.attacks.targets import Models, uploaded_models
from app.common.errors import UserError
from app.common.ranges import Count
from app.common.seeding import derive_key
from app.common.wording import counted
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.metrics.thresholds import decide

MOST_GLOBAL = 5000
"""Members that the attack on the global model is trained on, and as many that it is tested on (Table III)."""

GRADIENT_OUTPUTS = 256_000
"""Outputs of the gradient's kernels in Nasr et al.: 1000 kernels on 256 inputs; MemDefense states neither."""

SETTINGS = NasrSettings(label_branch=False, loss="bce", lr=1e-4, epochs=100, batch_size=40, dropout=0.2, most=10**9)
"""Three branches per snapshot and Adam at 1e-4 (sec. V-B); unstated settings are those of Nasr et al.'s code, with the
cross-entropy of Eq. 3 as the loss."""

NOTES: tuple[str, ...] = ("the attack is trained on labelled members of the target itself", papers.OFFICIAL_TEST)


class MemDefensePaper(Protocol):
    """Nasr et al.'s attack as MemDefense (sec. V-B, Table III) runs it, on local models and on the global one.

    One half of the members, with as many test samples, trains the attack; its accuracy is measured on the other half,
    with other test samples. The denominators of the printed accuracies agree: 2500 with 2500 samples per client. The
    paper attacks one participant that it does not name; here all of them are attacked.

    Args:
        attacks: `nasr`, the only one.
        clients: attack the uploads of the first so many clients only; each needs an attack network of its own.
        settings: of the attack network; without any, the paper's.
        adaptive: beside the paper's attack, the same attack by a server that knows the run's defenses.
    """

    name = "memdefense"
    possible = ("nasr",)
    rounds_to_keep = frozenset({40, 60, 80, 90, 100})
    notes = NOTES
    threat = Threat(
        sees="weights: gradient of the last layer, outputs of the last two",
        data="half of the target's members, labelled, and as many non-members",
        trains="an attack network per target",
    )

    def __init__(
        self,
        attacks: Sequence[str] | None = None,
        *,
        clients: Count | None = None,
        settings: NasrSettings | None = None,
        adaptive: bool = True,
    ) -> None:
        self._attacks, self._clients = papers.chosen_attacks(attacks, self.possible, self.name), clients
        self._settings, self._adaptive = settings, adaptive

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        kinds: tuple[TargetKind, ...] = ("uploads", "global") if self._attacks else ()
        for kind in kinds:
            attack = self._local if kind == "uploads" else self._global
            for adaptations in ((), *(called_for(audit.knowledge.traits, kind) if self._adaptive else ())):
                yield papers.on_last_round(audit, kind, ("nasr", self.name, self.threat), attack, adaptations)

    def halves(self, members: Ids, test: Ids, seed: int, most: int | None = None) -> papers.LabelledSets:
        """As many known as evaluated samples of each kind, at most `most` each; all different."""
        count = min(len(members) // 2, len(test) // 2, len(members) if most is None else most)
        if count == 0:
            raise UserError.of(
                f"{counted(len(members), 'member')} and {counted(len(test), 'test sample')} cannot be halved",
                "the attack would have no samples to learn from, or none to be tested on",
                "give clients and test set at least 2 samples",
            )
        inside, outside = papers.legacy_order(members, seed), papers.legacy_order(test, seed)
        return papers.LabelledSets(
            inside[:count], outside[:count], inside[count : 2 * count], outside[count : 2 * count]
        )

    def rounds(self, audit: AuditContext) -> tuple[tuple[int, ...], str]:
        """Rounds to attack, and a note where they are not the paper's."""
        kept = audit.kept_rounds
        present = tuple(round_ for round_ in kept if round_ in self.rounds_to_keep)
        if len(present) == len(self.rounds_to_keep):
            return present, ""
        paper = ", ".join(map(str, sorted(self.rounds_to_keep)))
        used = present or kept
        return used, f"local models of rounds {', '.join(map(str, used))}, where the paper has {paper}"

    def _local(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        def halves(client: int) -> papers.LabelledSets:
            return self.halves(audit.truth.members[client], audit.truth.test, audit.knowledge.seed)

        rounds, note = self.rounds(audit)
        view, reading = audit.transcript.server_view(), selection.reading(audit, rounds)
        models = resolved(uploaded_models(view, audit.knowledge, rounds, "memdefense", last=False, reading=reading))
        results = papers.PaperResults([*self.notes, *([note] if note else []), *adaptation_notes(models)])
        chosen = self._attacked(models)
        for client, model, sets in results.attackable(chosen, halves):
            scores = self._trained(audit, models, model, sets).scores(model, sets.evaluated)
            results.rows[client] = papers.evaluated_rows(scores, sets, client)
            results.decisions[client] = decide(results.rows[client], 0.0)
            if len(sets.members) < len(audit.truth.members[client]) // 2:
                used = f"only {2 * len(sets.members)} of them are used"
                results.notes.append(f"client {client} has more members than half the test set: {used}")
        if self._clients is not None and len(chosen) < len(models):
            results.notes.append(f"only the first {counted(self._clients, 'client')} were attacked")
        figures = papers.client_figures({"A_att_l %": results.percent(papers.accuracy)})
        return results.finding(audit, conditions, figures)

    def _global(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        models = seen_models(audit, selection, ())
        model = models[NO_CLIENT]
        if isinstance(model, NotAvailable):
            return unavailable(conditions, model.reason)
        sets = self._global_sets(audit)
        trained = self._trained(audit, models, model, sets)
        rows = papers.federation_rows(audit, trained.scores(model, sets.evaluated), sets)
        decision = decide(rows, 0.0)
        figures, notes = [ReportedNumber("A_att_g %", 100 * papers.accuracy(decision))], adaptation_notes(models)
        results = papers.PaperResults([*self.notes, *notes], {NO_CLIENT: rows}, {NO_CLIENT: decision})
        return replace(results.finding(audit, conditions, figures), hidden=trained.hidden(model, rows.samples))

    def _attacked(self, models: Models) -> Models:
        """The uploads to attack."""
        return {client: own for client, own in models.items() if self._clients is None or client < self._clients}

    def _global_sets(self, audit: AuditContext) -> papers.LabelledSets:
        """Samples of the attack on the global model."""
        members = np.sort(np.concatenate(audit.truth.members))
        return self.halves(members, audit.truth.test, audit.knowledge.seed, MOST_GLOBAL)

    def _trained(
        self, audit: AuditContext, models: Models, model: AttackedModel, sets: papers.LabelledSets
    ) -> TrainedNasr:
        """The attack network for one of the models."""
        known = Shadow(model, sets.known_members, sets.known_nonmembers)
        seed = derive_key(audit.knowledge.seed, "memdefense", model.client)
        settings = self._settings or paper_settings(audit.query, model)
        return train_nasr(audit.query, [known], settings, seed)


def paper_settings(query: ModelQuery, model: AttackedModel) -> NasrSettings:
    """The paper's attack network, with fewer kernels for wide layers, so that it is no larger than in Nasr et al."""
    inputs = max(last_linear(query.network(snapshot)).in_features for snapshot in model.snapshots)
    return replace(SETTINGS, kernels=max(1, min(1000, GRADIENT_OUTPUTS // inputs)))
