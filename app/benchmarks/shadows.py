"""`scripts/bench shadows`: time of training shadow models, and of loading stored ones."""

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
from app.benchmarks.competitors import naive, raw_sequence, raw_threads
from app.benchmarks.measurements import Effort, Table, compare, measured_row, seconds_of
from app.benchmarks.work import LEARNING_RATE, SEED, Competitor, Run, Work
from app.federation.local_training import LocalTraining
from app.models.cnn import CNN

SHADOWS = 16
SMALL = partial(CNN, u=8)
"""The papers' small network."""


def shadow_tables(quick: bool) -> Iterator[Table]:
    """Measure training, then loading."""
    work = Work(SHADOWS, 128 if quick else 1000, 128, net=SMALL, tests=16)
    effort = Effort(1, 1) if quick else Effort(3, 2)
    competitors: dict[str, Competitor] = {
        f"{SHADOWS} models by a raw loop, worker threads": raw_threads,
        f"{SHADOWS} models by a raw loop, in sequence": raw_sequence,
        f"{SHADOWS} shadows": shadows,
        f"{SHADOWS} models as most code has it": naive,
    }
    title = f"{SHADOWS} models, {work.samples} samples each, one epoch of the papers' small CNN"
    yield compare(title, work, competitors, {f"{SHADOWS} shadows": 1.05}, effort)
    yield _stored(work)


def shadows(work: Work, rounds: int) -> Run:
    """Shadows trained centrally, one per client of the work; the first round is not timed."""
    knowledge, data = _knowledge(work, rounds), work.data()
    jobs = [ShadowJob(number, 1.0, data.membership.members[number], SEED) for number in range(work.clients)]
    train_centrally(knowledge, jobs, (1,))
    wall, cpu, timed = time.perf_counter(), time.process_time(), rounds - 1
    models = train_centrally(knowledge, jobs, (timed,))
    seconds, cpu_seconds = (time.perf_counter() - wall) / timed, (time.process_time() - cpu) / timed
    return Run((seconds,) * timed, (cpu_seconds,) * timed, models[0][-1].vector)


def _stored(work: Work) -> Table:
    """Training shadows for the first attack, and loading them for the next attack or run."""
    knowledge = _knowledge(work, rounds=1)
    target = AttackedModel("target", 0, work.samples, (Snapshot(1, 1.0, torch.zeros(1)),))
    with tempfile.TemporaryDirectory() as folder:

        def shadows() -> object:
            return CentralShadows(knowledge, {}, SHADOWS, Path(folder)).shadows(target, "out")

        first, second = seconds_of(shadows), seconds_of(shadows)
    rows = measured_row("trained", first, first), measured_row("loaded", second, first)
    return Table(f"{SHADOWS} shadows, first and second time", "s", "trained", rows)


def _knowledge(work: Work, rounds: int) -> PublicKnowledge:
    data = work.data()
    return PublicKnowledge(
        prototype=work.initial_net().to(memory_format=torch.channels_last),
        store=data.store,
        local=LocalTraining(batch_size=work.batch_size),
        learning_rates=(LEARNING_RATE,) * max(1, rounds),
        auxiliary=torch.cat([data.train_indices(client) for client in range(2)]).numpy(),
    )
