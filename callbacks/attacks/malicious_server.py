"""A malicious server that deviates from the protocol to reconstruct training images, within a running federation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.attacks.reconstruction.active.base import ActiveAttack, ServerKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation, SentModel, observe
from app.attacks.reconstruction.base import ReconstructionConditions, ReconstructionFinding
from app.attacks.reconstruction.catalogue import make_active
from app.attacks.reconstruction.inversion.extraction import DEFAULT_EXTRACTION, ImageExtraction
from app.attacks.reconstruction.scoring import ReconstructionScorer
from app.common.errors import Problem
from app.common.ranges import Count
from app.common.wording import counted
from app.federation.channels.base import Aggregate, Message, Update
from app.federation.channels.tapped import TappedChannel
from app.federation.checks.federation import stack_traits, weighs_by_loss
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.federation.private_coordinates import uploaded_indices
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.models.base import ScalableNet
from app.result import fits_file
from app.results.attacks.reconstruction import ReconstructionRecord
from callbacks.attacks.membership_inference import public_knowledge

Score = Literal["matched", "legacy"]


class MaliciousServer(FederatedCallback):
    """Sends manipulated models and reads training images out of the sums that come back.

    It sees what the server sees: the sums of the rounds, in the form in which the channel delivers them, and the public
    plan. Its own model stays what it was before the attack. A run passes through these states:

    1. waiting: honest rounds, until the first round of the attack is known (`round`, the latest possible one, or when
       the attack says that it is ready);
    2. attacking: for `attack.rounds` rounds manipulated models go out, sums are observed, and the server's model is
       restored afterwards;
    3. done: after the last of these rounds the targets' update is isolated from the sums and images are extracted.

    Where the attack cannot succeed (encrypted sums, say) the server stays honest and the result gives the reason.

    Example::

        rampart fit --attacks.server MaliciousServer --attacks.server.attack rolling-model
        rampart attack RUN --attacks trap-weights

    Args:
        attack: its name (`rampart list attacks` shows them), a class of yours, or class_path with init_args.
        round: round in which it starts, counted from 1; without one, as late as the attack still fits, or when the
            attack itself says so.
        reading: how images are extracted from an update once it is isolated, where the attack leaves a choice.
        score: `legacy` adds the scores of the published evaluation, which compares with the images of whichever client
            happened to be trained last, and takes the best row for each measure separately.
        insist: attack also where it cannot succeed, to measure that; the result is labelled.
        label: name of the result; without one, the attack's name.
    """

    kind = "attack"
    vectorisable = True

    def __init__(
        self,
        attack: str | ActiveAttack = "rolling-model",
        round: Count | None = None,
        reading: ImageExtraction = DEFAULT_EXTRACTION,
        score: Score = "matched",
        insist: bool = False,
        label: str | None = None,
    ) -> None:
        self.attack, self.round = make_active(attack), round
        self.reading, self.score, self.insist = self.attack.extraction or reading, score, insist
        self.label = label or self.attack.name
        self.remarks: tuple[str, ...] = ()
        self._first_round: int | None = None
        self._obstacle: str | None = None
        self._done = False

    # ---- before the first round ------------------------------------------------------------------------------------

    def ships(self, federation: FederatedModule, net: ScalableNet) -> ScalableNet:
        images = math.ceil(sum(federation.data.sizes) * federation.participation)
        return self.attack.ships(net, federation.data.shape, images)

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        yield from self.attack.problems()
        others = [one for one in federated_callbacks(federation.trainer) if isinstance(one, MaliciousServer)]
        if len(others) > 1:
            remedy = "attack in one run after the other, or with `rampart attack RUN --attacks NAME,NAME`"
            yield Problem(f"{len(others)} malicious servers in one run", "each would spoil the others' sums", remedy)
        if not fits_file(self.label):
            remedy = "set --attacks.NAME.label to a short name without slashes and special signs"
            yield Problem(f"the result is to be called {self.label!r}", "no file can have that name", remedy)
        target, widths = self.attack.target, federation.widths
        if target is not None and min(abs(rate - target) for rate in widths) > 1e-9:
            remedy = f"choose one of {', '.join(f'{rate:g}' for rate in widths)}"
            yield Problem(f"{self.attack.name} is to attack width {target:g}", "no client has it", remedy)
        latest = federation.rounds - self.attack.rounds + 1
        if self.round is not None and self.round > latest:
            yield Problem(
                f"{self.attack.name} is to start in round {self.round} of {federation.rounds}",
                f"it takes {counted(self.attack.rounds, 'round')}",
                f"set --attacks.NAME.round to 1..{latest}" if latest > 0 else "train more rounds: --trainer.max_epochs",
            )
        elif latest < 1:
            remedy = f"train at least {self.attack.rounds} rounds: --trainer.max_epochs"
            yield Problem(
                f"{self.attack.name} takes {counted(self.attack.rounds, 'round')}", "the run is shorter", remedy
            )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        pl_module.channel = TappedChannel(pl_module.channel, lambda aggregate: self._observe(pl_module, aggregate))
        self._observations: list[Observation] = []
        self._isolated: IsolatedUpdate | NotAvailable | None = None
        self._true_changes: dict[int, tuple[Tensor, Tensor]] = {}
        self._isolation_error = float("nan")
        self._knowledge: ServerKnowledge | None = None
        latest = pl_module.rounds - self.attack.rounds
        self._first_round = None if self.attack.waits and latest > 0 else latest
        if self.round is not None:
            self._first_round = self.round - 1
        self._obstacle = self._find_obstacle(pl_module)
        self._announced_method = pl_module.method
        if self._first_round is not None and not self._stays_honest:
            last = self._first_round + self.attack.rounds - 1
            plans = (pl_module.plan_of(max(last - 1, 0)), pl_module.plan_of(last))
            pl_module.method = self.attack.deviation(pl_module.method, *plans) or pl_module.method

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that was interrupted between two rounds of the attack goes on without it."""
        assert isinstance(pl_module, FederatedModule)
        if self._first_round is not None and trainer.current_epoch > self._first_round:
            pl_module.method = self._announced_method
            if not self._done:
                self._isolated = NotAvailable("the run was interrupted between the rounds of the attack; start it anew")

    @property
    def state_key(self) -> str:
        """Distinguishes several malicious servers, so that `problems` can refuse them before Lightning does."""
        return self._generate_state_key(label=self.label)

    def state_dict(self) -> dict[str, Any]:
        return {"first": -1 if self._first_round is None else self._first_round, "done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._done = bool(state_dict["done"])
        if state_dict["first"] >= 0:
            self._first_round = int(state_dict["first"])

    @property
    def _stays_honest(self) -> bool:
        """Whether the server stays honest, since the attack could not succeed."""
        return self._obstacle is not None and not self.insist

    def _find_obstacle(self, federation: FederatedModule) -> str | None:
        """Why the attack cannot succeed under these settings; None where it can."""
        if federation.channel.form == "ciphertext":
            return "the server adds ciphertexts and cannot read the sum; a client that helps the server could"
        if weighs_by_loss(federation):
            return "clients count by their losses, which the server does not know"
        read = self.reading.used_coordinates(federation.space)
        if not federation.personal.shared(torch.nonzero(read).flatten()).any():
            return "what would be read never leaves the clients (--model.personal)"
        return self.reading.obstacle(federation.local, federation.space, federation.data.shape)

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._senders: set[int] = set()
        self._weights: dict[int, float] = {}
        self._begin(federation, plan)

    def _begin(self, federation: FederatedModule, plan: Plan) -> None:
        """Collect what the server knows, once; defenses may ask for its announcement before the round begins."""
        if self._first_round == plan.round and not self._stays_honest and self._knowledge is None:
            knowledge = public_knowledge(federation, plan.round + self.attack.rounds)
            theta = federation.theta.detach().cpu().clone()
            last = federation.plan_of(plan.round + self.attack.rounds - 1)
            images = sum(last.client_pool.sizes[client] for client in self.attack.targets(last))
            self._knowledge = ServerKnowledge(
                knowledge, federation.space, theta, plan.round, images, self.reading.uses_traps
            )

    def _stage(self, round_: int) -> int | None:
        """0 in the first round of the attack, None in honest rounds."""
        if self._knowledge is None or not 0 <= round_ - self._knowledge.first < self.attack.rounds:
            return None
        return round_ - self._knowledge.first

    def announces(self, federation: FederatedModule, plan: Plan) -> Tensor | None:
        self._begin(federation, plan)
        stage = self._stage(plan.round)
        return None if stage is None or self._knowledge is None else self.attack.announces(self._knowledge, stage)

    def on_broadcast(self, trainer: Trainer, federation: FederatedModule, client: int, vector: Tensor) -> None:
        stage = self._stage(federation.plan.round)
        if stage is not None and self._knowledge is not None:
            index = federation.plan.index(client)
            sent = self.attack.sends(self._knowledge, stage, client, index).to(vector)
            vector.copy_(torch.where(federation.personal.shared(index), sent, vector))

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        self._weights[update.client] = update.weight
        if self._stage(update.round) == self.attack.rounds - 1 and update.client in self._targets(federation):
            change = (update.vector.double() - update.received.double()).cpu()
            self._true_changes[update.client] = (update.index.cpu(), change)

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        self._senders.add(message.client)

    def _observe(self, federation: FederatedModule, aggregate: Aggregate) -> None:
        """Observe the sum of a round, on every process; while waiting, decide whether the attack starts next."""
        stage = self._stage(federation.plan.round)
        waiting = self._first_round is None and not self._stays_honest
        if stage is None and not waiting:
            return
        sent, carries = self._sent_models(federation, stage), federation.channel.carries
        observation = observe(federation.plan, aggregate, federation.theta, sent, carries)
        if stage is None:
            last = federation.plan.round + 1 >= federation.rounds - self.attack.rounds
            if last or self.attack.ready(observation, federation.theta):
                self._first_round = federation.plan.round + 1
            return
        self._observations.append(observation)
        if stage == self.attack.rounds - 1:
            self._isolate(federation)

    def _isolate(self, federation: FederatedModule) -> None:
        """Isolate the targets' update from the sums; for the evaluation, measure its error."""
        assert self._knowledge is not None
        true = {client: change for part in gather(self._true_changes) for client, change in part.items()}
        reason = self._failure(federation)
        self._isolated = NotAvailable(reason) if reason else self.attack.isolate(self._knowledge, self._observations)
        if isinstance(self._isolated, IsolatedUpdate):
            weights, total = self._observations[-1].weights, torch.zeros(federation.space.size, dtype=torch.float64)
            for client, (index, change) in true.items():
                total.index_add_(0, index, change, alpha=weights.get(client, 0.0))
            self._isolation_error = self._isolated.relative_error(
                total, self.reading.used_coordinates(federation.space)
            )

    def _failure(self, federation: FederatedModule) -> str | None:
        """Why no update can be isolated from the observations; None where it can."""
        if not self._observations[-1].clients:
            return "no update reached the server in the round of the attack"
        if not set(self._targets(federation)) & set(self._observations[-1].clients):
            return "none of the attacked clients sent anything in the round of the attack"
        if not all(one.adds_up for one in self._observations):
            return "the sums are not those of the clients that sent something, by the weights that the server knows"
        return None

    def _sent_models(self, federation: FederatedModule, stage: int | None) -> Iterator[SentModel]:
        """The models sent to clients whose updates arrived, with the clients' weights."""
        plan, coordinates = federation.plan, uploaded_indices(federation, federation.plan)
        weights = {client: weight for part in gather(self._weights) for client, weight in part.items()}
        for client in sorted({client for part in gather(self._senders) for client in part}):
            index, own = plan.index(client).cpu(), torch.from_numpy(coordinates[client])
            if stage is None or self._knowledge is None:
                vector = federation.theta.cpu()[index]
            else:
                vector = self.attack.believes(self._knowledge, stage, client, index)
            yield SentModel(client, own, vector[torch.searchsorted(index, own)], weights[client])

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        stage = self._stage(federation.plan.round)
        if stage is None:
            return
        aggregate.mean.copy_(federation.theta)  # the manipulated rounds leave the model as it was
        if stage == self.attack.rounds - 1:
            if trainer.is_global_zero:
                federation.hooks.deliver(self.run(federation))
            self._done = True
            self._observations, self._true_changes = [], {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, FederatedModule)
        if trainer.is_last_batch and self._stage(pl_module.plan.round) is not None:  # undo server momentum
            pl_module.space.write(pl_module.net, pl_module.theta)

    def _targets(self, federation: FederatedModule) -> tuple[int, ...]:
        return self.attack.targets(federation.plan)

    # ---- the result ------------------------------------------------------------------------------------------------

    def on_transcript(
        self, federation: FederatedModule, transcript: Transcript
    ) -> Iterator[ReconstructionRecord] | None:
        return None if self._done else self.run(federation)

    def run(self, federation: FederatedModule) -> Iterator[ReconstructionRecord]:
        """Extract images from the isolated update, and score them against the truth."""
        return map(ReconstructionRecord.of, self._findings(federation))

    def unavailable(self, federation: FederatedModule, reason: str) -> ReconstructionFinding:
        """The result of an attack that could not be carried out."""
        return ReconstructionFinding(self._conditions(federation), NotAvailable(reason))

    def _findings(self, federation: FederatedModule) -> Iterator[ReconstructionFinding]:
        if self._stays_honest:
            yield self.unavailable(federation, str(self._obstacle))
        elif not isinstance(self._isolated, IsolatedUpdate):
            yield self.unavailable(federation, getattr(self._isolated, "reason", "the run was over before the attack"))
        else:
            knowledge = public_knowledge(federation, self._last_round(federation) + 1)
            scorer = ReconstructionScorer(self.reading, knowledge, federation.data.membership, self.score == "legacy")
            details = {"isolation_error": self._isolation_error, "isolated_cells": float(len(self._isolated.index))}
            yield from scorer.findings(self._conditions(federation), self._isolated, details)

    def _last_round(self, federation: FederatedModule) -> int:
        """0-based last round of the attack."""
        first = self._first_round if self._first_round is not None else federation.rounds - self.attack.rounds
        return first + self.attack.rounds - 1

    def _conditions(self, federation: FederatedModule) -> ReconstructionConditions:
        round_, attack = self._last_round(federation), self.attack
        clients = attack.targets(federation.plan_of(round_))
        notes = tuple(self._notes(federation))
        return ReconstructionConditions(
            attack.name, self.label, "malicious server", attack.sees, round_ + 1, clients, notes
        )

    def _notes(self, federation: FederatedModule) -> Iterator[str]:
        if self._obstacle is not None and self.insist:
            yield f"insisted on although {self._obstacle}"
        yield from self.remarks
        if "server-noise" in stack_traits(federation):
            yield "noise that the server itself adds is no obstacle to it: sums are read before"
        if self.reading.uses_traps and self.attack.traps.bias == "calibrated":
            fits, fitted = self.attack.fits, len(federation.data.membership.shadow) > 0
            own, none = f"{fits} are fitted to images of the attacker's own", "the attacker has no images to fit"
            yield own if fitted else f"{none} {fits} to"
        if self.score == "legacy":
            yield "legacy_* compare with a client drawn by chance, as published; they are no measure of the attack"
