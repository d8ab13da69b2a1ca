"""The scenarios of `scripts/bench federation`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from app.benchmarks.memory import memory_table
from app.benchmarks.ours import ours
from app.benchmarks.peers import peers_table
from app.benchmarks.raw import naive, raw_sequence, raw_threads
from app.benchmarks.table import Table
from app.benchmarks.timing import Effort, compare
from app.benchmarks.work import Competitor, Work
from app.federation.executors import available_cores
from app.models.base import DataShape
from app.models.mlp import MLP


@dataclass(frozen=True)
class Sizes:
    """How large the scenarios are.

    Attributes:
        few: 10 clients with many samples.
        many: many clients with 10 samples.
        tiny: a tiny net with tiny batches.
        effort: how often each is measured.
    """

    few: Work
    many: Work
    tiny: Work
    effort: Effort


_DIGITS = DataShape(1, 28, 28, 10)
FULL = Sizes(Work(10, 1000, 128), Work(1000, 10, 10), Work(10, 500, 10, net=MLP, shape=_DIGITS), Effort(3, 2))
QUICK = Sizes(Work(4, 128, 128, tests=128), Work(30, 10, 10), Work(10, 50, 10, net=MLP, shape=_DIGITS), Effort(1, 1))


def federation_tables(quick: bool) -> Iterator[Table]:
    """Measure one scenario after the other."""
    sizes = QUICK if quick else FULL
    if not quick:
        yield few_clients(sizes.few, sizes.effort)
    yield few_clients(replace(sizes.few, evaluate=True), sizes.effort)
    yield many_clients(sizes.many, sizes.effort)
    yield tiny_net(sizes.tiny, sizes.effort)
    if not quick:
        yield memory_table()
        yield peers_table(sizes.few, Effort(2, 2))
        yield peers_table(replace(sizes.few, evaluate=True), Effort(2, 2))


def few_clients(work: Work, effort: Effort) -> Table:
    """A few clients with many samples: convolutions dominate."""
    competitors: dict[str, Competitor] = {
        "raw loop, worker threads": _raw_threads(),
        "rampart": ours,
        "rampart, in sequence": partial(ours, executor="sequence"),
        "rampart, vectorised": partial(ours, executor="vectorised"),
        "naive loop": naive,
    }
    kind = "with evaluation" if work.evaluate else "training only"
    return compare(f"{_size(work)}, {kind}", work, competitors, {"rampart": 1.15}, effort)


def many_clients(work: Work, effort: Effort) -> Table:
    """Many clients with few samples: what a client costs beyond its training dominates."""
    competitors: dict[str, Competitor] = {"raw loop, worker threads": _raw_threads(), "rampart": ours}
    table = compare(f"{_size(work)}, training only", work, competitors, {"rampart": 1.3}, effort)
    raw, mine = (row.value for row in table.rows)
    overhead = 1000 * (mine - raw) / work.clients
    remark = f"overhead {overhead:.2f} ms per client (goal <= 3): {'met' if overhead <= 3 else 'NOT MET'}"
    return replace(table, remarks=(remark,))


def tiny_net(work: Work, effort: Effort) -> Table:
    """A tiny net with tiny batches: the interpreter dominates, so one call for all clients pays."""
    competitors: dict[str, Competitor] = {
        "raw loop, in sequence": raw_sequence,
        "rampart": ours,
        "rampart, worker threads": partial(ours, executor="threads"),
    }
    return compare(f"MLP 784-200-10, {_size(work)}, training only", work, competitors, {}, effort)


def _raw_threads() -> Competitor:
    return partial(raw_threads, workers=max(1, available_cores()))


def _size(work: Work) -> str:
    return f"{work.clients} clients x {work.samples} samples, batch {work.batch_size}"
