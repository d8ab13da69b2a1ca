"""`scripts/bench defenses`: slowdown of local steps and rounds by defenses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from lightning.pytorch import Callback
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from app.benchmarks.competitors import rampart
from app.benchmarks.measurements import Effort, Table, compare, cpu_seconds_of, measured_row, progress
from app.benchmarks.work import LEARNING_RATE, Competitor, Work
from app.crypto.cost import masked_round
from app.crypto.secure_aggregation.parameters import GraphSettings
from app.crypto.secure_aggregation.streams import word_for
from app.federation.execution.distributed import keep_freed_memory, one_thread, spare_driver_lookups
from app.models.cnn import CNN
from app.privacy.noise import NoiseStream
from app.privacy.private_steps import Batch, ClippingMethod, Mechanism, PrivateSteps
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.secure_aggregation import SecureAggregation

BATCH = 128
GROUPED = partial(CNN, norm="group")
"""The papers' network with a norm that does not mix samples."""

METHODS: tuple[ClippingMethod, ...] = ("ghost", "hooks", "ew")


def defense_tables(quick: bool) -> Iterator[Table]:
    """Measure local steps, then rounds."""
    yield private_steps(2 if quick else 15)
    work, effort = (Work(4, 128, 128, tests=16), Effort(1, 1)) if quick else (Work(10, 1000, 128), Effort(5, 1))
    yield defended_rounds(work, effort)
    yield summed_rounds(replace(work, clients=4 if quick else 20), effort)
    yield masked_sums((20, 40), 1000) if quick else masked_sums((100, 1000), 100_000)


def private_steps(repeats: int) -> Table:
    """CPU time of a DP-SGD step against a plain one, on one thread, as clients are trained on a CPU."""
    keep_freed_memory()
    spare_driver_lookups()
    steps = {"plain step": _plain_step(), **{f"DP-SGD, {method}": _private_step(method) for method in METHODS}}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    progress(f"a local step: {', '.join(steps)}")
    with one_thread():
        for _ in range(repeats + 1):
            for name, step in steps.items():
                seconds[name].append(cpu_seconds_of(step))
    timed = {name: times[1:] for name, times in seconds.items()}  # the first step warms up
    base = statistics.median(timed["plain step"])
    goals = {"DP-SGD, ghost": 1.65}
    rows = tuple(measured_row(name, times, base, goals.get(name)) for name, times in timed.items())
    return Table(f"a local step, {BATCH} images of CIFAR's shape, CNN with group norm", "CPU s", "plain step", rows)


def defended_rounds(work: Work, effort: Effort) -> Table:
    """CPU time of a round whose clients defend their uploads against a plain round."""
    competitors: dict[str, Competitor] = {
        "plain": rampart,
        "MemDefense": partial(rampart, defenses=_memdefense),
        "NbAFL": partial(rampart, defenses=_nbafl),
    }
    title = f"a round of {work.clients} clients, {work.samples} samples each, with a defense"
    return compare(title, work, competitors, {"MemDefense": 1.03, "NbAFL": 1.05}, effort, clock="cpu")


def summed_rounds(work: Work, effort: Effort) -> Table:
    """CPU time of a round under secure aggregation, both sides, against a plain round: the ratio of one client."""
    competitors: dict[str, Competitor] = {"plain": rampart, "SecureAggregation": partial(rampart, defenses=_secagg)}
    title = f"a round of {work.clients} clients, {work.samples} samples each, with secure aggregation"
    return compare(title, work, competitors, {"SecureAggregation": 1.02}, effort, clock="cpu")


def masked_sums(clients: tuple[int, int], length: int) -> Table:
    """CPU time of all steps of secure aggregation, of all clients and the server, for few clients and for many."""
    word, (few, many) = word_for(2**30), clients
    masked_round(word, few)  # warms up
    seconds = {count: cpu_seconds_of(partial(masked_round, word, count, length, GraphSettings())) for count in clients}
    rows = tuple(
        measured_row(f"{count} clients", [taken], seconds[few], 10.0 if count == many else None)
        for count, taken in seconds.items()
    )
    return Table(f"a round of secure aggregation, {length:,} values", "CPU s", f"{few} clients", rows)


# Functions by name, since competitors run in processes of their own.


def _memdefense() -> list[Callback]:
    return [MemDefense()]


def _nbafl() -> list[Callback]:
    return [NbAFL()]


def _secagg() -> list[Callback]:
    return [SecureAggregation()]


def _training() -> tuple[nn.Module, Optimizer, Batch]:
    work = Work(1, BATCH, BATCH, net=GROUPED, tests=1)
    net = work.initial_net().to(memory_format=torch.channels_last)
    data = work.data()
    return net, Adam(net.parameters(), lr=LEARNING_RATE, fused=True), data.store.batch(data.train_indices(0))


def _plain_step() -> Callable[[], object]:
    net, optimizer, (images, labels) = _training()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def _private_step(method: ClippingMethod) -> Callable[[], object]:
    net, optimizer, batch = _training()
    private = PrivateSteps(net, optimizer, Mechanism(1.0, 1.0, method, expected_batch=BATCH), NoiseStream(bytes(32)))
    return partial(private.step, batch, lambda part: cross_entropy(private.net(part[0]), part[1]))
