"""Every client of the federation on its own test set with the model it would use now; clients that join late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from app.common.dealing import deal
from app.common.errors import Problem
from app.common.ranges import Count, Several, Share, Whole
from app.common.seeding import numpy_generator, torch_generator
from app.common.wording import counted
from app.federation.evaluation import (
    LARGE_BATCH,
    Score,
    evaluates_by_batch,
    score,
    score_each,
    statistics_context,
    wants_posthoc,
)
from app.federation.execution.client_trainer import LocalContext
from app.federation.execution.distributed import gather
from app.federation.execution.executors import make_executor
from app.federation.execution.tasks import ClientTask
from app.federation.parameters import WidthNets
from app.federation.private_coordinates import PersonalCoordinates

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

Choice = Literal["own", "another", "mean", "none"]
"""Private weights: the client's own, those of another client of its group, the mean over clients, or the server's."""


@dataclass(frozen=True)
class LocalScore:
    """One client's model on the client's own test set."""

    client: int
    score: Score  # counts on its test set
    own: bool  # whether the client has trained private values; always False for networks without private coordinates


class AllClients:
    """Evaluates all clients, participants or not, with the server's current model and their private values.

    A client that has never taken part in a round has no private values, and uses the server's model as it is. The plan
    of the round (0-based) tells how wide a network each client uses.
    """

    def __init__(self, federation: FederatedModule, round_: int) -> None:
        self._federation = federation
        self._plan = federation.plan_of(round_)
        self._theta = federation.space.read(federation.net)
        self._nets = WidthNets(federation.net)
        self._own = federation.own_values

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Private values that can be compared; without private coordinates there is nothing to exchange."""
        return ("own", "another", "mean", "none") if self._own else ("own",)

    def scores(self, choice: Choice = "own") -> tuple[LocalScore, ...]:
        """Scores of all clients with a test set, by id; equal on all processes."""
        blocks = self._blocks(choice)
        found = self._federation.executor.map(lambda block: self._scores(block, self._model(block[0], choice)), blocks)
        pairs = (zip(block, scores, strict=True) for block, scores in zip(blocks, found, strict=True))
        return self._listed(chain.from_iterable(pairs))

    def fine_tuned(self) -> tuple[LocalScore, ...]:
        """The same after one more local training of every client, which is not uploaded."""
        tasks = (self._task(client, self._started(client)) for client in self._share())
        return self._scored(self._trained(self._federation.local_context.undefended(), tasks))

    @property
    def _clients(self) -> tuple[int, ...]:
        return self._federation.client_pool.present_in(self._plan.round)

    def _share(self) -> list[int]:
        """Clients with a test set that this process evaluates, dealt by their cost."""
        federation = self._federation
        tested = [client for client in self._clients if len(federation.data.test_indices(client))]
        costs = [self._plan.cost(client) for client in tested]
        return [tested[place] for place in deal(costs, federation.trainer.world_size)[federation.global_rank]]

    def _blocks(self, choice: Choice) -> list[list[int]]:
        """This process's clients; those that use the same model are together, with samples for one large batch."""
        blocks: list[list[int]] = []
        filling: dict[Hashable, tuple[list[int], int]] = {}  # by model: the block, and the samples in it
        for client in self._share():
            alone = not self._samples_are_independent or (choice in ("own", "another") and client in self._holders)
            key = ("client", client) if alone else ("submodel", self._plan.key(client))
            block, samples = filling.get(key, ([], 0))
            if not block:
                blocks.append(block)
            block.append(client)
            samples += len(self._federation.data.test_indices(client))
            filling[key] = (block, samples) if samples < LARGE_BATCH else ([], 0)
        return blocks

    @cached_property
    def _samples_are_independent(self) -> bool:
        """Whether a sample's result depends on nothing but the model: not on its batch, client, or random numbers."""
        net = self._federation.net
        return not (evaluates_by_batch(net) or wants_posthoc(net) or net.sample_noise(torch.Generator()))

    def _scored(self, vectors: Iterable[tuple[int, Tensor]]) -> tuple[LocalScore, ...]:
        return self._listed((client, self._scores([client], vector)[0]) for client, vector in vectors)

    def _listed(self, scores: Iterable[tuple[int, Score]]) -> tuple[LocalScore, ...]:
        own = [LocalScore(client, one, client in self._holders) for client, one in scores]
        return tuple(sorted((one for part in gather(own) for one in part), key=lambda one: one.client))

    def _model(self, client: int, choice: Choice) -> Tensor:
        return self._vector(client, self._values(client, choice))

    def _vector(self, client: int, values: Tensor | None, own: PersonalCoordinates | None = None) -> Tensor:
        """The client's model; where `values` of the coordinates that are its own are missing, with the server's."""
        index = self._plan.index(client)
        vector = self._theta[index]
        if values is not None:
            (self._own if own is None else own).put(values, index, vector)
        return vector

    def _values(self, client: int, choice: Choice) -> Tensor | None:
        if choice == "mean" and self._holders:
            return self._mean
        if choice == "none" or client not in self._holders:
            return None
        return self._own.of(client if choice == "own" else self._partners[client])

    @cached_property
    def _holders(self) -> frozenset[int]:
        """Clients that have trained private values."""
        return frozenset(self._own.clients)

    @cached_property
    def _mean(self) -> Tensor:
        return torch.stack([self._own.of(holder) for holder in self._own.clients]).mean(dim=0)

    @cached_property
    def _partners(self) -> dict[int, int]:
        """The client with which each client exchanges its private values: another one of its group.

        The only holder of a group exchanges with the next client of any group, or, if there is none, with itself.
        """
        federation = self._federation
        order = numpy_generator(federation.seed, "exchange").permutation(self._own.clients).tolist()
        groups, members = federation.data.groups, defaultdict(list)
        for client in order:
            members[groups[client]].append(client)
        partners = _next_of(order)
        for group in members.values():
            partners |= _next_of(group) if len(group) > 1 else {}
        return partners

    def _scores(self, clients: Sequence[int], vector: Tensor) -> list[Score]:
        """Scores of clients that use the same model; of several only where samples are independent."""
        federation, first = self._federation, clients[0]
        net, flat = self._nets.of(self._plan.rate(first))
        flat.write(vector)
        noise = torch_generator(federation.seed, "everyone", self._plan.round, first)
        for name, value in net.sample_noise(noise).items():
            net.get_buffer(name).copy_(value)
        store, size = federation.data.store.rightly_labelled, federation.evaluation.batch_size
        tests = [federation.data.test_indices(client) for client in clients]
        with (
            federation.local_context.precision(),
            statistics_context(net, store, federation.data.train_indices(first), size),
        ):
            return score_each(net, store, tests, size) if len(tests) > 1 else [score(net, store, tests[0], size)]

    def _started(self, client: int) -> Tensor:
        """The vector that local training starts from: the server's model with the values that are the client's own."""
        own = self._own if client in self._holders else self._federation.personal
        return self._vector(client, own.of(client), own)

    def _trained(self, context: LocalContext, tasks: Iterable[ClientTask]) -> Iterator[tuple[int, Tensor]]:
        """The clients' models after local training, a block at a time."""
        federation, waiting = self._federation, iter(tasks)
        executor = make_executor(federation.executor_kind, context, federation.worker_count, [])
        try:
            while block := list(islice(waiting, federation.block_size)):
                yield from ((trained.task.client, trained.vector) for trained in executor.run(block))
        finally:
            executor.close()

    def _task(self, client: int, vector: Tensor, later: int = 0) -> ClientTask:
        """One more local training of a model, keyed like the next round, or like one `later`."""
        federation = self._federation
        return ClientTask(
            client=client,
            round=self._plan.round + 1 + later,
            capacity=self._plan.rate(client),
            received=vector,
            key=None,
            lr=federation.local.client_lr(federation.learning_rate, self._plan.rate(client)),
            train=federation.data.train_indices(client),
            test=federation.data.test_indices(client),
            evaluate=False,
            owned=federation.data.owned_classes(client) if federation.local.mask_labels else None,
            index=self._plan.index(client),
        )


def _next_of(clients: Sequence[int]) -> dict[int, int]:
    """The client after each one, and the first after the last."""
    return dict(zip(clients, [*clients[1:], *clients[:1]], strict=True))


@dataclass(frozen=True)
class Newcomers:
    """Clients that join late, or when the training is over; a dictionary of weight factors may grow with them.

    WAFFLe (section 2.2) lets the server's capacity grow when clients join, without training anew, and leaves open how.
    Here the server adds factors after the existing ones, which keeps the prior of those. A client that has trained
    before does not use them at first; newcomers start from the prior over all factors.

    Attributes:
        clients: how many, drawn at random; 0 for none.
        visits: local trainings of their private values, each with the usual epochs, at least 1; only for clients that
            join when the training is over.
        round: first round, at least 2, in which they may take part; without one, or where it is not reached, they join
            when the training is over.
        group: subpopulation that they are drawn from, such as `minority`; without one, all clients.
        dictionary: share of the factors of every layer, in (0, 1], that there are before that round; 1 for a dictionary
            that does not grow.
    """

    clients: Whole = 0
    visits: Count = 10
    round: Several | None = None
    group: str | None = None
    dictionary: Share = 1.0

    @property
    def joining(self) -> int | None:
        """The round in which they join, counted from 0."""
        return None if self.round is None else self.round - 1

    def problems(self, groups: Sequence[str]) -> Iterator[Problem]:
        clients = len(groups)
        if self.clients >= clients:
            yield Problem(
                f"{self.clients} of {clients} clients are newcomers",
                "nobody would be left to train what they join",
                f"set --model.newcomers.clients below {clients}",
            )
        eligible = sum(group == self.group for group in groups)
        if self.group is not None and self.clients > eligible:
            yield Problem(
                f"{counted(self.clients, 'newcomer')} from group {self.group!r} with {counted(eligible, 'client')}",
                "fewer would join than asked for",
                f"choose --model.newcomers.group from {', '.join(sorted(set(groups)))}, or fewer newcomers",
            )
        yield from self._growth_problems()

    def _growth_problems(self) -> Iterator[Problem]:
        if self.dictionary < 1 and self.round is None:
            yield Problem(
                f"newcomers.dictionary is {self.dictionary}, but newcomers.round is not set",
                "the other factors would never be used",
                "set --model.newcomers.round to the round in which the dictionary grows",
            )

    def chosen(self, groups: Sequence[str], seed: int) -> frozenset[int]:
        order = numpy_generator(seed, "newcomers").permutation(len(groups)).tolist()
        eligible = [client for client in order if self.group in (None, groups[client])]
        return frozenset(eligible[: self.clients])


class Joining(AllClients):
    """Newcomers with the server's model. Nothing is uploaded, and the federation does not change."""

    def __init__(self, federation: FederatedModule, round_: int) -> None:
        super().__init__(federation, round_)
        self._own = federation.personal  # newcomers have no models of their own

    @property
    def _clients(self) -> tuple[int, ...]:
        return tuple(sorted(self._federation.client_pool.absent))

    def scores(self, choice: Choice = "none") -> tuple[LocalScore, ...]:
        return super().scores(choice)

    def fitted(self) -> tuple[LocalScore, ...]:
        """Scores after the newcomers have trained their private values, with everything shared frozen."""
        federation = self._federation
        private = federation.space.names(federation.personal.mask)
        context = replace(federation.local_context.undefended(), trained=private)
        vectors = {client: self._started(client) for client in self._share()}
        for visit in range(federation.newcomers.visits):
            tasks = [self._task(client, vector, visit) for client, vector in vectors.items()]
            vectors = dict(self._trained(context, tasks))
        return self._scored(vectors.items())
