"""Fabricated runs with known differences: in memory, or as real run folders, without any training.

`make_run` writes one folder, `make_record` makes the same in memory, `make_store` a whole comparison in which every
defense has a planted effect (`EFFECTS`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
import yaml
from finding_kit import finding, missing

from app.attacks.findings import Finding
from app.attacks.reconstruction.base import ReconstructionConditions, ReconstructionFinding
from app.common.files import finite
from app.metrics.fairness import Fairness
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.reconstruction import score_reconstruction
from app.privacy.statements import ChannelStatement, PrivacyStatement
from app.result import Measurement
from app.results.attacks.membership import AttackRecord
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.run.labels import NO_DEFENSE, RunLabels
from app.results.run.store import COMPARISON, ClientEnd, RunRecord, Store

HIDDEN = "the server sees sums of updates only, and this attack reads single ones"
CLIENTS, ROUNDS = 4, 3


@dataclass(frozen=True)
class Effect:
    """What a defense does to a fabricated run.

    Attributes:
        accuracy: added to the server's accuracy.
        uploads: distance of members and non-members, in standard deviations, to who reads uploads; None where hidden.
        adapted: the same to an attacker who knows the defense; None where there is none.
        slower: factor on the seconds.
        epsilon: budget spent; None for no promise.
        recovered: of 8 images.
    """

    accuracy: float = 0.0
    uploads: float | None = 1.0
    adapted: float | None = None
    slower: float = 1.0
    epsilon: float | None = None
    recovered: int | None = 4


EFFECTS = {
    NO_DEFENSE: Effect(),
    "memdefense": Effect(accuracy=-0.01, uploads=0.4, adapted=0.9, slower=1.1),
    "dp-sgd": Effect(accuracy=-0.1, uploads=0.1, slower=3.0, epsilon=8.0, recovered=0),
    "secure-aggregation": Effect(uploads=None, slower=1.5, recovered=None),
}
"""Of the defenses of `make_store`; others have none."""


@dataclass(frozen=True, eq=False)
class FabricatedRun(RunRecord):
    """A run that also knows its scores, so that they need not lie in a file."""

    def scores(self, label: str) -> MembershipScores:
        """Scores of one result."""
        return {each.label: each.new_scores for each in self.attacks}[label]


@dataclass(frozen=True)
class Parts:
    """What a fabricated run may be told; everything has a sensible default."""

    final: Mapping[str, float] = field(default_factory=dict)
    attacks: tuple[Finding, ...] = ()
    reconstructions: tuple[ReconstructionFinding, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    budgets: tuple[PrivacyStatement, ...] = ()
    channels: tuple[ChannelStatement, ...] = ()
    fairness: Fairness | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    rounds: int = ROUNDS


def labels(dataset="digits", method="fedavg", defense=NO_DEFENSE, seed=0) -> RunLabels:
    """Labels of a run; by default the plainest."""
    return RunLabels(dataset, method, defense, seed)


def make_record(place: RunLabels | None = None, path: Path = Path("runs/run"), **parts) -> FabricatedRun:
    """A run in memory; `parts` are those of `Parts`, and lie over the defaults."""
    place, told = place or labels(), Parts(**parts)
    final = {**_accuracies(0.9), "server/train_accuracy": 0.95, **told.final}
    server = final.get("server/accuracy", 0.9)
    rounds = [
        {"round": float(number), **_accuracies(server * number / told.rounds)} for number in range(1, told.rounds + 1)
    ]
    return FabricatedRun(
        path=path,
        labels=place,
        config={**_config(place), **told.config},
        final={"round": float(told.rounds), **final},
        rounds=tuple(rounds),
        cost={**_cost(told.rounds), **told.cost},
        clients=tuple(
            ClientEnd(client, 1.0 if client < 2 else 0.5, 50 * (client + 1), server, server - 0.02, server + 0.01)
            for client in range(CLIENTS)
        ),
        fairness=told.fairness,
        budgets=told.budgets,
        channels=told.channels,
        attacks=tuple(sorted(map(AttackRecord.of, told.attacks), key=lambda record: record.label)),
        reconstructions=tuple(map(ReconstructionRecord.of, told.reconstructions)),
        measurements=told.measurements,
    )


def make_run(path: Path, place: RunLabels | None = None, **parts) -> Path:
    """A run folder as `rampart fit` leaves it, as far as comparisons read it; returns its path."""
    return write_run(make_record(place, path, **parts))


def write_run(run: FabricatedRun) -> Path:
    """Write a fabricated run to its path."""
    run.path.mkdir(parents=True)
    (run.path / "config.yaml").write_text(yaml.safe_dump(dict(run.config)))
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in run.rounds))
    (run.path / "cost.json").write_text(json.dumps(run.cost))
    for result in (*run.attacks, *run.reconstructions, *run.measurements):
        result.save(run.path)
    summary = {"final": run.final, "cost": run.cost, "clients": [asdict(client) for client in run.clients]}
    if run.budgets or run.channels:
        summary["privacy"] = [budget.record() for budget in run.budgets]
        summary["channels"] = [channel.record() for channel in run.channels]
    if run.fairness:
        summary["fairness"] = {"round": len(run.rounds), "final": asdict(run.fairness)}
    (run.path / "summary.json").write_text(json.dumps(finite(summary)))
    return run.path


def make_store(
    methods=("fedavg", "heterofl"),
    defenses=tuple(EFFECTS),
    datasets=("digits",),
    seeds=(0, 1, 2),
    attacked=True,
    folder: Path | None = None,
) -> Store:
    """A comparison with planted effects of the defenses, and HeteroFL two points below the other methods.

    Args:
        methods: their names.
        defenses: their names; see EFFECTS.
        datasets: their names.
        seeds: of the runs.
        attacked: whether the runs were attacked.
        folder: where to write the runs and `comparison.json`; nothing is written without it.
    """
    root = folder or Path("runs") / "compared"
    places = [labels(*place, seed) for place in product(datasets, methods, defenses) for seed in seeds]
    runs = tuple(_planted(place, root / _cell(place), attacked) for place in places)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for run in runs:
            write_run(run)
        write_comparison(folder, places)
    return Store("compared", "planted effects", runs, (), ("fedavg", NO_DEFENSE))


def write_comparison(folder: Path, places) -> Path:
    """`comparison.json` of the places, in their order."""
    told = {
        "name": "compared",
        "purpose": "planted effects",
        "baseline": {"method": "fedavg", "defense": NO_DEFENSE},
        "cells": [{"run": _cell(place), **asdict(place)} for place in places],
    }
    path = folder / COMPARISON
    path.write_text(json.dumps(told))
    return path


def spread_fairness(majority=0.9, minority=0.7) -> Fairness:
    """Two clients of each group, 4 points apart within it."""
    accuracies = [majority - 0.02, majority + 0.02, minority - 0.02, minority + 0.02]
    return Fairness.of(accuracies, ["majority", "majority", "minority", "minority"])


def budget(epsilon=8.0, unit="sample", nominal=False, mechanism="DP-SGD") -> PrivacyStatement:
    """A budget that was spent."""
    told = ("whoever sees updates", epsilon, 1e-5, "add or remove one", "Poisson", "RDP", 1.0, 1.0)
    return PrivacyStatement(mechanism, unit, *told, nominal=nominal)


def channel(simulated=False, accepted=()) -> ChannelStatement:
    """A channel that hides single updates."""
    words = ("secure aggregation", "single updates", "at most one server")
    return ChannelStatement(*words, 2**-16, simulated=simulated, accepted=tuple(accepted))


@cache
def rebuilt(recovered: int | None = 4, of=8, label="rolling") -> ReconstructionFinding:
    """A reconstruction of which so many images are exact and the others noise; None where it was not possible."""
    conditions = ReconstructionConditions("rolling", label, "malicious server", "sums of updates", 2, (0, 1))
    source = torch.Generator().manual_seed(7)
    images, noise = torch.rand(2, of, 1, 4, 4, generator=source)
    if recovered is None:
        return missing_reconstruction(conditions)
    offered = torch.where((torch.arange(of) < recovered).view(-1, 1, 1, 1), images, noise)
    keys = [(row % 2, row, 0) for row in range(of)]
    return ReconstructionFinding(
        conditions, score_reconstruction(images, keys, offered, torch.arange(of), {}), seconds=1.0
    )


def missing_reconstruction(conditions: ReconstructionConditions, reason: str = HIDDEN) -> ReconstructionFinding:
    """A reconstruction without numbers."""
    return ReconstructionFinding(conditions, NotAvailable(reason))


@cache
def attack(name="yeom", target="global", distance=1.0, seed=0, adaptation="", rows=100) -> Finding:
    """A finding of known distance; the same arguments give the same finding, others other scores of the same rows."""
    return finding(name, target, distance, CLIENTS, rows, seed, known=False, adaptation=adaptation)


def _planted(place: RunLabels, path: Path, attacked: bool) -> FabricatedRun:
    effect = EFFECTS.get(place.defense, Effect())
    jitter = np.random.default_rng([place.seed, *map(ord, f"{place.dataset} {place.method} {place.defense}")])
    accuracy = 0.9 + effect.accuracy - 0.02 * (place.method == "heterofl") + 0.002 * jitter.normal()
    seconds = 2.0 * effect.slower * (1 + 0.02 * jitter.normal())
    budgets = (budget(effect.epsilon),) if effect.epsilon else ()
    return make_record(
        place,
        path,
        final={**_accuracies(accuracy), "server/train_accuracy": accuracy + 0.05},
        attacks=_attacks(place, effect) if attacked else (),
        reconstructions=(rebuilt(effect.recovered),) if attacked else (),
        budgets=budgets,
        channels=() if effect.uploads is not None else (channel(accepted=["client 3 is alone in round 2"]),),
        fairness=spread_fairness(accuracy, accuracy - 0.1),
        cost={"seconds_per_round": seconds, "seconds/total": ROUNDS * seconds},
    )


def _attacks(place: RunLabels, effect: Effect) -> tuple[Finding, ...]:
    # crc32 stays the same from process to process, unlike hash
    seed = 1000 * place.seed + crc32(f"{place.dataset} {place.method} {place.defense}".encode()) % 1000
    reach = 0.5 if effect.uploads is None else 0.5 * effect.uploads
    found = [attack(name, "global", share * reach, seed) for name, share in (("yeom", 0.8), ("lira-online", 1.0))]
    if effect.uploads is None:
        return (*found, *(missing(name, "uploads", HIDDEN) for name in ("yeom", "lira-online")))
    found += [
        attack(name, "uploads", share * effect.uploads, seed) for name, share in (("yeom", 0.8), ("lira-online", 1.0))
    ]
    if effect.adapted:
        found.append(attack("lira-online", "uploads", effect.adapted, seed, "refilled"))
    return tuple(found)


def _accuracies(server: float) -> dict[str, float]:
    means = {"received_common": server, "trained_common": server - 0.02, "trained_own": server + 0.01}
    numbers = {"server/accuracy": server, "server/loss": 1 - server}
    for name, mean in means.items():
        numbers |= {f"clients/{name}/mean": mean, f"clients/{name}/worst": mean - 0.05, f"clients/{name}/std": 0.02}
    return numbers


def _cost(rounds: int) -> dict[str, float]:
    total = float(rounds * CLIENTS)
    return {
        **{"seconds/total": 2.0 * rounds, "bytes/down": 4e6 * total, "bytes/up": 2e6 * total, "clients": total},
        **{"rounds": float(rounds), "seconds_per_round": 2.0},
    }


def _config(place: RunLabels) -> dict[str, object]:
    named = {} if place.defense == NO_DEFENSE else {place.defense.replace("-", "_"): {"class_path": "callbacks.x.X"}}
    data = {"class_path": "datamodules.Digits", "init_args": {"partition": None}}
    server = {"class_path": "app.federation.aggregation.FedAvg", "init_args": {"lr": 1.0}}
    model = {"net": {"class_path": "app.models.MLP"}, "method": None, "server": server, "local": {"proximal": 0.0}}
    return {"seed_everything": place.seed, "data": data, "model": model, "defenses": named, "attacks": {}}


def _cell(place: RunLabels) -> str:
    return f"{place.dataset}-{place.method}-{place.defense}-{place.seed}"
