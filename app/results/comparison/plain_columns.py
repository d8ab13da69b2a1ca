"""Columns of utility, formal guarantees, and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from app.common.wording import LOCAL_TEST, RECEIVED, TRAINED
from app.metrics.fairness import Fairness
from app.metrics.membership import NotAvailable
from app.privacy.statements import PrivacyStatement
from app.results.comparison.rows import (
    NO_GUARANTEE,
    NOT_RUN,
    Column,
    RowRuns,
    SeedValues,
    by_seed,
    seeds_without_number,
)
from app.results.comparison.table import Measure
from app.results.run.labels import NO_DEFENSE
from app.results.run.store import RunRecord

MEGABYTE = 1e6
"""Bytes."""

UNBOUNDED = NotAvailable("the defense adds no noise: epsilon is infinite")
POSITIVE, SIGNED = (0.0, math.inf), (-1.0, 1.0)
SQUARED = "squared points"

Read = Callable[[RunRecord], float | None]


def utility_columns() -> tuple[Column, ...]:
    """Accuracies of the server and of the clients, and their distribution over clients."""
    received = "clients/received_common"
    own = "of all clients, each with the model that it would use, on its own test set"
    return (
        _metric(
            "server_accuracy", "server", "server/accuracy", "accuracy of the server's model on the common test set"
        ),
        _metric(
            *("clients_accuracy", RECEIVED, f"{received}/mean"),
            "mean over clients of the accuracy of the model that they receive, on the common test set",
        ),
        _metric(
            *("clients_worst", f"{RECEIVED}, worst", f"{received}/worst"),
            "accuracy of the worst of the models that clients receive, on the common test set",
        ),
        _metric(
            *("clients_own", TRAINED, "clients/trained_own/mean"),
            "mean over the last round's clients of the accuracy of their model after local training, on their own test "
            "sets",
        ),
        _fairness("everyone_accuracy", LOCAL_TEST, f"mean accuracy {own}", lambda fairness: fairness.mean),
        _fairness("everyone_worst", f"{LOCAL_TEST}, worst", f"worst accuracy {own}", lambda fairness: fairness.worst),
        _fairness("everyone_majority", "majority", f"mean accuracy of the majority group {own}", _group("majority")),
        _fairness("everyone_minority", "minority", f"mean accuracy of the minority group {own}", _group("minority")),
        _fairness("everyone_gap", "gap", "the majority's mean minus the minority's", lambda each: each.gap, None),
        Column(
            Measure("everyone_variance", "variance", f"variance of accuracy {own}", "utility", SQUARED, 1.0, 1, True),
            lambda row_runs: by_seed(row_runs, lambda run: None if run.fairness is None else run.fairness.variance),
            POSITIVE,
        ),
        _metric("train_accuracy", "train", "server/train_accuracy", "accuracy of the server's model on members", None),
        Column(
            _accuracy("train_test_gap", "train-test gap", "accuracy on members minus that on the test set", True),
            lambda row_runs: by_seed(row_runs, _train_test_gap),
            SIGNED,
        ),
    )


def formal_columns() -> tuple[Column, ...]:
    """Formal guarantees."""
    meaning = "privacy budget spent at the end; epsilons of different units (sample, client) cannot be compared"
    measured = (
        "largest lower bound on epsilon that canaries have shown, at 95 % confidence: above the claimed one, the claim "
        "is wrong"
    )
    return (
        Column(Measure("epsilon", "epsilon", meaning, "formal", digits=2), _epsilon, POSITIVE),
        Column(Measure("measured_epsilon", "measured", measured, "formal", digits=2), _measured, POSITIVE),
    )


def cost_columns(rows: Sequence[RowRuns]) -> tuple[Column, ...]:
    """Seconds and bytes, without those of attacks.

    Args:
        rows: all rows, also those without a defense, to which ratios refer.
    """
    plain = {(each.dataset, each.method): each for each in rows if each.defense == NO_DEFENSE}
    ratio = "seconds per round over those of the same method and seed without a defense"
    own = (
        "a client's own seconds per round (training, defense and cryptography, without evaluation) over those of the "
        "same method and seed without a defense"
    )
    return (
        _cost("seconds", "round", "wall-clock seconds per round, without attacks", "s", _seconds_per_round),
        _cost(
            *("cpu_seconds", "round, CPU", "CPU seconds per round on all cores together, without attacks", "s"),
            lambda run: run.cost.get("cpu_seconds_per_round"),
        ),
        Column(
            Measure("seconds_ratio", "slowdown", ratio, "cost", "x", digits=2, lower_is_better=True),
            lambda row_runs: _ratio(row_runs, plain.get((row_runs.dataset, row_runs.method)), _seconds_per_round),
            POSITIVE,
        ),
        _cost(
            *("train_seconds", "client training", "seconds of training per client and round", "s"),
            lambda run: run.cost.get("train_seconds_per_client_round"),
        ),
        Column(
            Measure("client_ratio", "client slowdown", own, "cost", "x", digits=2, lower_is_better=True),
            lambda row_runs: _ratio(row_runs, plain.get((row_runs.dataset, row_runs.method)), _own_seconds),
            POSITIVE,
        ),
        _cost("megabytes_up", "upload", "sent by a client in a round, in 10^6 bytes", "MB", partial(_bytes, way="up")),
        _cost("megabytes_down", "download", "received by a client in a round", "MB", partial(_bytes, way="down")),
    )


def _metric(key: str, title: str, name: str, meaning: str, lower: bool | None = False) -> Column:
    """A fraction among the last round's metrics, shown in percent."""
    return Column(
        _accuracy(key, title, meaning, lower), lambda row_runs: by_seed(row_runs, lambda run: run.final.get(name))
    )


def _fairness(
    key: str, title: str, meaning: str, read: Callable[[Fairness], float], lower: bool | None = False
) -> Column:
    """A fraction over all clients, shown in percent; runs without groups have no gap."""

    def value(run: RunRecord) -> float | None:
        number = math.nan if run.fairness is None else read(run.fairness)
        return None if math.isnan(number) else number

    bounds = (0.0, 1.0) if lower is False else SIGNED
    return Column(_accuracy(key, title, meaning, lower), lambda row_runs: by_seed(row_runs, value), bounds)


def _accuracy(key: str, title: str, meaning: str, lower: bool | None) -> Measure:
    return Measure(key, title, f"{meaning}, in percent", "utility", "%", 100, 1, lower)


def _group(name: str) -> Callable[[Fairness], float]:
    return lambda fairness: next((group.mean for group in fairness.groups if group.name == name), math.nan)


def _train_test_gap(run: RunRecord) -> float | None:
    train, test = (run.final.get(f"server/{name}") for name in ("train_accuracy", "accuracy"))
    return None if train is None or test is None else train - test


def _epsilon(row_runs: RowRuns) -> SeedValues | NotAvailable:
    """The strongest guarantee of every run: proven ones before nominal ones, then the smallest epsilon."""
    statements = {run.labels.seed: _strongest(run.budgets) for run in row_runs.runs if run.budgets}
    if not statements:
        return NO_GUARANTEE
    finite = {seed: statement for seed, statement in statements.items() if math.isfinite(statement.epsilon)}
    if not finite:
        return UNBOUNDED
    shown = next(iter(finite.values()))
    marks = (shown.unit, *(("nominal",) if any(statement.nominal for statement in finite.values()) else ()))
    values = {seed: statement.epsilon for seed, statement in finite.items()}
    return SeedValues(values, marks=marks, notes=seeds_without_number(row_runs, values))


def _measured(row_runs: RowRuns) -> SeedValues | NotAvailable:
    """The largest bound of every run, of one unit; marked where it breaks a promise."""
    records = [record for run in row_runs.runs for record in run.canaries if record.measured is not None]
    if not records:
        return NOT_RUN
    unit = min(record.unit for record in records)
    values = {
        run.labels.seed: max(one.measured.most for one in run.canaries if one.measured is not None and one.unit == unit)
        for run in row_runs.runs
        if any(one.measured is not None and one.unit == unit for one in run.canaries)
    }
    broken = any(record.broken for record in records if record.unit == unit)
    return SeedValues(
        values, marks=(unit, *(("above claim",) if broken else ())), notes=seeds_without_number(row_runs, values)
    )


def _strongest(budgets: Sequence[PrivacyStatement]) -> PrivacyStatement:
    def order(statement: PrivacyStatement) -> tuple[bool, bool, float]:
        endless = not math.isfinite(statement.epsilon)
        return endless, statement.nominal, 0.0 if endless else statement.epsilon

    return min(budgets, key=order)


def _cost(key: str, title: str, meaning: str, unit: str, read: Read) -> Column:
    measure = Measure(key, title, meaning, "cost", unit, digits=3, lower_is_better=True)
    return Column(measure, lambda row_runs: by_seed(row_runs, read), POSITIVE)


def _seconds_per_round(run: RunRecord) -> float | None:
    return run.cost.get("seconds_per_round")


def _own_seconds(run: RunRecord) -> float | None:
    return run.cost.get("own_seconds_per_client_round")


def _bytes(run: RunRecord, way: str) -> float | None:
    total, clients = run.cost.get(f"bytes/{way}"), run.cost.get("clients")
    return None if total is None or not clients else total / clients / MEGABYTE


def _ratio(row_runs: RowRuns, plain: RowRuns | None, read: Read) -> SeedValues | NotAvailable:
    """Seconds over those of the undefended run of the same seed."""
    if plain is None:
        return NotAvailable("there is no run of this method without a defense")

    def ratio(run: RunRecord) -> float | None:
        other = plain.run(run.labels.seed)
        base, own = (None if each is None else read(each) for each in (other, run))
        return None if own is None or not base else own / base

    ratios = by_seed(row_runs, ratio)
    if isinstance(ratios, NotAvailable):
        return NotAvailable("there is no run of the same seed without a defense")
    return ratios
