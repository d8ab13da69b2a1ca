"""`scripts/bench waffle`: small clients with batches of ten, the worst case for the overhead of a framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from app.benchmarks.competitors import LoadedData, rampart, raw_sequence, raw_threads, timed_rounds
from app.benchmarks.measurements import Effort, Table, compare
from app.benchmarks.work import SEED, Competitor, Run, Work
from app.models.base import DataShape, ScalableNet
from app.models.convnet import ConvNet
from app.models.factorised import Factorised
from app.models.mlp import MLP
from app.seeding import torch_generator

GREY = DataShape(1, 28, 28, 10)
PLAIN_MLP = partial(MLP, hidden=(200,), bias=False)
FACTOR_MLP = partial(Factorised, net=PLAIN_MLP, factors={"layers.hidden1": 120})
PLAIN_CONV = partial(ConvNet, bias=False)
FACTOR_CONV = partial(Factorised, net=PLAIN_CONV, factors={"*conv": 25})
DESCENT = partial(SGD, lr=0.04)


def waffle_tables(quick: bool) -> Iterator[Table]:
    """WAFFLe's networks with and without factors: ten clients in a round, 480 samples each, batches of ten."""
    samples, effort = (60, Effort(1, 1)) if quick else (480, Effort(3, 3))
    work = Work(10, samples, 10, shape=GREY, tests=16, optimizer=DESCENT)
    for name, plain, factors in (("MLP", PLAIN_MLP, FACTOR_MLP), ("ConvNet", PLAIN_CONV, FACTOR_CONV)):
        yield _table(f"{name}, FedAvg", replace(work, net=plain), raw_sequence, effort)
        yield _table(f"{name}, WAFFLe", replace(work, net=factors), raw_waffle, effort)


def _table(title: str, work: Work, raw: Competitor, effort: Effort) -> Table:
    competitors: dict[str, Competitor] = {
        "raw loop, one by one": raw,
        "rampart": rampart,
        "rampart, one by one": partial(rampart, executor="sequence"),
        "rampart, worker threads": partial(rampart, executor="threads"),
    }
    if raw is raw_sequence:
        competitors["raw loop, worker threads"] = raw_threads
    table = compare(f"{title}: {work.size}, {work.kind}", work, competitors, {}, effort)
    seen = work.clients * work.samples
    rows = tuple(replace(row, remark=f"{seen / row.value:,.0f} samples/s") for row in table.rows)
    return replace(table, rows=rows)


def raw_waffle(work: Work, rounds: int) -> Run:
    """WAFFLe written directly in PyTorch: one client after the other, nothing but the local steps and the mean."""
    loop = _WaffleLoop(work)
    return timed_rounds(rounds, loop.round, loop.net)


class _WaffleLoop:
    """One network, reused for all clients; private parameters are loaded before a client trains and saved after."""

    def __init__(self, work: Work) -> None:
        self.work, self.data = work, LoadedData.of(work, channels_last=True)
        self.net, self._local = work.initial_net(), work.initial_net()
        private = set(self.net.private_names())
        self._private = [name in private for name, _ in self.net.named_parameters()]
        start = [parameter.detach().clone() for parameter in self.net.parameters()]
        self._own = [[tensor.clone() for tensor in start] for _ in range(work.clients)]
        self.net.mask_private()

    @torch.no_grad()
    def round(self, number: int) -> int:
        total = [torch.zeros_like(parameter) for parameter in self.net.parameters()]
        for client in range(self.work.clients):
            places = zip(self._local.parameters(), self.net.parameters(), self._own[client], self._private, strict=True)
            for local, shared, own, private in places:
                local.copy_(own if private else shared)
            self._train(self._local, number, client)
            self._own[client] = [parameter.detach().clone() for parameter in self._local.parameters()]
            torch._foreach_add_(total, list(self._local.parameters()))
        for parameter, value, private in zip(self.net.parameters(), total, self._private, strict=True):
            if not private:
                parameter.copy_(value / self.work.clients)
        return 0

    @torch.enable_grad()
    def _train(self, net: ScalableNet, round_: int, client: int) -> None:
        net.train()
        images, labels = self.data.clients[client]
        noise = torch_generator(SEED, "noise", round_, client)
        optimizer = self.work.optimizer(net.parameters())
        optimizer.param_groups[0]["fused"] = True
        for positions in self.work.order(round_, client):
            _settle(net, noise)
            penalty = net.penalty()
            assert penalty is not None
            loss = cross_entropy(net(images[positions]), labels[positions]) + penalty / self.work.samples
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        _settle(net, noise)


@torch.no_grad()
def _settle(net: ScalableNet, noise: torch.Generator) -> None:
    for name, value in net.sample_noise(noise).items():
        net.get_buffer(name).copy_(value)
    for name, (low, high) in net.clamp_ranges().items():
        net.get_parameter(name).clamp_(low, high)
