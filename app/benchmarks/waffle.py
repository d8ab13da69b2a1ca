"""`scripts/bench waffle`: small clients with batches of ten, the worst case for the overhead of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from app.benchmarks.competitors import FastLoop, rampart, raw_sequence, raw_threads, thread_counts, timed_rounds
from app.benchmarks.measurements import Effort, Table, compare
from app.benchmarks.work import SEED, Competitor, Run, Work
from app.common.seeding import torch_generator
from app.models.base import DataShape, ScalableNet
from app.models.convnet import ConvNet
from app.models.factorised import Factorised
from app.models.mlp import MLP

GREY = DataShape(1, 28, 28, 10)
PLAIN_MLP = partial(MLP, hidden=(200,), bias=False)
FACTOR_MLP = partial(Factorised, net=PLAIN_MLP, factors={"layers.hidden1": 120})
PLAIN_CONV = partial(ConvNet, bias=False)
FACTOR_CONV = partial(Factorised, net=PLAIN_CONV, factors={"*conv": 25})
DESCENT = partial(SGD, lr=0.04)


def waffle_tables(quick: bool) -> Iterator[Table]:
    """WAFFLe's networks with and without factors: ten clients in a round, 480 samples each, batches of ten."""
    samples, effort = (60, Effort(1, 1)) if quick else (480, Effort(5, 2))
    work = Work(10, samples, 10, shape=GREY, tests=16, optimizer=DESCENT)
    for name, plain, factors in (("MLP", PLAIN_MLP, FACTOR_MLP), ("ConvNet", PLAIN_CONV, FACTOR_CONV)):
        yield _table(f"{name}, FedAvg", replace(work, net=plain), raw_sequence, effort)
        yield _table(f"{name}, WAFFLe", replace(work, net=factors), raw_waffle, effort)


def _table(title: str, work: Work, raw: Callable[..., Run], effort: Effort) -> Table:
    competitors: dict[str, Competitor | Mapping[str, Competitor]] = {
        "raw loop, one by one": thread_counts(raw),
        "rampart": rampart,
        "rampart, one by one": partial(rampart, executor="sequence"),
        "rampart, worker threads": partial(rampart, executor="threads"),
    }
    if raw is raw_sequence:
        competitors["raw loop, worker threads"] = thread_counts(raw_threads, "workers")
    table = compare(f"{title}: {work}", work, competitors, {}, effort)
    seen = work.clients * work.samples
    rows = tuple(
        replace(row, remark=", ".join(filter(None, (f"{seen / row.value:,.0f} samples/s", row.remark))))
        for row in table.rows
    )
    return replace(table, rows=rows)


def raw_waffle(work: Work, rounds: int, threads: int | None = None) -> Run:
    """WAFFLe written directly in PyTorch: one client after the other, nothing but the local steps and the mean."""
    torch.set_num_threads(threads or torch.get_num_threads())
    loop = _WaffleLoop(work)
    return timed_rounds(rounds, partial(loop.round, mapped=map), loop.net)


class _WaffleLoop(FastLoop):
    """Private parameters are loaded before a client trains and saved after."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        private = {name: self.net.get_parameter(name).detach() for name in self.net.private_names()}
        self._own = [{name: value.clone() for name, value in private.items()} for _ in range(work.clients)]
        self.net.mask_private()

    def round(self, number: int, mapped: Callable[..., Iterator[int]]) -> int:
        correct = super().round(number, mapped)
        self.net.mask_private()
        return correct

    def train(self, round_: int, client: int) -> int:
        net, own = self.local_net(), self._own[client]
        for name, value in own.items():
            net.get_parameter(name).copy_(value)
        self._fit(net, round_, client)
        for name, value in own.items():
            value.copy_(net.get_parameter(name))
        torch._foreach_add_(self.total, list(net.parameters()))
        return 0

    @torch.enable_grad()
    def _fit(self, net: ScalableNet, round_: int, client: int) -> None:
        net.train()
        noise = torch_generator(SEED, "noise", round_, client)
        optimizer = self.work.optimizer(net.parameters())
        optimizer.param_groups[0]["fused"] = True
        for images, labels in self.batches(round_, client):
            _settle(net, noise)
            penalty = net.penalty()
            assert penalty is not None
            loss = cross_entropy(net(images), labels) + penalty / self.work.samples
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
