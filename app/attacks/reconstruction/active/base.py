"""Interface of attacks by a malicious server: the models it sends, and the update it isolates from the sums.

An attack has no access to single clients: it decides what to send, and gets the sums of the rounds and the public plan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation
from app.attacks.reconstruction.active.trap_weights import Calibration, TrapWeights
from app.attacks.reconstruction.base import ReconstructionAttack
from app.attacks.reconstruction.inversion.dense_layer import DenseLayer, first_dense, with_trap_weights
from app.attacks.reconstruction.inversion.extraction import ImageExtraction
from app.common.ranges import Share
from app.common.seeding import torch_generator
from app.federation.parameters import ParameterSpace
from app.federation.plan import Plan
from app.federation.submodels import SubmodelMethod
from app.metrics.membership import NotAvailable
from app.models.base import DataShape, ScalableNet

DEFAULT_TRAPS = TrapWeights(bias="calibrated", output="loud")
"""Traps that separate single images, with gradients much larger than what the other clients still change."""

MOST_OWN = 1000
"""Largest number of the attacker's own images that biases are fitted to."""


@dataclass(frozen=True, eq=False)
class ServerKnowledge:
    """What a malicious server knows when its attack begins."""

    public: PublicKnowledge  # the network, the training recipe and the attacker's own data
    space: ParameterSpace  # layout of the server's vector
    theta: Tensor  # the server's vector at that time, on the CPU
    first: int  # 0-based first round of the attack
    images: int  # number of images that the attacked clients have
    uses_traps: bool = True  # whether attacked clients get trap weights; else the honest model
    # manipulated models of the server's size, by name; a cache of the attack
    models: dict[str, Tensor] = field(default_factory=dict)

    def plan(self, stage: int) -> Plan:
        """The plan of a stage of the attack, 0 for its first round."""
        return self.public.plan(self.first + stage)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The attacker's own images that biases can be fitted to; None where it has none."""
        ids = torch.from_numpy(self.public.auxiliary[:MOST_OWN])
        inputs = self.public.store.batch(ids)[0].flatten(1).cpu()
        return Calibration(inputs, max(1, self.images)) if len(ids) else None

    def with_trap_weights(self, traps: TrapWeights, index: Tensor) -> Tensor:
        """A client's submodel with trap weights, equal for equal coordinates; the honest one without traps."""
        layer = first_dense(self.space, self.public.store.shape)
        if not self.uses_traps or not isinstance(layer, DenseLayer):
            return self.theta[index.cpu()]
        draw = torch_generator(self.public.seed, "traps", self.first)
        calibration = self.calibration if traps.bias == "calibrated" else None
        return with_trap_weights(layer, self.space, traps, index.cpu(), self.theta, draw, calibration)


class ActiveAttack(ReconstructionAttack):
    """An attack by a server that deviates from the protocol.

    Attributes:
        target: width rate of the attacked clients, None for the attack's usual choice.
        traps: trap weights that the attacked clients get.
    """

    rounds: ClassVar[int]
    """Number of rounds it takes."""

    sees: ClassVar[str]
    """What it reads, for reports."""

    fits: ClassVar[str] = "traps"
    """What it fits to images of the attacker's own, for reports."""

    extraction: ImageExtraction | None = None
    """How images are extracted from the update it isolates; None where that can be chosen."""

    def __init__(self, target: Share | None, traps: TrapWeights) -> None:
        self.target, self.traps = target, traps

    def ships(self, net: ScalableNet, shape: DataShape, images: int) -> ScalableNet:
        """The network whose code clients get, in place of the announced one; layers may be inserted in front of it.

        Args:
            net: the announced network, which may be changed.
            shape: size of an image and number of classes.
            images: training images of all clients that take part in a round.
        """
        return net

    @abstractmethod
    def usual_target(self, rates: Sequence[float]) -> float:
        """Width rate to attack, of the distinct rates of a round, widest first."""

    def targets(self, plan: Plan) -> tuple[int, ...]:
        """The attacked clients of a round, ascending; none where no participant has the width."""
        rates = {client: plan.rate(client) for client in plan.participants}
        if not rates:
            return ()
        target = self.usual_target(sorted(set(rates.values()), reverse=True)) if self.target is None else self.target
        return tuple(sorted(client for client, rate in rates.items() if abs(rate - target) < 1e-9))

    def present(self, observation: Observation) -> tuple[int, ...]:
        """The attacked clients whose updates are in a sum, ascending."""
        return tuple(client for client in self.targets(observation.plan) if client in observation.clients)

    @property
    def waits(self) -> bool:
        """Whether it observes honest rounds to decide when to begin."""
        return False

    def ready(self, honest: Observation, theta: Tensor) -> bool:
        """Whether to begin in the next round, after an honest round; called only where it waits."""
        return True

    def deviation(self, method: SubmodelMethod, before: Plan, after: Plan) -> SubmodelMethod | None:
        """The submodel method that the server uses during the attack; None for the announced one.

        Args:
            before: the announced plan of the last but one round of the attack.
            after: the announced plan of its last round.
        """
        return None

    @abstractmethod
    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """Weights that a client gets, at its coordinates, in a stage of the attack (0 for its first round)."""

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        """The model of the server's size that it claims to send to all clients, and would commit to."""
        return knowledge.theta

    def believes(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """Weights that the server assumes a client got when it evaluates the sum; by default what it sent."""
        return self.sends(knowledge, stage, client, index)

    @abstractmethod
    def isolate(self, knowledge: ServerKnowledge, observations: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        """The attacked clients' update, from the sums of the attack's rounds, or why it cannot be isolated."""

    def isolated(
        self, knowledge: ServerKnowledge, stage: int, observation: Observation, coordinates: Tensor, change: Tensor
    ) -> IsolatedUpdate:
        """The update of a stage, with the weights that the attacked clients were sent in it.

        Args:
            stage: stage in which the clients made the change.
            observation: the round of that stage.
            coordinates: (coordinates) bool, where the change is that of the attacked clients alone.
            change: (coordinates) float64.
        """
        clients, plan, weights = self.present(observation), observation.plan, observation.weights
        index = torch.nonzero(coordinates).flatten()
        weight, sent = torch.zeros_like(change), torch.zeros_like(change)
        for client in clients:
            held, model = plan.index(client).cpu(), self.sends(knowledge, stage, client, plan.index(client))
            weight[held] += weights[client]
            sent[held] += weights[client] * model.double()
        widest = max(clients, key=plan.rate)
        own = plan.index(widest).cpu()
        model = self.sends(knowledge, stage, widest, own)
        round_ = knowledge.first + stage
        return IsolatedUpdate(clients, round_, index, change[index], weight[index], sent[index], own, model)
