"""Rolling-Model attack (Haldankar et al. 2024): the difference of a round with and a round without a cohort."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from app.attacks.reconstruction.active.base import DEFAULT_TRAPS, ActiveAttack, ServerKnowledge
from app.attacks.reconstruction.active.observations import IsolatedUpdate, Observation
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.common.errors import Problem
from app.common.ranges import Finite, NonNegative, Share
from app.common.seeding import torch_generator
from app.federation.parameters import Axis, ParameterSpace
from app.federation.plan import Plan
from app.federation.submodels import ClientRound, LocalWidths, SubmodelMethod
from app.metrics.membership import NotAvailable
from app.models.base import scaled_width


class MovedWindow(SubmodelMethod):
    """The announced method, except for one round in which some clients get channels that they did not have before."""

    def __init__(self, method: SubmodelMethod, before: Plan, after: Plan, clients: tuple[int, ...]) -> None:
        """Move the window of clients.

        Args:
            method: the announced method.
            before: the announced plan of the round before.
            after: the announced plan of the round in which the window is moved.
            clients: clients whose window is moved, all of one width.
        """
        self._method, self._before, self._after, self._clients = method, before, after, clients

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        """For moved clients, channels that they did not have before and the others keep; else the announced ones."""
        if not self._moves(client_round):
            return self._method.channels(axis, keep, client_round)
        worse = torch.zeros(axis.width, dtype=torch.long)
        for client in self._clients:
            worse[self._held(self._before, client, axis)] += len(self._after.capacities)
        for client in {*self._before.participants, *self._after.participants} - set(self._clients):
            held = [self._mask(plan, client, axis) for plan in (self._before, self._after)]
            worse[held[0] != held[1]] += 1
        return worse.sort(stable=True).indices[:keep].sort().values

    def inputs(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor | None:
        return None if self._moves(client_round) else self._method.inputs(axis, keep, client_round)

    def rate(self, client_round: ClientRound) -> float:
        return self._method.rate(client_round)

    def key(self, client_round: ClientRound) -> Hashable:
        return ("moved", self.rate(client_round)) if self._moves(client_round) else self._method.key(client_round)

    def rates(self, capacities: Iterable[float]) -> tuple[float, ...]:
        return self._method.rates(capacities)

    @property
    def title(self) -> str:
        return self._method.title

    @property
    def local_widths(self) -> LocalWidths | None:
        return self._method.local_widths

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        return self._method.problems(space, capacities, clients)

    def _moves(self, client_round: ClientRound) -> bool:
        return client_round.round == self._after.round and client_round.client in self._clients

    def _mask(self, plan: Plan, client: int, axis: Axis) -> Tensor:
        mask = torch.zeros(axis.width, dtype=torch.bool)
        mask[self._held(plan, client, axis)] = True
        return mask

    def _held(self, plan: Plan, client: int, axis: Axis) -> Tensor:
        """Announced channels of a client in a round; none where it does not participate."""
        if client not in plan.participants:
            return torch.empty(0, dtype=torch.long)
        client_round = plan.client_round(client)
        return self._method.channels(axis, scaled_width(axis.width, self._method.rate(client_round)), client_round)


class RollingModel(ActiveAttack):
    """Subtracts the sums of two rounds, of which the attacked cohort contributes to the second only.

    Takes two rounds. The error is the change of the other clients' updates between them.
    """

    name = "rolling-model"
    rounds = 2
    sees = "the sums of two rounds"

    def __init__(
        self,
        target: Share | None = None,
        scope: Literal["update", "node"] = "update",
        others: Literal["constant", "frozen"] = "constant",
        fill: Finite = 0.25,
        noise: NonNegative = 0.0,
        noised: Literal["everything", "first-layer"] = "everything",
        own_noise: Literal["subtracted", "forgotten"] = "subtracted",
        traps: TrapWeights = DEFAULT_TRAPS,
    ) -> None:
        """Set up the attack.

        Args:
            target: width rate of the attacked clients; without one, the narrowest cohort.
            scope: `update` moves the attacked clients' window so that their whole first layer is new in the second
                round; `node` keeps to the plan and uses the neurons that happen to be new.
            others: all other clients get a constant model, in which no gradient reaches the first layer; or the honest
                model, frozen for both rounds.
            fill: value of the constant model.
            noise: uniform noise on the constant model in the second round, as a share of `fill`, so that clients do
                not see the same model twice; drawn for every client separately, as in the public code; 0 for none.
            noised: which tensors get noise; noise after the first layer lets gradients through again.
            own_noise: the server subtracts the noise that it sent; or does not, as published.
            traps: trap weights that the attacked clients get.
        """
        super().__init__(target, traps)
        self.scope, self.others, self.fill = scope, others, fill
        self.noise, self.noised, self.own_noise = noise, noised, own_noise

    def problems(self) -> Iterator[Problem]:
        if self.noise and self.others == "frozen":
            remedy = "set others to constant, or noise to 0"
            yield Problem("noise on a frozen model", "it would no longer be the honest one", remedy)

    def usual_target(self, rates: Sequence[float]) -> float:
        """The narrowest cohort, as in the paper."""
        return rates[-1]

    def deviation(self, method: SubmodelMethod, before: Plan, after: Plan) -> SubmodelMethod | None:
        return None if self.scope == "node" else MovedWindow(method, before, after, self.targets(after))

    def sends(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        if stage == 1 and client in self.targets(knowledge.plan(stage)):
            return knowledge.with_trap_weights(self.traps, index)
        honest = knowledge.theta[index.cpu()]
        if self.others == "frozen":
            return honest
        constant = torch.full_like(honest, self.fill)
        return constant + self._noise(knowledge, stage, client, index.cpu()) if self.noise and stage == 1 else constant

    def announces(self, knowledge: ServerKnowledge, stage: int) -> Tensor:
        """The model without noise: no single model is what all clients get once each has noise of its own."""
        return knowledge.theta if self.others == "frozen" else torch.full_like(knowledge.theta, self.fill)

    def believes(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        sent = self.sends(knowledge, stage, client, index)
        attacked = client in self.targets(knowledge.plan(stage))
        forgets = self.noise and self.own_noise == "forgotten" and stage == 1 and not attacked
        return torch.full_like(sent, self.fill) if forgets else sent

    def isolate(self, knowledge: ServerKnowledge, observations: Sequence[Observation]) -> IsolatedUpdate | NotAvailable:
        """Difference of the sums on the coordinates that only the attacked clients enter, and no client leaves."""
        before, after = observations
        attacked, present = self.targets(after.plan), self.present(after)
        coordinates = (before.holders(attacked) == 0) & (after.holders(present) == len(present))
        for client in {*before.clients, *after.clients} - set(present):
            coordinates &= before.holders([client]) == after.holders([client])
        if not coordinates.any():
            return NotAvailable(
                "no weight has the attacked clients in the second round alone and all others in both or in neither"
            )
        return self.isolated(knowledge, 1, after, coordinates, after.change - before.change)

    def _noise(self, knowledge: ServerKnowledge, stage: int, client: int, index: Tensor) -> Tensor:
        """Uniform noise of one client, at its coordinates, in proportion to the mean of every tensor (Eq. 7)."""
        space, round_ = knowledge.space, knowledge.first + stage
        draw = torch_generator(knowledge.public.seed, "cover noise", round_, client)
        noise = torch.rand(len(index), generator=draw, dtype=torch.float32).to(knowledge.theta) * 2 - 1
        first = space.blocks[0].name.rpartition(".")[0] + "."
        noised = torch.zeros(space.size, dtype=torch.bool)
        for block in space.blocks:
            quiet = self.noised == "first-layer" and not block.name.startswith(first)
            noised[block.coordinates] = not quiet and block.start < space.trainable
        return noise * self.noise * abs(self.fill) * noised[index]
