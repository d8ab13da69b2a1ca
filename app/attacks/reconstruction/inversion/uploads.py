"""Passive reconstruction: an honest-but-curious server attacks the uploads of the last round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from app.attacks.audit_context import AuditContext
from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.base import (
    ReconstructionAttack,
    ReconstructionConditions,
    ReconstructionFinding,
    upload_reader,
)
from app.attacks.reconstruction.inversion.extraction import DenseRatio, ImageExtraction, Matching
from app.attacks.reconstruction.scoring import ReconstructionScorer
from app.common.ranges import Count, NonNegative, Whole
from app.federation.parameters import ParameterSpace
from app.federation.transcript import Upload
from app.metrics.membership import NotAvailable


class PassiveAttack(ReconstructionAttack):
    """An attack that keeps to the protocol and uses the transcript of a run."""

    @abstractmethod
    def findings(self, audit: AuditContext) -> Iterator[ReconstructionFinding]:
        """Results of the attack, one at a time."""


class UploadInversion(PassiveAttack):
    """Extracts images from uploads of the last round, as an honest-but-curious server can."""

    def __init__(self, extraction: ImageExtraction, clients: Sequence[Whole] | None) -> None:
        self.extraction, self.clients = extraction, clients

    def findings(self, audit: AuditContext) -> Iterator[ReconstructionFinding]:
        round_ = audit.kept_rounds[-1]
        uploads = {upload.client: upload for upload in audit.transcript.server_view().uploads(round_)}
        for client in self.clients if self.clients is not None else self._usual(audit, round_):
            yield from self._of_client(audit, round_, client, uploads.get(client))

    def _usual(self, audit: AuditContext, round_: int) -> list[int]:
        """The client with the fewest samples of each width, whose update reveals most."""
        plan = audit.knowledge.plan(round_ - 1)
        others = set(plan.participants).difference(audit.colluders)
        by_size = sorted(others, key=lambda client: (plan.client_pool.sizes[client], client))
        return sorted({plan.rate(client): client for client in reversed(by_size)}.values())

    def _of_client(
        self, audit: AuditContext, round_: int, client: int, upload: Upload | None
    ) -> Iterator[ReconstructionFinding]:
        joined = f"-colluding-{len(audit.colluders)}" if audit.colluders else ""
        label, notes = f"{self.name}-{client}{joined}", (*audit.notes, *self._notes(audit, client))
        adversary = upload_reader(audit, round_)
        conditions = ReconstructionConditions(self.name, label, adversary, "one upload", round_, (client,), notes)
        space = ParameterSpace(audit.knowledge.prototype)
        reason = self._why_not(audit, round_, client, upload, space)
        if reason is not None or upload is None:
            yield ReconstructionFinding(conditions, NotAvailable(str(reason)))
            return
        scorer = ReconstructionScorer(self.extraction, audit.knowledge, audit.truth)
        yield from scorer.findings(conditions, self._update(audit, round_, upload, space), {})

    def _why_not(
        self, audit: AuditContext, round_: int, client: int, upload: Upload | None, space: ParameterSpace
    ) -> str | None:
        if client in audit.colluders:
            return f"client {client} colludes: the adversary has its images"
        if client not in audit.clients:
            return f"there is no client {client} in any round"
        if not audit.transcript.server_view().readable(round_):
            return "the server holds ciphertext only"
        if upload is None:
            return f"client {client} sent nothing in round {round_}"
        if upload.payload is None:
            remedy = "it would have to turn malicious (rolling-model, trap-weights, imprint)"
            return upload.hidden or f"the server sees masked updates only; {remedy}"
        return self.extraction.obstacle(audit.knowledge.local, space, audit.knowledge.store.shape)

    def _update(self, audit: AuditContext, round_: int, upload: Upload, space: ParameterSpace) -> IsolatedUpdate:
        payload, about = upload.payload, upload.index
        assert payload is not None
        own = audit.knowledge.plan(round_ - 1).index(upload.client).cpu()
        sent = audit.transcript.server_view().broadcast(round_)
        index = torch.arange(space.size) if about is None else about
        base = sent[index].double()
        change, weight = payload.double() - base, torch.ones_like(base)
        return IsolatedUpdate((upload.client,), round_ - 1, index, change, weight, base, own, sent[own])

    def _notes(self, audit: AuditContext, client: int) -> tuple[str, ...]:
        if client not in audit.clients:
            return ()
        local, samples = audit.knowledge.local, len(audit.truth.members[client])
        steps = local.steps if local.steps is not None else local.epochs * local.steps_per_epoch(samples)
        simulated = isinstance(self.extraction, Matching) and self.extraction.simulate
        taken = "which the candidates are trained through" if simulated else "not of one gradient"
        return () if steps <= 1 else (f"the upload is the result of {steps} steps, {taken}",)


class DenseInversion(UploadInversion):
    """Divides the weight change of a neuron by its bias change, in a network with a dense first layer."""

    name = "dense-inversion"

    def __init__(self, clients: list[Whole] | None = None) -> None:
        """Set up the attack.

        Args:
            clients: clients whose uploads are attacked; without any, the one with the fewest samples of each width.
        """
        super().__init__(DenseRatio(), clients)


class GradientInversion(UploadInversion):
    """Gradient matching: minimises the cosine distance of a batch's gradient from the update, and total variation."""

    name = "gradient-inversion"

    def __init__(
        self,
        clients: list[Whole] | None = None,
        steps: Count = 1000,
        restarts: Count = 1,
        tv: NonNegative = 0.02,
        known_labels: bool = False,
        simulate: bool = False,
    ) -> None:
        """Set up the attack.

        Args:
            clients: clients whose uploads are attacked; without any, the one with the fewest samples of each width.
            steps: optimisation steps per restart, at least 1.
            restarts: optimisations from different noise, at least 1.
            tv: weight of the total variation, 0 or more.
            known_labels: whether the attacker knows the labels; else they are inferred from the update.
            simulate: train the candidates through the client's local steps, where there are several, and match what
                these change (Dimitrov et al. 2022); else the update is taken for one gradient.
        """
        labels: Literal["inferred", "known"] = "known" if known_labels else "inferred"
        super().__init__(Matching(steps, restarts, tv=tv, labels=labels, simulate=simulate), clients)
