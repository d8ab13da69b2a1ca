"""What a malicious server's attack is: what it sends to whom, and what it makes of the sums.

An attack never meets a client: it says what to send, and it is given the sums of the rounds with the public plan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
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
from app.errors import Problem
from app.federation.parameters import ParameterSpace
from app.federation.plan import Plan
from app.federation.submodels import SubmodelMethod
from app.metrics.membership import NotAvailable
from app.seeding import torch_generator

DEFAULT_TRAPS = TrapWeights(bias="calibrated", output="loud")
"""Traps that tell images apart, and whose gradient drowns what other clients still change."""

MOST_OWN = 1000
"""Most images of its own that an attacker fits biases to."""


@dataclass(frozen=True, eq=False)
class ServerKnowledge:
    """What a malicious server knows when it starts to act.

    Attributes:
        public: the network, the training recipe and data of its own.
        space: layout of its vector.
        theta: its vector when it starts to act, on the CPU.
        first: 0-based round in which it starts to act.
        images: number of images that the attacked clients have.
        baited: whether attacked clients get trap weights; else the honest model, from which images are read otherwise.
        models: models of the server's size that an attack has made up, by name.
    """

    public: PublicKnowledge
    space: ParameterSpace
    theta: Tensor
    first: int
    images: int
    baited: bool = True
    models: dict[str, Tensor] = field(default_factory=dict)

    def plan(self, stage: int) -> Plan:
        """The plan of a stage of the attack, 0 for its first round."""
        assert self.public.plan_of is not None
        return self.public.plan_of(self.first + stage)

    @cached_property
    def calibration(self) -> Calibration | None:
        """Images of the attacker's own that biases can be fitted to; None where it has none."""
        ids = torch.from_numpy(self.public.auxiliary[:MOST_OWN])
        inputs = self.public.store.batch(ids)[0].flatten(1).cpu()
        return Calibration(inputs, max(1, self.images)) if len(ids) else None

    @property
    def dense(self) -> DenseLayer | str:
        """The first layer, or why no image can be read from it."""
        shape = self.public.store.shape
        return first_dense(self.space, shape.channels * shape.height * shape.width)

    def with_trap_weights(self, traps: TrapWeights, index: Tensor) -> Tensor:
        """A client's coordinates with trap weights, the same for the same coordinates; the honest ones without bait."""
        layer = self.dense
        if not self.baited or not isinstance(layer, DenseLayer):
            return self.theta[index.cpu()]
        draw = torch_generator(self.public.seed, "traps", self.first)
        calibration = self.calibration if traps.bias == "calibrated" else None
        return with_trap_weights(layer, self.space, traps, index.cpu(), self.theta, draw, calibration)


class ActiveAttack(ReconstructionAttack):
    """An attack by a server that deviates from the protocol. One file per attack.

    Attributes:
        target: width rate of the attacked clients, None for the attack's usual choice.
        traps: trap weights that the attacked clients get.
    """

    rounds: ClassVar[int]
    """Rounds it takes."""

    sees: ClassVar[str]
    """What it reads, in words."""

    def __init__(self, target: float | None, traps: TrapWeights) -> None:
        self.target, self.traps = target, traps

    def problems(self) -> Iterator[Problem]:
        """What is wrong with its settings."""
        yield from self.traps.problems()

    @abstractmethod
    def usual_target(self, rates: Sequence[float]) -> float:
        """Width rate to attack, of the distinct rates of a round, widest first."""

    def targets(self, plan: Plan) -> tuple[int, ...]:
        """The attacked clients of a round, ascending; none where no participant has the width."""
        rates = {client: plan.rate(client) for client in plan.participants}
        if not rates:
            return ()
        wanted = self.usual_target(sorted(set(rates.values()), reverse=True)) if self.target is None else self.target
        return tuple(sorted(client for client, rate in rates.items() if abs(rate - wanted) < 1e-9))

    def present(self, seen: Observation) -> tuple[int, ...]:
        """Those of the attacked clients whose updates are in a sum, ascending."""
        return tuple(client for client in self.targets(seen.plan) if client in seen.clients)

    @property
    def waits(self) -> bool:
        """Whether it watches honest rounds to choose when to act."""
        return False

    def ready(self, honest: Observation, theta: Tensor) -> bool:
        """Whether to act from the next round on, after an honest round; asked only where it waits."""
        return True

    def deviation(self, method: SubmodelMethod, before: Plan, after: Plan) -> SubmodelMethod | None:
        """The method that the server really uses while it acts; None for the announced one.

        Args:
            method: what was announced.
            before: the round before the attack's last one, as announced.
            after: the attack's last round, as announced.
        """
        return None

    @abstractmethod
    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """What a client gets in a stage of the attack, 0 for its first round."""

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        """The model (server's size) that it claims to send to everybody, and would commit to."""
        return knowledge.theta

    def believes(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """What the server takes a client's weights for when it works with the sum; what it sent, unless it forgets."""
        return self.sends(knowledge, stage, client, index)

    @abstractmethod
    def isolate(self, knowledge: ServerKnowledge, seen: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        """The attacked clients' update, from the sums of the attack's rounds; or why it cannot be told."""

    def isolated(
        self, knowledge: ServerKnowledge, stage: int, seen: Observation, coordinates: Tensor, change: Tensor
    ) -> IsolatedUpdate:
        """An update at the coordinates of a mask (bool), with what the attacked clients were sent in that stage.

        Args:
            scene: what the server knows.
            stage: in which the clients made the change.
            seen: that round.
            coordinates: (coordinates) bool, where the change is that of the attacked clients.
            change: (coordinates) float64.
        """
        clients, index = self.present(seen), torch.nonzero(coordinates).flatten()
        weight, sent = torch.zeros_like(change), torch.zeros_like(change)
        for client in clients:
            held, got = seen.plan.index(client).cpu(), self.sends(knowledge, stage, client, seen.plan.index(client))
            weight[held] += seen.weights[client]
            sent[held] += seen.weights[client] * got.double()
        widest = max(clients, key=seen.plan.rate)
        own = seen.plan.index(widest).cpu()
        model = self.sends(knowledge, stage, widest, own)
        round_ = knowledge.first + stage
        return IsolatedUpdate(clients, round_, index, change[index], weight[index], sent[index], own, model)
