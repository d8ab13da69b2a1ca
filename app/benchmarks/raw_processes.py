"""Federated averaging written directly in PyTorch, with the clients dealt to worker processes."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from app.benchmarks.competitors import FastLoop, correct_answers, flat
from app.benchmarks.processes import new_processes
from app.benchmarks.work import Run, Stopwatch, Work

_LOOPS: list[FastLoop] = []
"""The loop of this worker process."""


def raw_processes(work: Work, rounds: int, workers: int) -> Run:
    """Worker processes with one intra-op thread each, one client at a time per process."""
    loop, watch, correct = FastLoop(work), Stopwatch(), 0
    with new_processes(workers, _start, work) as pool:
        for round_ in range(rounds):
            correct, busy = _round(loop, pool, round_, workers)
            watch.lap(busy)
    return watch.run(flat(loop.net), correct)


@torch.no_grad()
def _round(loop: FastLoop, pool: ProcessPoolExecutor, round_: int, workers: int) -> tuple[int, float]:
    """Train all clients and average them; returns the correct answers and the CPU seconds of the workers."""
    work = loop.work
    ends = [-(-work.clients * worker // workers) for worker in range(workers + 1)]  # the first ones have one more
    shares = [range(first, end) for first, end in pairwise(ends)]  # in their order, as one worker would add them up
    done = list(pool.map(partial(_trained, round_, flat(loop.net).numpy()), shares))
    total = torch.from_numpy(np.sum([part for part, _, _ in done], axis=0))
    _write(loop, total / work.clients)
    correct = sum(right for _, right, _ in done)
    correct += correct_answers(loop.net, loop.data.test) if work.evaluate else 0
    return correct, sum(busy for _, _, busy in done)


def _start(work: Work) -> None:
    torch.set_num_threads(1)
    _LOOPS.append(FastLoop(work))


@torch.no_grad()
def _trained(round_: int, vector: np.ndarray, clients: range) -> tuple[np.ndarray, int, float]:
    """Sum of the clients' parameters, correct answers of their evaluations, and CPU seconds."""
    loop, started = _LOOPS[0], time.process_time()
    _write(loop, torch.from_numpy(vector))
    torch._foreach_zero_(loop.total)
    correct = sum(loop.train(round_, client) for client in clients)
    total = torch.cat([value.reshape(-1) for value in loop.total])
    return total.numpy(), correct, time.process_time() - started


def _write(loop: FastLoop, vector: Tensor) -> None:
    parameters = list(loop.net.parameters())
    for parameter, part in zip(parameters, vector.split([each.numel() for each in parameters]), strict=True):
        parameter.copy_(part.view(parameter.shape))
