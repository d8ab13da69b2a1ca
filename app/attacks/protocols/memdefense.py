"""The evaluation of MemDefense: a white-box attack that is trained on half of the target's own labelled members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from app.attacks.adaptive.catalogue import called_for
from app.attacks.audit_context import AuditContext
from app.attacks.findings import AttackConditions, Finding, ReportedNumber
from app.attacks.membership.attack_net import option_problems
from app.attacks.membership.base import Threat
from app.attacks.membership.nasr import Examples, train_nasr
from app.attacks.membership.nasr_net import NasrSettings
from app.attacks.model_query import ModelQuery, last_linear
from app.attacks.models import AttackedModel, TargetKind
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.knowledge import (
    OFFICIAL_TEST,
    LabelledSets,
    accuracy,
    chosen_attacks,
    client_figure,
    concluded,
    evaluated_rows,
    federation_rows,
    legacy_order,
    on_last_round,
)
from app.attacks.protocols.target_selection import TargetSelection, adaptation_notes, resolved, seen_models
from app.attacks.responses import Ids
from app.attacks.targets import Models, uploaded_models
from app.errors import UserError, raise_all
from app.metrics.membership import NO_CLIENT, Array, NotAvailable
from app.metrics.thresholds import decide
from app.seeding import derive_key

MOST_GLOBAL = 5000
"""Members that the attack on the global model is trained on, and as many that it is tested on (Table III)."""

GRADIENT_CELLS = 256_000
"""Outputs of the gradient's kernels in Nasr et al.: 1000 kernels on a layer of 256 inputs; MemDefense tells neither."""

MOST_KERNELS = 1000

SETTINGS = NasrSettings(label_branch=False, loss="bce", lr=1e-4, epochs=100, batch_size=40, dropout=0.2, most=10**9)
"""Three branches per snapshot and Adam at 1e-4 (sec. V-B); what it leaves out is that of Nasr et al.'s code, with the
cross-entropy of Eq. 3 for its loss."""


class MemDefensePaper(Protocol):
    """Nasr et al.'s attack as MemDefense (sec. V-B, Table III) runs it, on local models and on the global one.

    Members are halved: one half, with as many test samples, trains the attack, the other half, with other test samples,
    is what its accuracy is measured on. The denominators of the printed accuracies fit that reading: 2500 with 2500
    samples per client. The paper attacks one participant that it does not name; here all of them are.
    """

    name = "memdefense"
    possible = ("nasr",)
    rounds_to_keep = frozenset({40, 60, 80, 90, 100})
    threat = Threat(
        sees="weights: gradient of the last layer, outputs of the last two",
        data="half of the target's members, labelled, and as many non-members",
        trains="an attack network per target",
    )

    def __init__(
        self,
        attacks: Sequence[str] | None = None,
        *,
        clients: int | None = None,
        settings: NasrSettings | None = None,
        adaptive: bool = True,
    ) -> None:
        """Follow the paper.

        Args:
            attacks: `nasr`, the only one.
            clients: attack the uploads of the first so many clients only; each needs an attack network of its own.
            settings: of the attack network; without any, the paper's.
            adaptive: beside the paper's attack, the same attack by a server that knows the run's defenses.
        """
        self._attacks, self._clients = chosen_attacks(attacks, self.possible, self.name), clients
        raise_all(option_problems(self.name, {} if clients is None else {"clients": clients}, {}))
        self._settings, self._adaptive = settings, adaptive

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        """Local models over several rounds, then the last global model; also by somebody who knows the defense."""
        kinds: tuple[TargetKind, ...] = ("uploads", "global") if self._attacks else ()
        for kind in kinds:
            attack = self._local if kind == "uploads" else self._global
            for adaptations in ((), *(called_for(audit.knowledge.traits, kind) if self._adaptive else ())):
                yield on_last_round(audit, kind, ("nasr", self.name, self.threat), attack, adaptations)

    def halves(self, members: Ids, test: Ids, seed: int, most: int | None = None) -> LabelledSets:
        """Equally many known and evaluated samples of each kind, all different.

        Args:
            members: of the target.
            test: where non-members come from.
            seed: of the draw.
            most: samples in each of the four parts at most.

        Raises:
            UserError: with fewer than 2 members or test samples.
        """
        count = min(len(members) // 2, len(test) // 2, len(members) if most is None else most)
        if count == 0:
            raise UserError.of(
                f"{len(members)} members and {len(test)} test samples cannot be halved",
                "the attack would have nothing to learn from, or nothing to be tested on",
                "give clients and test set at least 2 samples",
            )
        inside, outside = legacy_order(members, seed), legacy_order(test, seed)
        return LabelledSets(inside[:count], outside[:count], inside[count : 2 * count], outside[count : 2 * count])

    def rounds(self, audit: AuditContext) -> tuple[tuple[int, ...], str]:
        """Rounds to look at, and a remark where they are not the paper's."""
        kept = audit.kept_rounds
        wanted = tuple(round_ for round_ in kept if round_ in self.rounds_to_keep)
        if len(wanted) == len(self.rounds_to_keep):
            return wanted, ""
        paper = ", ".join(map(str, sorted(self.rounds_to_keep)))
        used = wanted or kept
        return used, f"local models of rounds {', '.join(map(str, used))}, where the paper has {paper}"

    def _local(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        rounds, remark = self.rounds(audit)
        models = self._local_models(audit, selection, rounds)
        rows, decisions, missing, notes = [], [], [], [*_remarks(), *([remark] if remark else [])]
        notes += adaptation_notes(models)
        for client, model in models.items():
            if self._clients is not None and client >= self._clients:
                notes.append(f"only the first {self._clients} clients were attacked")
                break
            sets = self._client_sets(audit, client)
            if isinstance(model, NotAvailable) or isinstance(sets, NotAvailable):
                missing.append(next(each.reason for each in (model, sets) if isinstance(each, NotAvailable)))
                continue
            rows.append(evaluated_rows(self._scores(audit, model, sets), sets, client))
            decisions.append(decide(rows[-1], 0.0))
            notes += _shortened(sets, audit.truth.members[client], client)
        told = {int(own.client_ids[0]): 100 * accuracy(found) for own, found in zip(rows, decisions, strict=True)}
        figures = [client_figure("A_att_l %", told)] if told else []
        return concluded(audit, conditions, rows, decisions, figures, notes, missing)

    def _local_models(self, audit: AuditContext, selection: TargetSelection, rounds: tuple[int, ...]) -> Models:
        view, reading = audit.transcript.server_view(), selection.reading(audit, rounds)
        return resolved(uploaded_models(view, audit.knowledge, rounds, "memdefense", last=False, reading=reading))

    def _global(self, audit: AuditContext, selection: TargetSelection, conditions: AttackConditions) -> Finding:
        models = seen_models(audit, selection, ())
        model = models[NO_CLIENT]
        if isinstance(model, NotAvailable):
            return concluded(audit, conditions, [], [], [], [], [model.reason])
        members = np.sort(np.concatenate(audit.truth.members))
        sets = self.halves(members, audit.truth.test, audit.knowledge.seed, MOST_GLOBAL)
        rows = federation_rows(audit, self._scores(audit, model, sets), sets)
        decision = decide(rows, 0.0)
        figures, notes = (
            [ReportedNumber("A_att_g %", 100 * accuracy(decision))],
            [*_remarks(), *adaptation_notes(models)],
        )
        return concluded(audit, conditions, [rows], [decision], figures, notes)

    def _client_sets(self, audit: AuditContext, client: int) -> LabelledSets | NotAvailable:
        try:
            return self.halves(audit.truth.members[client], audit.truth.test, audit.knowledge.seed)
        except UserError as error:
            return NotAvailable(f"client {client}: {error.problems[0].cause}")

    def _scores(self, audit: AuditContext, model: AttackedModel, sets: LabelledSets) -> Array:
        """Logits of the member class: 0 or more is a probability of 1/2 or more."""
        examples = Examples(model, sets.known_members, sets.known_nonmembers)
        seed = derive_key(audit.knowledge.seed, "memdefense", model.client)
        settings = self._settings or paper_settings(audit.query, model)
        trained = train_nasr(audit.query, [examples], settings, seed)
        return trained.scores(model, np.concatenate([sets.members, sets.nonmembers]))


def paper_settings(query: ModelQuery, model: AttackedModel) -> NasrSettings:
    """The paper's attack network, with as many kernels as give the wide layers of a target no larger a network."""
    inputs = max(last_linear(query.network(snapshot)).in_features for snapshot in model.snapshots)
    return replace(SETTINGS, kernels=max(1, min(MOST_KERNELS, GRADIENT_CELLS // inputs)))


def _remarks() -> list[str]:
    return ["the attack is trained on labelled members of the target itself", OFFICIAL_TEST]


def _shortened(sets: LabelledSets, members: Ids, client: int) -> list[str]:
    if len(sets.members) >= len(members) // 2:
        return []
    return [f"client {client} has more members than half the test set: only {2 * len(sets.members)} of them are used"]
