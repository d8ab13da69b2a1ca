"""One finished run as data, with notes on files that cannot be read.

A file that is broken costs what it holds, never the whole run; only the summary, which marks a run as finished, and the
configuration of a run that belongs to no comparison are needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from zipfile import is_zipfile

import yaml

from app.common.errors import UserError
from app.common.reading import read_json, read_text, read_yaml, refuse_links
from app.common.renamed import current
from app.metrics.fairness import Fairness
from app.metrics.membership import MembershipScores
from app.privacy.statements import ChannelStatement, PrivacyStatement
from app.result import Measurement, Result, restored
from app.results.attacks.canaries import CanaryRecord
from app.results.attacks.membership import AttackRecord
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.run.labels import RunLabels, labels_of

BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)
"""What reading a damaged file may end in."""

Part = TypeVar("Part")
Kind = TypeVar("Kind", bound=Result)


@dataclass(frozen=True)
class ClientEnd:
    """A client at the end of its last round. Accuracies are fractions in [0, 1], NaN where nothing was tested."""

    client: int
    capacity: float  # width rate, in (0, 1]
    samples: int  # number of training samples
    received_common: float  # accuracy of the model it received on the common test set
    trained_common: float  # accuracy of its trained model on the common test set
    trained_own: float  # accuracy of its trained model on its own test set


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One finished run, without anything large."""

    path: Path
    labels: RunLabels  # its place in a comparison
    config: Mapping[str, Any]  # its complete configuration, as plain data; empty where it could not be read
    final: Mapping[str, float]  # metrics of the last round; NaN for numbers that are not finite
    rounds: tuple[Mapping[str, float], ...]
    cost: Mapping[str, float]  # seconds and bytes, summed over the run
    clients: tuple[ClientEnd, ...]  # every client that took part, by id
    fairness: Fairness | None  # how the accuracies of all clients spread, None where no client has a test set
    budgets: tuple[PrivacyStatement, ...]
    channels: tuple[ChannelStatement, ...]  # what was hidden from the server
    attacks: tuple[AttackRecord, ...]  # results of membership inference, by label
    reconstructions: tuple[ReconstructionRecord, ...]  # results of reconstruction, by label
    measurements: tuple[Measurement, ...] = ()  # results of other attacks and recorders, by label
    canaries: tuple[CanaryRecord, ...] = ()  # measured epsilon, by label
    measured: tuple[str, ...] = ()  # everything that was measured about epsilon, in words
    notes: tuple[str, ...] = ()  # what could not be read of it
    warnings: tuple[str, ...] = ()  # signs that it learnt nothing, with the likely cause

    @property
    def name(self) -> str:
        return self.path.name

    def scores(self, label: str) -> MembershipScores:
        return AttackRecord.load(AttackRecord.path(self.path, label, "json")).scores


def read_run(folder: Path, labels: RunLabels | None = None) -> RunRecord:
    """A finished run from its folder; without labels, its place in a comparison follows from the configuration.

    Raises:
        UserError: where the run is not finished, its folder holds links, or its summary, or the configuration where it
            is needed, cannot be read.
    """
    refuse_links(folder)
    notes: list[str] = []
    summary, config = _summary(folder), _config(folder, notes)
    final = _numbers(summary["final"])
    return RunRecord(
        path=folder,
        labels=labels or _labels(config, notes),
        config=config,
        final=final,
        rounds=_rounds(folder / "metrics.jsonl", notes),
        cost=_of(notes, "the costs", lambda: _numbers(summary["cost"]), {}),
        clients=_of(notes, "the clients", lambda: _clients(summary["clients"]), ()),
        fairness=_of(notes, "the fairness", lambda: _fairness(summary.get("fairness")), None),
        budgets=_of(notes, "the privacy budgets", lambda: _all(_budget, summary.get("privacy")), ()),
        channels=_of(
            notes, "the channels", lambda: _all(partial(restored, ChannelStatement), summary.get("channels")), ()
        ),
        attacks=_attacks(folder, notes),
        reconstructions=_records(ReconstructionRecord, folder, notes),
        measurements=_records(Measurement, folder, notes),
        canaries=_records(CanaryRecord, folder, notes),
        measured=_of(notes, "the measured epsilons", lambda: _all(str, summary.get("measured")), ()),
        notes=tuple(notes),
        warnings=_of(notes, "the warnings", lambda: _all(str, summary.get("warnings")), ()),
    )


def _summary(folder: Path) -> Mapping[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError.of("the run is not finished")
    try:
        summary = read_json(path)
    except BROKEN as error:
        raise UserError.of(f"summary.json cannot be read ({error_text(error)})") from error
    if not isinstance(summary, Mapping) or not isinstance(summary.get("final"), Mapping):
        raise UserError.of("summary.json tells no final metrics")
    return summary


def _config(folder: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        config = current(read_yaml(folder / "config.yaml"))
    except BROKEN as error:
        notes.append(f"config.yaml cannot be read ({error_text(error)})")
        return {}
    if isinstance(config, Mapping):
        return config
    notes.append("config.yaml holds no settings")
    return {}


def _labels(config: Mapping[str, Any], notes: Sequence[str]) -> RunLabels:
    try:
        return labels_of(config)
    except BROKEN as error:
        reason = notes[0] if notes else f"its configuration tells no place in a comparison ({error_text(error)})"
        raise UserError.of(reason) from error


def _rounds(path: Path, notes: list[str]) -> tuple[Mapping[str, float], ...]:
    """All rounds that can be read; a crash may have cut the last line short."""
    try:
        lines = read_text(path).splitlines()
    except BROKEN as error:
        notes.append(f"{path.name} cannot be read ({error_text(error)})")
        return ()
    rounds, broken = [], []
    for number, line in enumerate(lines, start=1):
        try:
            rounds.append(_numbers(json.loads(line)))
        except BROKEN:
            broken.append(str(number))
    if broken:
        notes.append(f"{path.name}: {'line' if len(broken) == 1 else 'lines'} {', '.join(broken)} cannot be read")
    if not lines:
        notes.append(f"{path.name} is empty")
    return tuple(rounds)


def _of(notes: list[str], what: str, read: Callable[[], Part], otherwise: Part) -> Part:
    """A part of the summary, or a note that it cannot be read."""
    try:
        return read()
    except BROKEN as error:
        notes.append(f"{what} in summary.json cannot be read ({error_text(error)})")
        return otherwise


def _numbers(plain: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name; null, which stands for one that is not finite, becomes NaN."""
    return {
        str(name): math.nan if value is None else float(value)
        for name, value in plain.items()
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    }


def _clients(plain: Sequence[Any]) -> tuple[ClientEnd, ...]:
    ends = [restored(ClientEnd, client) for client in plain]
    return tuple(sorted(ends, key=lambda end: int(end.client)))


def _fairness(plain: Mapping[str, Any] | None) -> Fairness | None:
    final = (plain or {}).get("final")
    return restored(Fairness, {"gap": None, **final}) if final else None


def _all(read: Callable[[Mapping[str, Any]], Part], plain: Sequence[Mapping[str, Any]] | None) -> tuple[Part, ...]:
    return tuple(read(each) for each in plain or ())


def _budget(plain: Mapping[str, Any]) -> PrivacyStatement:
    """A statement from its record, in which clients are keyed by text and infinite budgets are null."""
    clients = [[int(client), _endless(epsilon)] for client, epsilon in (plain.get("clients") or {}).items()]
    fields = {**plain, "clients": clients, "epsilon": _endless(plain["epsilon"])}
    statement: PrivacyStatement = restored(PrivacyStatement, fields)
    return statement


def _endless(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _attacks(folder: Path, notes: list[str]) -> tuple[AttackRecord, ...]:
    """Results of membership inference; scores that are lost are noted, since only figures and pairs need them."""
    records = _records(AttackRecord, folder, notes)
    for record in records:
        path = AttackRecord.path(folder, record.label, "npz")
        if record.no_scores is None and not is_zipfile(path):
            notes.append(f"attacks/{path.name} cannot be read: the scores are lost")
    return records


def _records(kind: type[Kind], folder: Path, notes: list[str]) -> tuple[Kind, ...]:
    """All results of a kind that can be read, by label; one note per file that cannot."""
    records = []
    try:
        for path in kind.paths(folder):
            try:
                records.append(kind.load(path))
            except UserError as error:
                notes.append(f"{path.parent.name}/{path.name} cannot be read ({error_text(error.__cause__ or error)})")
    except OSError as error:
        notes.append(f"results of attacks cannot be read ({error_text(error)})")
    return tuple(sorted(records, key=lambda record: record.label))


def error_text(error: BaseException) -> str:
    """Kind and message of an error, in one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}"
