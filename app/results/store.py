"""Many run folders as one collection: what a comparison tabulates, draws and reports.

A folder that is no finished run, or whose files cannot be read, is left out with the reason; it never stops the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from app.errors import UserError
from app.metrics.fairness import Fairness
from app.metrics.membership import MembershipScores
from app.privacy.channel_statement import ChannelStatement
from app.privacy.statement import PrivacyStatement
from app.results.attack_files import AttackFiles, AttackRecord
from app.results.reconstruction_files import PREFIX, ReconstructionFiles, ReconstructionRecord
from app.results.result_files import restored
from app.results.run_labels import RunLabels, labels_of

COMPARISON = "comparison.json"
"""File beside the runs of a comparison that tells their places in its matrix."""


@dataclass(frozen=True)
class ClientEnd:
    """A client at the end of its last round. Accuracies are fractions in [0, 1], NaN where nothing was tested.

    Attributes:
        client: client id.
        capacity: width rate, in (0, 1].
        samples: training samples.
        received_common: accuracy of the model it received on the common test set.
        trained_common: accuracy of its trained model on the common test set.
        trained_own: accuracy of its trained model on its own test set.
    """

    client: int
    capacity: float
    samples: int
    received_common: float
    trained_common: float
    trained_own: float


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One finished run, without anything large.

    Attributes:
        path: its folder.
        labels: its place in a comparison.
        config: its complete configuration, as plain data.
        final: metrics of the last round.
        rounds: metrics of every round, in order.
        cost: seconds and bytes, summed over the run.
        clients: every client that took part, by id.
        fairness: how the accuracies of all clients spread, None where no client has a test set.
        budgets: privacy budgets spent.
        channels: what was hidden on the way to the server.
        attacks: results of membership inference, by label.
        reconstructions: results of reconstruction, by label.
        notes: what could not be read of it.
    """

    path: Path
    labels: RunLabels
    config: Mapping[str, Any]
    final: Mapping[str, float]
    rounds: tuple[Mapping[str, float], ...]
    cost: Mapping[str, float]
    clients: tuple[ClientEnd, ...]
    fairness: Fairness | None
    budgets: tuple[PrivacyStatement, ...]
    channels: tuple[ChannelStatement, ...]
    attacks: tuple[AttackRecord, ...]
    reconstructions: tuple[ReconstructionRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def scores(self, label: str) -> MembershipScores:
        """Scores of one result of membership inference, read from its file."""
        return AttackFiles(self.path / "attacks").scores(label)


@dataclass(frozen=True)
class Skipped:
    """A folder that is not part of the collection.

    Attributes:
        path: the folder or file.
        reason: why it was left out.
    """

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Store:
    """A collection of runs.

    Attributes:
        name: of the comparison, or of the folder.
        purpose: what is compared, in one line; may be empty.
        runs: the finished runs, by labels.
        skipped: what was left out.
        baseline: method and defense that others are compared with; None where nothing says so.
    """

    name: str
    purpose: str
    runs: tuple[RunRecord, ...]
    skipped: tuple[Skipped, ...]
    baseline: tuple[str, str] | None = None

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Datasets in the order in which they first occur."""
        return tuple(dict.fromkeys(run.labels.dataset for run in self.runs))


def read_store(paths: Iterable[Path]) -> Store:
    """All runs below some folders: run folders, folders of runs, or folders of comparisons.

    Args:
        paths: existing folders.

    Raises:
        UserError: where a path does not exist, or no run is found in all of them.
    """
    given = list(paths)
    runs: list[RunRecord] = []
    skipped: list[Skipped] = []
    told = [plan for path in given if (plan := _comparison(path)) is not None]
    for folder, labels in _folders(given, skipped):
        try:
            runs.append(_read(folder, labels))
        except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            skipped.append(Skipped(folder, _cause(error)))
    if not runs:
        left = "".join(f"\n    {one.path}: {one.reason}" for one in skipped[:10])
        raise UserError.of(
            f"no finished run in {', '.join(map(str, given))}{left}",
            "there is nothing to show",
            "name folders of finished runs, such as runs/demo; `rampart fit` and `rampart compare` make them",
        )
    ordered = tuple(sorted(runs, key=lambda run: _place(run, told)))
    first = told[0] if len(told) == 1 else {}
    pair = first.get("baseline")
    return Store(
        name=str(first.get("name") or given[0].resolve().name),
        purpose=str(first.get("purpose") or ""),
        runs=ordered,
        skipped=tuple(skipped),
        baseline=(pair["method"], pair["defense"]) if pair else None,
    )


def _folders(paths: list[Path], skipped: list[Skipped]) -> Iterator[tuple[Path, RunLabels | None]]:
    """Run folders with the labels that a comparison gives them."""
    for path in paths:
        if not path.is_dir():
            raise UserError.of(f"there is no folder {path}", "its runs cannot be shown", "name an existing folder")
        if _looks_like_run(path):
            yield path, None
            continue
        cells = {cell["run"]: cell for cell in (_comparison(path) or {}).get("cells", [])}
        for inner in sorted(path.iterdir()):
            if inner.name.startswith(".") or (inner.is_file() and not cells.get(inner.name)):
                continue
            cell = cells.get(inner.name)
            if inner.is_dir() and (_looks_like_run(inner) or cell):
                yield inner, RunLabels(**{key: cell[key] for key in RunLabels.names()}) if cell else None
            else:
                skipped.append(Skipped(inner, "it is no run of this program"))


def _looks_like_run(path: Path) -> bool:
    return (path / "config.yaml").is_file()


def _comparison(path: Path) -> dict[str, Any] | None:
    """What a comparison tells about its runs; None where there is none, or it cannot be read."""
    try:
        told = json.loads((path / COMPARISON).read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _place(run: RunRecord, told: list[dict[str, Any]]) -> tuple[int, RunLabels]:
    """Runs of a comparison in its order, all others by their labels."""
    order = [cell["run"] for plan in told for cell in plan.get("cells", [])]
    return (order.index(run.name) if run.name in order else len(order), run.labels)


def _read(folder: Path, labels: RunLabels | None) -> RunRecord:
    if not (folder / "summary.json").is_file():
        raise UserError.of("the run is not finished", "", "")
    summary, config = (
        json.loads((folder / "summary.json").read_text()),
        yaml.safe_load((folder / "config.yaml").read_text()),
    )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    ends = [restored(ClientEnd, client) for client in summary["clients"]]
    fairness = (summary.get("fairness") or {}).get("final")
    return RunRecord(
        path=folder,
        labels=labels or labels_of(config),
        config=config,
        final=summary["final"],
        rounds=tuple(json.loads(line) for line in lines),
        cost=summary["cost"],
        clients=tuple(sorted(ends, key=lambda end: end.client)),
        fairness=restored(Fairness, {"gap": None, **fairness}) if fairness else None,
        budgets=tuple(_budget(each) for each in summary.get("privacy", [])),
        channels=tuple(restored(ChannelStatement, each) for each in summary.get("channels", [])),
        attacks=tuple(AttackFiles(folder / "attacks").records()),
        reconstructions=tuple(ReconstructionFiles(folder / PREFIX).records()),
    )


def _budget(record: Mapping[str, Any]) -> PrivacyStatement:
    """A statement from its record, in which clients are keyed by text."""
    clients = [[int(client), epsilon] for client, epsilon in (record.get("clients") or {}).items()]
    statement: PrivacyStatement = restored(PrivacyStatement, {**record, "clients": clients})
    return statement


def _cause(error: Exception) -> str:
    if isinstance(error, UserError):
        return error.problems[0].cause
    return f"its files cannot be read ({type(error).__name__}: {error})"
