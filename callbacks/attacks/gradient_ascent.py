"""Active membership inference: gradient ascent on target samples by a malicious server or participant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.attacks.audit_context import AuditContext
from app.attacks.controls import blind_failures, metric_failures
from app.attacks.findings import AttackConditions, Finding, unavailable
from app.attacks.membership import gradient_ascent
from app.attacks.model_query import ModelQuery
from app.attacks.models import AttackedModel, Ids, Snapshot
from app.attacks.protocols.base import guarded, measured
from app.attacks.protocols.papers import OFFICIAL_TEST
from app.common.errors import Problem
from app.common.ranges import AtLeastFour, Count, NonNegative, Whole
from app.common.seeding import numpy_generator
from app.federation.channels.base import Aggregate, Message, Update
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.federation.transcript import Transcript
from app.metrics.bootstrap import Bootstrap
from app.metrics.membership import NO_CLIENT, Array, MembershipScores, NotAvailable
from app.results.attacks.membership import AttackRecord
from callbacks.attacks.membership_inference import public_knowledge

LAST = 5
"""Attacked rounds where none are named: the last so many."""


class GradientAscent(FederatedCallback):
    """Raises the loss of target samples in the model, and reads membership from where training brings it (Nasr et al.).

    A malicious server raises it in the model that it sends to a client, and looks at the client's upload. A malicious
    participant raises it in its own upload, and looks at the model that comes back once the others have trained on it.
    Samples whose loss is low again are members. Targets are audited samples, whose membership the adversary does not
    know; without held-out samples, non-members are the common test set. The attacked rounds change the model.

    The server needs single uploads in clear: under encryption or masks it stays honest, and the result says so. The
    participant needs nothing but its own models, so it works under both.

    Example::

        rampart fit --attacks.ascent GradientAscent --attacks.ascent.adversary participant

    Args:
        adversary: who attacks, `server` or `participant`.
        rounds: attacked rounds, counted from 1; without any, the last five that leave a reaction to be seen.
        strength: learning rate of the ascent, 0 or more; 0 changes nothing and only watches.
        steps: steps of gradient ascent in an attacked round, 1 or more.
        samples: most target samples of each attacked model, 4 or more.
        participant: the malicious participant, by number.
        victims: clients that the server attacks, by number; all without any.
        isolate: the server keeps victims apart from the federation while it attacks: each goes on from its own upload
            instead of the mean. The other clients' model is not affected by that.
    """

    kind = "attack"
    vectorisable = True

    def __init__(
        self,
        adversary: Literal["server", "participant"] = "server",
        rounds: list[Count] | None = None,
        strength: NonNegative = 0.1,
        steps: Count = 5,
        samples: AtLeastFour = 500,
        participant: Whole = 0,
        victims: list[Whole] | None = None,
        isolate: bool = False,
    ) -> None:
        self.adversary, self.rounds, self.strength, self.steps = adversary, tuple(sorted(rounds or ())), strength, steps
        self.samples, self.participant, self.victims, self.isolate = samples, participant, victims, isolate
        self._margins: dict[int, Array] = {}
        self._uploads: dict[int, tuple[Tensor, Tensor]] = {}
        self._new_margins: dict[int, Array] = {}
        self._new_uploads: dict[int, tuple[Tensor, Tensor]] = {}
        self._received: dict[int, Tensor] = {}
        self._obstacle = ""

    # ---- before the first round ------------------------------------------------------------------------------------

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        latest = federation.rounds - (self.adversary == "participant")
        wrong = [round_ for round_ in self.rounds if round_ > latest]
        if wrong or latest < 1:
            cause = f"gradient ascent is to run in round {wrong[0] if wrong else 1} of {federation.rounds}"
            consequence = "no model would show how the loss reacts"
            yield Problem(cause, consequence, f"give rounds from 1 to {latest}, or train longer (--trainer.max_epochs)")
        clients = len(federation.data.membership.members)
        named = [self.participant] if self.adversary == "participant" else (self.victims or [])
        for client in named:
            if client >= clients:
                yield Problem(f"there is no client {client}", "it cannot take part", f"choose from 0 to {clients - 1}")
        if self.isolate and self.adversary == "participant":
            yield Problem("a participant is to isolate victims", "only a server can", "set isolate to false")
        same = [one for one in federated_callbacks(federation.trainer) if isinstance(one, GradientAscent)]
        if sum(one.adversary == self.adversary for one in same) > 1:
            remedy = "attack in one run after the other"
            yield Problem(f"two {self.adversary}s ascend in one run", "each would spoil the other's reactions", remedy)

    @property
    def state_key(self) -> str:
        return self._generate_state_key(adversary=self.adversary)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        self._obstacle = self._find_obstacle(pl_module)

    def _find_obstacle(self, federation: FederatedModule) -> str:
        """Why the attack cannot succeed under these settings; empty where it can."""
        hidden = {"ciphertext": "ciphertext", "masked": "masked sums"}.get(federation.channel.form)
        if hidden and self.adversary == "server":
            return f"the server sees {hidden} only, no local model; a malicious participant needs none"
        return "clients send nothing" if federation.personal.everything else ""

    def state_dict(self) -> dict[str, Any]:
        margins = {str(client): torch.from_numpy(own) for client, own in self._margins.items()}
        return {"margins": margins, "uploads": {str(client): list(own) for client, own in self._uploads.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._margins = {int(client): own.numpy() for client, own in state_dict["margins"].items()}
        self._uploads = {int(client): (index, own) for client, (index, own) in state_dict["uploads"].items()}

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._query = ModelQuery(public_knowledge(pl_module, pl_module.rounds))

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._received, self._new_margins, self._new_uploads = {}, {}, {}

    def on_broadcast(self, trainer: Trainer, federation: FederatedModule, client: int, vector: Tensor) -> None:
        round_ = federation.plan.round + 1
        if self._obstacle or client not in self._attacked(federation):
            return
        if self.adversary == "participant":
            self._received[client] = vector.clone()
            self._record_received(federation, federation.plan.round, vector)
        elif round_ in self._chosen(federation):
            index = federation.plan.index(client)
            if self.isolate and client in self._uploads:
                vector.copy_(self._isolated(federation, client, index, vector))
            raised = self._raised(federation, client, vector)
            vector.copy_(torch.where(federation.personal.shared(index), raised, vector))
            self._received[client] = vector.clone()

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        """The participant's upload with raised losses; its defenses have acted before."""
        if self.adversary == "server" or update.client not in self._received or self._obstacle:
            return
        if update.round + 1 in self._chosen(federation):
            index, own = federation.plan.index(update.client), self._received[update.client].clone()
            own[torch.searchsorted(index, update.index)] = update.vector
            raised = self._raised(federation, update.client, own)
            update.vector.copy_(raised[torch.searchsorted(index, update.index)])

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        """The server looks at the victim's upload."""
        if self.adversary == "participant" or message.client not in self._received or message.payload is None:
            return
        index, after = federation.plan.index(message.client), self._received[message.client].clone()
        after[torch.searchsorted(index, message.index)] = message.payload.to(after)
        self._record(federation, message.client, message.round + 1, after)
        if self.isolate:
            self._new_uploads[message.client] = (message.index.cpu(), message.payload.cpu())

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        """Collect what all processes have seen."""
        for margins, uploads in gather((self._new_margins, self._new_uploads)):
            self._margins |= margins
            self._uploads |= uploads

    def _isolated(self, federation: FederatedModule, client: int, index: Tensor, vector: Tensor) -> Tensor:
        """The victim's last upload in place of the mean, as far as it trained the same coordinates."""
        coordinates, values = self._uploads[client]
        full = federation.theta.clone()
        full[index] = vector
        full[coordinates.to(full.device)] = values.to(full)
        return full[index]

    def _raised(self, federation: FederatedModule, client: int, vector: Tensor) -> Tensor:
        """A client's model with raised losses of the targets; the vector itself where the strength is 0."""
        if self.strength == 0:
            return vector
        model = Snapshot(federation.plan.round + 1, federation.plan.rate(client), vector)
        targets = self._targets(federation, client)
        return gradient_ascent.ascend(self._query, model, targets, self.strength, self.steps).vector

    def _record_received(self, federation: FederatedModule, done: int, vector: Tensor) -> None:
        """The participant's model after so many rounds: the last one has trained what the one before has raised."""
        attacked = done - 1
        if attacked in self._chosen(federation) and self.participant in federation.plan_of(attacked - 1).participants:
            self._record(federation, self.participant, attacked, vector)

    def _record(self, federation: FederatedModule, client: int, round_: int, vector: Tensor) -> None:
        """Keep how well a model that was trained after the attack of a round fits the targets; the last one counts."""
        snapshot = Snapshot(round_, federation.plan.rate(client), vector.clone())
        model = AttackedModel(f"ascent-{client}-{round_}", client, 0, (snapshot,))
        self._new_margins[client] = self._query.responses(model, self._targets(federation, client)).margins

    # ---- settings that follow from the run -------------------------------------------------------------------------

    def _chosen(self, federation: FederatedModule) -> tuple[int, ...]:
        """Attacked rounds, counted from 1."""
        latest = federation.rounds - (self.adversary == "participant")
        return self.rounds or tuple(range(max(1, latest - LAST + 1), latest + 1))

    def _attacked(self, federation: FederatedModule) -> set[int]:
        """Clients whose models the adversary handles: victims, or the participant itself."""
        if self.adversary == "participant":
            return {self.participant}
        return set(range(len(federation.data.membership.members)) if self.victims is None else self.victims)

    def _targets(self, federation: FederatedModule, client: int) -> Ids:
        """Samples of a victim, or of all participants but the malicious one; members and non-members mixed."""
        sets, participant = federation.data.membership, self.adversary == "participant"
        owners = [one for one in range(len(sets.members)) if one != client] if participant else [client]
        pool = np.concatenate([part for one in owners for part in (sets.members[one], sets.outsiders(one))])
        generator = numpy_generator(federation.seed, "gradient-ascent", client)
        return gradient_ascent.drawn_targets(pool, self.samples, generator)

    # ---- the result ------------------------------------------------------------------------------------------------

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[AttackRecord]:
        rounds = federation.trainer.current_epoch
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        server = self.adversary == "server"
        conditions = AttackConditions(
            attack="gradient-ascent",
            target="uploads" if server else "global",
            protocol="audit",
            adversary="malicious" if server else "malicious-client",
            threat=gradient_ascent.SERVER if server else gradient_ascent.PARTICIPANT,
        )
        finding = guarded(conditions, lambda: self._finding(federation, audit, conditions))
        yield AttackRecord.of(finding, audit.rates)

    def _finding(self, federation: FederatedModule, audit: AuditContext, conditions: AttackConditions) -> Finding:
        if self._obstacle:
            return unavailable(conditions, self._obstacle)
        if self.adversary == "participant":
            self._record_released(federation)
        parts = [self._rows(federation, audit, client) for client in sorted(self._margins)]
        rows = [part for part in parts if part is not None]
        if not rows:
            return unavailable(conditions, "no attacked round showed a reaction: clients sat out, refused or got lost")
        scores = MembershipScores.joined(rows)
        attacked = ", ".join(map(str, self._chosen(federation)))
        notes = [f"the attack of rounds {attacked} has changed the model that other attacks of this run see"]
        if not any(map(len, audit.sets.nonmembers)):
            notes.append(OFFICIAL_TEST)
        # the targets of a participant share one model, so they are resampled one by one
        bootstrap = Bootstrap(unit="row" if self.adversary == "participant" else None)
        return self._controlled(audit, measured(audit, conditions, scores, [], notes, bootstrap=bootstrap), scores)

    def _controlled(self, audit: AuditContext, finding: Finding, scores: MembershipScores) -> Finding:
        """The finding, its numbers withheld where a check that needs no attack fails."""
        store, seed = audit.knowledge.store, audit.knowledge.seed
        sides = (np.unique(scores.samples[scores.members]), np.unique(scores.samples[~scores.members]))
        failures = [*metric_failures(scores, seed), *blind_failures(store, *sides, seed)]
        if not failures:
            return finding
        reason = NotAvailable(f"withheld, a control failed: {'; '.join(failures)}")
        return replace(finding, leakage=reason, clients=(), capacities=())

    def _record_released(self, federation: FederatedModule) -> None:
        """The released model shows the reaction to the last round but one."""
        index = federation.plan.index(self.participant)
        vector = federation.space.read(federation.net)[index]
        federation.personal.restore(self.participant, index, vector)
        self._record_received(federation, federation.plan.round + 1, vector)
        self._margins |= self._new_margins

    def _rows(self, federation: FederatedModule, audit: AuditContext, client: int) -> MembershipScores | None:
        """Scores of the targets of one client; None where all are members, or none is."""
        samples, sets = self._targets(federation, client), audit.sets
        inside, owner = np.zeros(len(samples), dtype=bool), np.full(len(samples), NO_CLIENT)
        for one in range(len(sets.members)) if self.adversary == "participant" else (client,):
            member = np.isin(samples, audit.truth.members[one])
            owner[member | np.isin(samples, sets.nonmembers[one])] = one
            inside |= member
        if self.adversary == "server":
            owner[:] = client
        if inside.all() or not inside.any():
            return None
        return MembershipScores.of(self._margins[client], inside, samples, owner)
