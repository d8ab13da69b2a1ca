"""Metrics, clients and costs of a round, as files and trackers get them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from app.federation.reports import ClientReport, RoundReport
from app.metrics.fairness import Spread

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
    """Seconds per phase, the clients' own seconds, and bytes of a round."""
    return {
        "round": report.round,
        **{f"seconds/{phase}": seconds for phase, seconds in report.seconds.items()},
        "client_seconds/train": sum(client.train_seconds for client in report.clients),
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
