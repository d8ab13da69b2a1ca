"""The scenarios of `scripts/bench shadows`: what shadow models cost beside plain training."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.benchmarks.raw import naive, raw_sequence, raw_threads
from app.benchmarks.table import Table, seconds_row
from app.benchmarks.timing import Effort, compare
from app.benchmarks.work import LEARNING_RATE, SEED, Competitor, Run, Work
from app.federation.execution.executors import available_cores
from app.federation.local_training import LocalTraining
from app.models.cnn import CNN

SHADOWS = 16
SMALL = partial(CNN, u=8)
"""The papers' small network."""


def shadow_tables(quick: bool) -> Iterator[Table]:
    """Measure one scenario after the other."""
    work = Work(SHADOWS, 128 if quick else 1000, 128, net=SMALL, tests=16)
    effort = Effort(1, 1) if quick else Effort(3, 2)
    competitors: dict[str, Competitor] = {
        f"{SHADOWS} models by a raw loop, worker threads": partial(raw_threads, workers=available_cores()),
        f"{SHADOWS} models by a raw loop, in sequence": raw_sequence,
        f"{SHADOWS} shadows": shadows,
        f"{SHADOWS} models as most code has it": naive,
    }
    title = f"{SHADOWS} models, {work.samples} samples each, one epoch of the papers' small CNN"
    yield compare(title, work, competitors, {f"{SHADOWS} shadows": 1.15}, effort)
    yield _kept(work)


def shadows(work: Work, rounds: int) -> Run:
    """Shadows trained centrally, one per client of the work; the first round is not timed."""
    public, data = _public(work, rounds), work.data()
    jobs = [ShadowJob(number, 1.0, data.membership.members[number]) for number in range(work.clients)]
    train_centrally(public, jobs, (1,), SEED)
    wall, cpu = time.perf_counter(), time.process_time()
    models = train_centrally(public, jobs, (rounds - 1,), SEED)
    spent = (time.perf_counter() - wall) / (rounds - 1), (time.process_time() - cpu) / (rounds - 1)
    return Run((spent[0],) * (rounds - 1), (spent[1],) * (rounds - 1), models[0][-1].vector)


def _kept(work: Work) -> Table:
    """Making shadows the first time, and looking them up for the next attack or the next run."""
    public = _public(work, rounds=1)
    target = AttackedModel("target", 0, work.samples, (Snapshot(1, 1.0, torch.zeros(1)),))
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            started = time.perf_counter()
            CentralShadows(public, {}, SHADOWS, Path(folder)).shadows(target, "out")
            seconds.append(time.perf_counter() - started)
    rows = [
        seconds_row("trained", seconds[:1], [], seconds[0]),
        seconds_row("looked up", seconds[1:], [], seconds[0]),
    ]
    return Table(f"{SHADOWS} shadows, first and second time", "s", "trained", tuple(rows))


def _public(work: Work, rounds: int) -> PublicKnowledge:
    data = work.data()
    return PublicKnowledge(
        prototype=work.initial_net().to(memory_format=torch.channels_last),
        store=data.store,
        local=LocalTraining(batch_size=work.batch_size),
        learning_rates=(LEARNING_RATE,) * max(1, rounds),
        auxiliary=torch.cat([data.train_indices(client) for client in range(2)]).numpy(),
    )
