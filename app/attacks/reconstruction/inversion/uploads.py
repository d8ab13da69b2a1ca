"""Attacks that only look: an honest-but-curious server reads uploads, anybody reads the released model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch

from app.attacks.audit_context import AuditContext
from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.base import ReconstructionAttack, ReconstructionConditions, ReconstructionFinding
from app.attacks.reconstruction.inversion.extraction import DenseRatio, ImageExtraction, Matching
from app.attacks.reconstruction.scoring import ReconstructionScorer
from app.federation.parameters import ParameterSpace
from app.federation.transcript import Upload
from app.metrics.membership import NotAvailable


class PassiveAttack(ReconstructionAttack):
    """An attack on what was recorded. One file per attack."""

    @abstractmethod
    def findings(self, world: AuditContext) -> Iterator[ReconstructionFinding]:
        """Results, one after the other."""


class UploadInversion(PassiveAttack):
    """Reads images from uploads of the last round, as a server does that keeps to the protocol."""

    def __init__(self, reading: ImageExtraction, clients: Sequence[int] | None) -> None:
        self.reading, self.clients = reading, clients

    def findings(self, world: AuditContext) -> Iterator[ReconstructionFinding]:
        """One result per attacked client; a second one where the defenses call for a smarter reading."""
        round_ = world.kept_rounds[-1]
        view = world.transcript.server_view()
        uploads = {upload.client: upload for upload in view.uploads(round_)}
        assert world.knowledge.plan_of is not None
        for client in self.clients if self.clients is not None else self._usual(world, round_):
            yield from self._of_client(world, round_, client, uploads.get(client))

    def _usual(self, world: AuditContext, round_: int) -> list[int]:
        """The client with the fewest samples of each width: an update over few samples tells most."""
        assert world.knowledge.plan_of is not None
        plan = world.knowledge.plan_of(round_ - 1)
        by_size = sorted(plan.participants, key=lambda client: (plan.client_pool.sizes[client], client))
        return sorted({plan.rate(client): client for client in reversed(by_size)}.values())

    def _of_client(
        self, world: AuditContext, round_: int, client: int, upload: Upload | None
    ) -> Iterator[ReconstructionFinding]:
        conditions = ReconstructionConditions(
            self.name,
            f"{self.name}-{client}",
            "curious server",
            "one upload",
            round_,
            (client,),
            self._notes(world, client),
        )
        space = ParameterSpace(world.knowledge.prototype)
        reason = self._why_not(world, round_, client, upload, space)
        if reason is not None or upload is None:
            yield ReconstructionFinding(conditions, NotAvailable(str(reason)))
            return
        scorer = ReconstructionScorer(self.reading, world.knowledge, world.truth)
        yield from scorer.findings(conditions, self._update(world, round_, upload, space), {})

    def _why_not(
        self, world: AuditContext, round_: int, client: int, upload: Upload | None, space: ParameterSpace
    ) -> str | None:
        if client not in world.clients:
            return f"there is no client {client} in any round"
        if not world.transcript.server_view().readable(round_):
            return "the server holds ciphertext only"
        if upload is None:
            return f"client {client} sent nothing in round {round_}"
        if upload.payload is None:
            return "the server sees masked updates only; it would have to turn malicious (rolling-model, trap-weights)"
        return self.reading.obstacle(world.knowledge.local, space, world.knowledge.store.shape)

    def _update(self, world: AuditContext, round_: int, upload: Upload, space: ParameterSpace) -> IsolatedUpdate:
        assert upload.payload is not None
        assert world.knowledge.plan_of is not None
        own = world.knowledge.plan_of(round_ - 1).index(upload.client).cpu()
        sent = world.transcript.server_view().broadcast(round_)
        index = torch.arange(space.size) if upload.index is None else upload.index
        base = sent[index].double()
        change, weight = upload.payload.double() - base, torch.ones_like(base)
        return IsolatedUpdate((upload.client,), round_ - 1, index, change, weight, base, own, sent[own])

    def _notes(self, world: AuditContext, client: int) -> tuple[str, ...]:
        if client not in world.clients:
            return ()
        local, samples = world.knowledge.local, len(world.truth.members[client])
        steps = local.steps if local.steps is not None else local.epochs * local.steps_per_epoch(samples)
        return () if steps <= 1 else (f"the upload is the result of {steps} steps, not of one gradient",)


class DenseInversion(UploadInversion):
    """Divides a neuron's weight change by its bias change, in a network whose first layer is dense."""

    name = "dense-inversion"

    def __init__(self, clients: list[int] | None = None) -> None:
        """Set up the attack.

        Args:
            clients: whose uploads to attack; without any, the client with the fewest samples of each width.
        """
        super().__init__(DenseRatio(), clients)


class GradientInversion(UploadInversion):
    """Searches for a batch whose gradient points where the upload does: cosine distance and total variation."""

    name = "gradient-inversion"

    def __init__(
        self,
        clients: list[int] | None = None,
        steps: int = 1000,
        restarts: int = 1,
        tv: float = 0.02,
        known_labels: bool = False,
    ) -> None:
        """Set up the attack.

        Args:
            clients: whose uploads to attack; without any, the client with the fewest samples of each width.
            steps: optimisation steps per restart, at least 1.
            restarts: searches from different noise, at least 1.
            tv: weight of the total variation, 0 or more.
            known_labels: whether the attacker is told the labels; else they are read from the upload.
        """
        super().__init__(Matching(steps, restarts, tv=tv, labels="known" if known_labels else "inferred"), clients)
