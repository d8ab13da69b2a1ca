"""`scripts/bench federation`: time of rounds and peak memory, against raw PyTorch and other frameworks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from app.benchmarks.competitors import naive, rampart, raw_sequence, raw_threads, thread_counts
from app.benchmarks.measurements import BenchmarkRow, Effort, Table, compare, measured_row, progress
from app.benchmarks.raw_processes import raw_processes
from app.benchmarks.work import Competitor, Work
from app.models.base import DataShape
from app.models.mlp import MLP

PEERS = {"flower": ("flwr[simulation]", 0.5), "pfl": ("pfl[pytorch]", 0.7)}
"""By framework: what to install, and the largest time of this application as a multiple of the framework's.

Frameworks are measured where they are installed; they are never dependencies of this application.
"""

PROCESSES = ("1 process", "{} processes")


def print_peak(clients: int, samples: int, rounds: int) -> None:
    """Train and print the largest resident memory of this process in MB; Linux only."""
    rampart(Work(clients, samples, batch_size=10), rounds)
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    print(int(peak.split()[1]) / 1024)


def memory_table() -> Table:
    """Peak memory of one federation each, in processes of their own; the data are the same in all."""
    total, pairs = 10_000, [((100, 3), (1000, 3)), ((1000, 1), (1000, 6))]
    rows: list[BenchmarkRow] = []
    for settings in pairs:
        names = [f"{clients} clients, rounds: {rounds}" for clients, rounds in settings]
        small, large = (_peak(clients, total // clients, rounds) for clients, rounds in settings)
        rows.append(measured_row(names[0], small, small))
        # the goal leaves room for the few percent by which the peak memory of equal runs differs
        rows.append(measured_row(names[1], large, small, 1.05, remark=f"{large - small:+.1f} MB"))
    return Table(f"peak memory, {total} samples in all, batch 10", "MB", "row above", tuple(rows))


def _peak(clients: int, samples: int, rounds: int) -> float:
    progress(f"memory: {clients} clients x {samples} samples, {rounds} rounds")
    code = f"from app.benchmarks.federation import print_peak; print_peak({clients}, {samples}, {rounds})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout.split()[-1])


def federation_tables(quick: bool) -> Iterator[Table]:
    """Measure few clients, many clients, a tiny network, and in full also memory and other frameworks."""
    digits = DataShape(1, 28, 28, 10)
    tiny = Work(10, 50 if quick else 500, 10, net=MLP, shape=digits)
    if quick:
        effort, few, many = Effort(1, 1), Work(4, 128, 128, tests=128), Work(30, 10, 10)
    else:
        effort, few, many = Effort(5, 1), Work(10, 1000, 128), Work(1000, 10, 10)
        yield few_clients(few, effort)
    yield few_clients(replace(few, evaluate=True), effort)
    yield many_clients(many, effort)
    yield tiny_net(tiny, effort)
    if not quick:
        yield memory_table()
    yield peers_table(few, effort)
    if not quick:
        yield peers_table(replace(few, evaluate=True), effort)


def few_clients(work: Work, effort: Effort) -> Table:
    """A few clients with many samples: convolutions dominate."""
    competitors: dict[str, Competitor | Mapping[str, Competitor]] = {
        "raw loop, worker threads": thread_counts(raw_threads, "workers"),
        "raw loop, worker processes": thread_counts(raw_processes, "workers", PROCESSES),
        "rampart": rampart,
        "rampart, in sequence": partial(rampart, executor="sequence"),
        "rampart, vectorised": partial(rampart, executor="vectorised"),
        "naive loop": thread_counts(naive),
    }
    return compare(str(work), work, competitors, {"rampart": 1.15}, effort)


def many_clients(work: Work, effort: Effort) -> Table:
    """Many clients with few samples: the overhead per client dominates."""
    competitors: dict[str, Competitor | Mapping[str, Competitor]] = {
        "raw loop, worker threads": thread_counts(raw_threads, "workers"),
        "rampart": rampart,
        "raw loop, worker processes": thread_counts(raw_processes, "workers", PROCESSES),
    }
    table = compare(str(work), work, competitors, {"rampart": 1.3}, effort)
    raw, own = (row.value for row in table.rows[:2])
    overhead = 1000 * (own - raw) / work.clients
    remark = f"overhead {overhead:.2f} ms per client (goal <= 3): {'met' if overhead <= 3 else 'NOT MET'}"
    return replace(table, remarks=(remark,))


def tiny_net(work: Work, effort: Effort) -> Table:
    """A tiny net with tiny batches: the interpreter dominates, so one call for all clients pays."""
    competitors: dict[str, Competitor | Mapping[str, Competitor]] = {
        "raw loop, in sequence": thread_counts(raw_sequence),
        "rampart": rampart,
        "rampart, worker threads": partial(rampart, executor="threads"),
    }
    return compare(f"MLP 784-200-10, {work}", work, competitors, {}, effort)


def peers_table(work: Work, effort: Effort) -> Table:
    """This application and the installed frameworks that can do the work: only Flower evaluates trained clients."""
    able = {name: PEERS[name] for name in PEERS if name == "flower" or not work.evaluate}
    installed = {name: peer for name, peer in _installed_peers().items() if name in able}
    missing = [
        f"{name}: not installed, skipped (pip install '{package}')"
        for name, (package, _) in able.items()
        if name not in installed
    ]
    title = f"peers, {work}"
    if not installed:
        return Table(title, "s per round", "rampart", (), tuple(missing))
    table = compare(title, work, {"rampart": rampart, **installed}, {}, effort)
    return replace(table, remarks=(*map(_peer_remark, table.rows[1:]), *missing))


def _installed_peers() -> dict[str, Mapping[str, Competitor]]:
    """The installed frameworks, with one thread and with all."""
    peers: dict[str, Mapping[str, Competitor]] = {}
    if find_spec("flwr") and find_spec("ray"):
        from app.benchmarks.flower_peer import flower

        peers["flower"] = thread_counts(flower, words=("workers of 1 thread", "workers of {} threads"))
    if find_spec("pfl"):
        from app.benchmarks.pfl_peer import pfl

        peers["pfl"] = thread_counts(pfl)
    return peers


def _peer_remark(peer: BenchmarkRow) -> str:
    """How this application stands to a framework, whose row has the opposite ratio."""
    ratio, goal = 1 / peer.ratio, PEERS[peer.name][1]
    interval = "" if peer.interval is None else " [{1:.2f}, {0:.2f}]".format(*(1 / bound for bound in peer.interval))
    met = "met" if ratio <= goal else "NOT MET"
    return f"rampart takes {ratio:.2f}{interval} x {peer.name} (goal <= {goal}): {met}"
