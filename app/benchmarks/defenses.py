"""`scripts/bench defenses`: slowdown of local steps and rounds by defenses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from app.benchmarks.competitors import rampart
from app.benchmarks.measurements import Effort, Table, compare, measured_row, progress, seconds_of
from app.benchmarks.work import LEARNING_RATE, Competitor, Work
from app.federation.execution.distributed import keep_freed_memory, one_thread
from app.models.cnn import CNN
from app.privacy.noise import NoiseStream
from app.privacy.private_steps import Batch, ClippingMethod, Mechanism, PrivateSteps
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL

BATCH = 128
GROUPED = partial(CNN, norm="group")
"""The papers' network with a norm that does not mix samples."""

METHODS: tuple[ClippingMethod, ...] = ("ghost", "hooks", "ew")


def defense_tables(quick: bool) -> Iterator[Table]:
    """Measure local steps, then rounds."""
    yield private_steps(2 if quick else 15)
    work, effort = (Work(4, 128, 128, tests=16), Effort(1, 1)) if quick else (Work(10, 1000, 128), Effort(5, 2))
    yield defended_rounds(work, effort)


def private_steps(repeats: int) -> Table:
    """Time of a DP-SGD step against a plain one, on one thread, as clients are trained on a CPU."""
    keep_freed_memory()
    steps = {"plain step": _plain_step(), **{f"DP-SGD, {method}": _private_step(method) for method in METHODS}}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    progress(f"a local step: {', '.join(steps)}")
    with one_thread():
        for _ in range(repeats + 1):
            for name, step in steps.items():
                seconds[name].append(seconds_of(step))
    timed = {name: times[1:] for name, times in seconds.items()}  # the first step warms up
    base = statistics.median(timed["plain step"])
    goals = {"DP-SGD, ghost": 2.1}
    rows = tuple(measured_row(name, times, base, goals.get(name)) for name, times in timed.items())
    return Table(f"a local step, {BATCH} images of CIFAR's shape, CNN with group norm", "s", "plain step", rows)


def defended_rounds(work: Work, effort: Effort) -> Table:
    """Time of a round whose clients defend their uploads against a plain round."""
    competitors: dict[str, Competitor] = {
        "plain": rampart,
        "MemDefense": partial(rampart, defenses=lambda: [MemDefense()]),
        "NbAFL": partial(rampart, defenses=lambda: [NbAFL()]),
    }
    title = f"a round of {work.clients} clients, {work.samples} samples each, with a defense"
    return compare(title, work, competitors, {"MemDefense": 1.05, "NbAFL": 1.05}, effort)


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
