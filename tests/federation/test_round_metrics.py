"""The numbers of a round, from reports whose every value is known."""

import math

import pytest

from app.federation.evaluation import Score
from app.federation.reports import CLIENT_COLUMNS, ClientReport, RoundReport, client_row, round_cost, round_metrics


def client(number, capacity=1.0, own=0.5, dropped=False, loss=1.0):
    """A report with the given accuracy on the own test set, and none on the common one."""
    nan = math.nan
    return ClientReport(number, capacity, 10, loss, dropped, nan, nan, nan, own, 8, 0 if dropped else 4, 1.5, 0.5)


def report(*clients, correct=3, total=4):
    """A round of these clients."""
    return RoundReport(7, tuple(clients), Score(correct=correct, total=total, loss=2.0), {"total": 9.0})


def test_mean_worst_and_spread():
    """Population statistics over the clients that were evaluated."""
    metrics = round_metrics(
        report(client(0, own=0.2), client(1, own=0.6), client(2, own=math.nan)), ["a"] * 3, [1.0] * 3
    )
    assert metrics["round"] == 7
    assert metrics["server/accuracy"] == 0.75
    assert metrics["clients/trained_own/mean"] == pytest.approx(0.4)
    assert metrics["clients/trained_own/worst"] == 0.2
    assert metrics["clients/trained_own/std"] == pytest.approx(0.2)
    assert "clients/trained_common/mean" not in metrics, "what was not measured is not reported"


def test_groups_appear_where_there_are_several():
    """Capacities and subpopulations are told apart only where they differ."""
    clients = (client(0, 1.0, 0.9), client(1, 0.5, 0.3), client(2, 0.5, 0.5))
    unequal = round_metrics(report(*clients), ["majority", "majority", "minority"], [1.0, 0.5, 0.5])
    assert unequal["capacity-1/trained_own/mean"] == 0.9
    assert unequal["capacity-0.5/trained_own/worst"] == 0.3
    assert unequal["group-majority/trained_own/mean"] == pytest.approx(0.6)
    assert unequal["group-minority/trained_own/mean"] == 0.5
    partial = round_metrics(report(clients[0]), ["majority", "majority", "minority"], [1.0, 0.5, 0.5])
    assert partial["capacity-1/trained_own/mean"] == 0.9, "also in a round in which only one width takes part"
    equal = round_metrics(report(client(0), client(1)), ["all", "all"], [1.0, 1.0])
    assert not [name for name in equal if name.startswith(("capacity", "group"))]


def test_dropped_clients_do_not_blur_the_loss():
    """A client whose loss is not finite is counted, not averaged."""
    metrics = round_metrics(report(client(0, loss=2.0), client(1, loss=math.inf, dropped=True)), ["a", "a"], [1.0, 1.0])
    assert metrics["clients/loss"] == 2.0
    assert metrics["clients/dropped"] == 1


def test_round_without_evaluation():
    """No server accuracy rather than a wrong one."""
    metrics = round_metrics(report(client(0, own=math.nan), correct=0, total=0), ["a"], [1.0])
    assert set(metrics) == {"round", "clients/loss", "clients/dropped"}


def test_cost_adds_up():
    """Seconds and bytes are sums over the clients."""
    cost = round_cost(report(client(0), client(1), client(2, dropped=True)))
    assert cost["client_seconds/train"] == 4.5
    assert cost["bytes/down"] == 24
    assert cost["bytes/up"] == 8
    assert cost["clients"] == 3
    assert cost["seconds/total"] == 9.0


def test_client_row_follows_the_columns():
    """Value by value."""
    row = dict(zip(CLIENT_COLUMNS, client_row(client(4, 0.5, 0.25)), strict=True))
    assert (row["client"], row["capacity"], row["trained_own"], row["bytes_up"]) == (4, 0.5, 0.25, 4)
