"""Other frameworks on the same work, where they are installed. They are never dependencies of this application."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from app.benchmarks.ours import ours
from app.benchmarks.table import BenchmarkRow, Table
from app.benchmarks.timing import Effort, compare
from app.benchmarks.work import Competitor, Work

PACKAGES = {"flower": ("flwr", "flwr[simulation]"), "pfl": ("pfl", "pfl[pytorch]")}
"""Module and what to install, by framework."""

GOALS = {"flower": 0.5, "pfl": 0.7}
"""Largest time of this application as a multiple of the framework's."""


def peers_table(work: Work, effort: Effort) -> Table:
    """This application and the installed frameworks that can do the work: only Flower evaluates trained clients."""
    able = {name: PACKAGES[name] for name in PACKAGES if name == "flower" or not work.evaluate}
    installed = {name: peer for name, peer in _installed().items() if name in able}
    kind = "with evaluation" if work.evaluate else "training only"
    title = f"peers, {work.clients} clients x {work.samples} samples, batch {work.batch_size}, {kind}"
    absent = [name for name in able if name not in installed]
    missing = [f"{name}: not installed, skipped (pip install '{able[name][1]}')" for name in absent]
    if not installed:
        return Table(title, "s per round", "rampart", (), tuple(missing))
    table = compare(title, work, {"rampart": ours, **installed}, {}, effort)
    return replace(table, remarks=(*(_verdict(row, table.rows[0]) for row in table.rows[1:]), *missing))


def _installed() -> dict[str, Competitor]:
    found: dict[str, Competitor] = {}
    if find_spec("flwr") and find_spec("ray"):
        from app.benchmarks.flower_peer import flower

        found["flower"] = flower
    if find_spec("pfl"):
        from app.benchmarks.pfl_peer import pfl

        found["pfl"] = pfl
    return found


def _verdict(peer: BenchmarkRow, mine: BenchmarkRow) -> str:
    ratio, goal = mine.value / peer.value, GOALS[peer.name]
    return f"rampart takes {ratio:.2f} x {peer.name} (goal <= {goal}): {'met' if ratio <= goal else 'NOT MET'}"
