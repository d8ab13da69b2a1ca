"""What a round reports: per client, for the server, and what it cost; its metrics for files and trackers."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from app.federation.evaluation import Score
from app.federation.execution.tasks import TrainedClient
from app.metrics.fairness import Spread

DIVERGED: Final = "diverged"
DEFENDED: Final = "defended"
"""Why an update was dropped: local training, or the defenses, made it infinite or NaN."""


@dataclass(frozen=True)
class ClientReport:
    """One client in one round. Accuracies are fractions in [0, 1], NaN where not evaluated."""

    client: int
    capacity: float  # width rate of its submodel, in (0, 1]
    samples: int
    loss: float  # mean training loss over the local steps
    # whether no update of the client was used: it was not finite, got lost, or the client refused to train
    dropped: bool
    received_common: float  # accuracy of the received model on the common test set
    received_own: float  # accuracy of the received model on the client's own test set
    trained_common: float  # accuracy after local training on the common test set
    trained_own: float  # accuracy after local training on the client's own test set
    bytes_down: int  # bytes the server sent to the client
    bytes_up: int  # bytes the client uploaded
    train_seconds: float
    evaluate_seconds: float
    refusal: str = ""  # why the client refused to train; empty where it did not
    defend_seconds: float = 0.0  # of defenses that edited its update
    dropped_for: Literal["diverged", "defended", ""] = ""  # what made its update infinite or NaN; empty for nothing

    @classmethod
    def of(cls, trained: TrainedClient, dropped: bool, **measured: Any) -> ClientReport:
        """The report on a trained client; `measured` are bytes and seconds on the way to the server."""
        task, scores = trained.task, trained.scores
        return cls(
            client=task.client,
            capacity=task.capacity,
            samples=len(task.train),
            loss=trained.loss,
            dropped=dropped,
            received_common=scores.received_common.accuracy,
            received_own=scores.received_own.accuracy,
            trained_common=scores.trained_common.accuracy,
            trained_own=scores.trained_own.accuracy,
            train_seconds=trained.train_seconds,
            evaluate_seconds=trained.evaluate_seconds,
            refusal=trained.refusal,
            **measured,
        )


def listed(clients: Sequence[int], most: int = 10) -> str:
    """Clients by number for a message, such as `client 3` or `clients 3, 5, 8`; at most the first `most` of them."""
    names = ", ".join(map(str, clients[:most]))
    if len(clients) > most:
        return f"clients {names} ... ({len(clients)} in all)"
    return f"client {names}" if len(clients) == 1 else f"clients {names}"


@dataclass(frozen=True)
class RoundReport:
    """One round."""

    round: int  # rounds completed, so the first round reports 1
    clients: tuple[ClientReport, ...]  # reports of the participants, by client id
    server: Score  # evaluation of the server's model after aggregation, empty where it was not evaluated
    seconds: dict[str, float]  # wall-clock seconds per phase on the first process (`PhaseClock`)
    cpu_seconds: float = 0.0  # CPU seconds of the round on the first process (`cpu_clock`)


@dataclass
class PhaseClock:
    """Seconds per phase of a round, of the wall clock unless it is given another one.

    Phases: `clients` (waiting for local training and evaluation), `defend` (callbacks that edit updates and the
    aggregate), `channel` (carrying and combining updates), `server` (aggregation), `evaluate` (the server's model),
    `total`.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    now: Callable[[], float] = field(default_factory=lambda: time.perf_counter)  # what seconds are read from
    _started: float = 0.0
    _cpu_started: float = 0.0

    def start(self) -> None:
        self.seconds = dict.fromkeys(("clients", "defend", "channel", "server", "evaluate"), 0.0)
        self._started, self._cpu_started = self.now(), cpu_clock()

    def reading(self) -> dict[str, float]:
        return {**self.seconds, "total": self.now() - self._started}

    def cpu_reading(self) -> float:
        """CPU seconds since the start of the round."""
        return cpu_clock() - self._cpu_started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - started


def cpu_clock() -> float:
    """CPU seconds of this process on all cores, and of the processes that it has started and waited for.

    Unlike wall-clock seconds they hardly depend on what else the machine has to do.
    """
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


ACCURACIES = ("received_common", "received_own", "trained_common", "trained_own")
"""Model received / after local training, on the common / the client's own test set."""

CLIENT_COLUMNS = ("client", "capacity", "samples", "loss", "dropped", *ACCURACIES, "bytes_down", "bytes_up")
"""What is recorded of every client in every round; seconds are kept apart because they differ from run to run."""


def round_metrics(report: RoundReport, groups: Sequence[str], widths: Sequence[float]) -> dict[str, float]:
    """Metrics of a round: server, clients, capacity groups and the partition's groups.

    Args:
        report: the round.
        groups: subpopulation of every client of the federation (majority, minority ...), for fairness.
        widths: all width rates that clients may train.
    """
    metrics: dict[str, float] = {"round": float(report.round)}
    if report.server.total:
        metrics |= {"server/accuracy": report.server.accuracy, "server/loss": report.server.mean_loss}
    metrics["clients/loss"] = Spread.of(client.loss for client in report.clients if not client.dropped).mean
    metrics["clients/dropped"] = float(sum(client.dropped for client in report.clients))
    metrics |= accuracy_spread("clients", report.clients)
    if len(set(widths)) > 1:
        metrics |= _by_name(report.clients, [f"capacity-{client.capacity:g}" for client in report.clients])
    if len(set(groups)) > 1:
        metrics |= _by_name(report.clients, [f"group-{groups[client.client]}" for client in report.clients])
    return metrics


def known_metrics(groups: Sequence[str], widths: Sequence[float]) -> list[str]:
    """Names of all metrics that a round may have, apart from those that callbacks measure."""
    names = ["round", "server/accuracy", "server/loss", "clients/loss", "clients/dropped"]
    parts = ["clients"]
    parts += [f"capacity-{rate:g}" for rate in sorted(set(widths), reverse=True)] if len(set(widths)) > 1 else []
    parts += [f"group-{group}" for group in sorted(set(groups))] if len(set(groups)) > 1 else []
    statistics = [each.name for each in fields(Spread)]
    return names + [f"{part}/{accuracy}/{each}" for part in parts for accuracy in ACCURACIES for each in statistics]


def accuracy_spread(name: str, clients: Iterable[ClientReport]) -> dict[str, float]:
    """Mean, worst and standard deviation of every accuracy that was measured."""
    members = list(clients)
    metrics: dict[str, float] = {}
    for accuracy in ACCURACIES:
        spread = Spread.of(getattr(client, accuracy) for client in members)
        if spread.mean == spread.mean:  # not NaN
            metrics |= {f"{name}/{accuracy}/{statistic}": value for statistic, value in asdict(spread).items()}
    return metrics


def client_row(client: ClientReport) -> list[float | int]:
    """One client's line of `clients.csv`."""
    return [getattr(client, column) for column in CLIENT_COLUMNS]


def round_cost(report: RoundReport) -> dict[str, float]:
    """Seconds per phase, CPU seconds, the clients' own seconds, and bytes of a round."""
    return {
        "round": report.round,
        **{f"seconds/{phase}": seconds for phase, seconds in report.seconds.items()},
        "cpu_seconds": report.cpu_seconds,
        "client_seconds/train": sum(client.train_seconds for client in report.clients),
        "client_seconds/defend": sum(client.defend_seconds for client in report.clients),
        "client_seconds/evaluate": sum(client.evaluate_seconds for client in report.clients),
        "bytes/down": sum(client.bytes_down for client in report.clients),
        "bytes/up": sum(client.bytes_up for client in report.clients),
        "clients": len(report.clients),
    }


def _by_name(clients: Sequence[ClientReport], names: Sequence[str]) -> dict[str, float]:
    members: dict[str, list[ClientReport]] = defaultdict(list)
    for name, client in zip(names, clients, strict=True):
        members[name].append(client)
    return {key: value for name in sorted(members) for key, value in accuracy_spread(name, members[name]).items()}
