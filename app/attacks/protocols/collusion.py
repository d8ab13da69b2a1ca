"""MemDefense's strongest adversary (sec. III-A, type III): the server and p participants, all honest but curious."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from app.attacks.audit_context import AuditContext
from app.attacks.findings import Finding
from app.attacks.membership.base import Threat
from app.attacks.membership.nasr import NasrSettings, TrainedNasr, train_nasr
from app.attacks.models import AttackedModel, Shadow
from app.attacks.protocols import papers
from app.attacks.protocols.memdefense import MOST_GLOBAL, MemDefensePaper, paper_settings
from app.attacks.targets import Models
from app.common.errors import UserError
from app.common.ranges import Count, Whole
from app.common.seeding import derive_key
from app.metrics.membership import NO_CLIENT, NotAvailable


class MemDefenseCollusion(MemDefensePaper):
    """The white-box attack by a server and participants who give it their data and uploads (sec. III-A, type III).

    The attack network learns from the colluders: their uploads are the models, their training sets the members. It is
    then applied to the uploads of the others, none of whose members it knows, and to the global model, of which the
    colluders know a part of the members. The paper states this adversary, but its experiments give the attacker half of
    the target's own members; it prints no figures for this one.

    Where the channel hides uploads, there is no local model: colluders can take their own uploads off a sum, which
    leaves a sum over the others. Under encryption each colluder holds the private key
    (`--defenses.paillier.colluding true`).

    Args:
        colluders: participants that help the server, by number; 1 or more of them.
        clients: attack the uploads of the first so many of the others only.
        settings: of the attack network; without any, the paper's.
        adaptive: beside that attack, the same attack by adversaries who know the run's defenses.
    """

    name = "memdefense-collusion"
    threat = Threat(
        sees="weights: gradient of the last layer, outputs of the last two",
        data="the training sets of the colluding participants, and as many non-members",
        trains="an attack network on the colluders' uploads",
    )
    notes = (
        "the attack is trained on labelled members of the colluding participants, none of them the target's",
        papers.OFFICIAL_TEST,
    )

    def __init__(
        self,
        colluders: Sequence[Whole] = (0,),
        *,
        clients: Count | None = None,
        settings: NasrSettings | None = None,
        adaptive: bool = True,
    ) -> None:
        super().__init__(clients=clients, settings=settings, adaptive=adaptive)
        self._colluders = tuple(dict.fromkeys(colluders))
        self._networks: dict[tuple[object, ...], TrainedNasr] = {}
        if not self._colluders:
            consequence, remedy = "the server would have no data to learn from", "name one participant or more"
            raise UserError.of("no participant is to collude", consequence, remedy)

    def findings(self, audit: AuditContext) -> Iterator[Finding]:
        self._networks = {}
        for finding in super().findings(audit):
            yield replace(finding, conditions=replace(finding.conditions, adversary="colluding-clients"))

    def _attacked(self, models: Models) -> Models:
        """Uploads of those who do not collude; where they are hidden, what colluders can learn nevertheless."""
        others = [client for client in models if client not in self._colluders]
        attacked: Models = {}
        for client in others[: self._clients]:
            model = models[client]
            if isinstance(model, NotAvailable):
                attacked[client] = NotAvailable(model.reason + self._left(len(others), model.reason))
            elif not self._alike(models, model):
                reason = f"no colluder has uploaded models of width {model.last.rate:g} in the same rounds"
                attacked[client] = NotAvailable(reason)
            else:
                attacked[client] = model
        return attacked

    def _alike(self, models: Models, model: AttackedModel) -> list[AttackedModel]:
        """Colluders' models of the same widths in the same rounds."""
        seen = [(snapshot.round, snapshot.rate) for snapshot in model.snapshots]
        own = [one for client in self._colluders if isinstance(one := models.get(client), AttackedModel)]
        return [one for one in own if [(snapshot.round, snapshot.rate) for snapshot in one.snapshots] == seen]

    def _left(self, others: int, reason: str) -> str:
        """What colluders add to the view of a server that sees no local models."""
        if "ciphertext" in reason:
            return ", but a colluder could open them (--defenses.NAME.colluding true)"
        if "masked" not in reason:
            return ""
        left = f"that of {others} others" if others > 1 else "the upload of the only other client, which nothing hides"
        return f"; less the colluders' own uploads, the sum is {left}"

    def _global_sets(self, audit: AuditContext) -> papers.LabelledSets:
        """Members of colluders to learn from, members of the others to test on, and test samples for both."""
        seed, members = audit.knowledge.seed, audit.truth.members
        helping = np.isin(np.arange(len(members)), self._colluders)
        parts = ([own for own, helps in zip(members, helping, strict=True) if helps == side] for side in (True, False))
        known, others = (papers.legacy_order(np.sort(np.concatenate([members[0][:0], *own])), seed) for own in parts)
        outside = papers.legacy_order(audit.truth.test, seed)
        count = min(len(known), len(others), len(outside) // 2, MOST_GLOBAL)
        if count == 0:
            raise UserError.of(
                f"members of colluders: {len(known)}, of others: {len(others)}, test samples: {len(outside)}",
                "the attack would have no samples to learn from, or none to be tested on",
                "let some clients collude, and not all of them",
            )
        return papers.LabelledSets(known[:count], outside[:count], others[:count], outside[count : 2 * count])

    def _trained(
        self, audit: AuditContext, models: Models, model: AttackedModel, sets: papers.LabelledSets
    ) -> TrainedNasr:
        """The attack network on the uploads of colluders of the same widths, shared by all such targets."""
        if model.client == NO_CLIENT:
            return super()._trained(audit, models, model, sets)
        alike = self._alike(models, model)
        key = (*(one.key for one in alike), len(sets.known_nonmembers))
        if key not in self._networks:
            members = audit.truth.members
            examples = [Shadow(one, members[one.client], sets.known_nonmembers) for one in alike]
            settings = self._settings or paper_settings(audit.query, model)
            seed = derive_key(audit.knowledge.seed, self.name, *(one.client for one in alike))
            self._networks[key] = train_nasr(audit.query, examples, settings, seed)
        return self._networks[key]
