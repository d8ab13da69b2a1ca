"""Columns that are read from a run's numbers: utility, formal promises, and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from app.metrics.fairness import Fairness
from app.metrics.membership import NotAvailable
from app.privacy.statements import PrivacyStatement
from app.results.comparison.rows import NO_PROMISE, Column, RowRuns, SeedValues, absent, by_seed
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
    """Accuracies of the server and of the clients, and how they spread."""
    return (
        _percent(
            "server_accuracy", "server", "server/accuracy", "accuracy of the server's model on the common test set"
        ),
        _percent(
            "clients_accuracy",
            "clients",
            "clients/received_common/mean",
            "mean over clients of the accuracy of the model they receive, on the common test set",
        ),
        _percent(
            "clients_worst",
            "worst client",
            "clients/received_common/worst",
            "accuracy of the worst of the models that clients receive, on the common test set",
        ),
        _percent(
            "clients_own",
            "own data",
            "clients/trained_own/mean",
            "mean over the last round's clients of the accuracy of their trained model, on their own test sets",
        ),
        *_fairness_columns(),
        _percent("train_accuracy", "training", "server/train_accuracy", "accuracy on the members' samples", None),
        Column(
            _utility(
                "train_test_gap", "overfit", "server's accuracy on members less that on the common test set", True
            ),
            lambda cell: by_seed(cell, _train_test_gap),
            SIGNED,
        ),
    )


def formal_columns() -> tuple[Column, ...]:
    """What is promised."""
    meaning = "privacy budget spent at the end; epsilons of different units (sample, client) cannot be compared"
    return (Column(Measure("epsilon", "epsilon", meaning, "formal", digits=2), _epsilon, POSITIVE),)


def cost_columns(cells: Sequence[RowRuns]) -> tuple[Column, ...]:
    """Seconds and bytes; attacks are left out of all of them.

    Args:
        cells: all rows, among which are those without a defense.
    """
    plain = {(cell.dataset, cell.method): cell for cell in cells if cell.defense == NO_DEFENSE}
    ratio = "seconds per round over those of the same method and seed without a defense"
    return (
        _cost("seconds", "round", "seconds per round, attacks left out", "s", _per_round),
        Column(
            Measure("seconds_ratio", "slower", ratio, "cost", "x", digits=2, lower_is_better=True),
            lambda cell: _ratio(cell, plain.get((cell.dataset, cell.method))),
            POSITIVE,
        ),
        _cost("train_seconds", "client", "seconds of training per client and round", "s", _train_seconds),
        _cost("megabytes_up", "up", "sent by a client in a round, in 10^6 bytes", "MB", lambda run: _bytes(run, "up")),
        _cost("megabytes_down", "down", "received by a client in a round", "MB", lambda run: _bytes(run, "down")),
    )


def _fairness_columns() -> tuple[Column, ...]:
    whose = "over every client of the federation with the model it would use, on its own test set, each counted once"
    return (
        _fair("everyone_accuracy", "everyone", f"mean accuracy {whose}", lambda found: found.mean),
        _fair("everyone_worst", "everyone's worst", f"worst accuracy {whose}", lambda found: found.worst),
        _fair("everyone_majority", "majority", f"mean accuracy of the majority, {whose}", _group("majority")),
        _fair("everyone_minority", "minority", f"mean accuracy of the minority, {whose}", _group("minority")),
        _fair("everyone_gap", "gap", "the majority's mean less the minority's", lambda found: found.gap, None),
        Column(
            Measure("everyone_variance", "variance", f"population variance {whose}", "utility", SQUARED, 1.0, 1, True),
            lambda cell: by_seed(cell, lambda run: None if run.fairness is None else run.fairness.variance),
            POSITIVE,
        ),
    )


def _percent(key: str, title: str, name: str, meaning: str, lower: bool | None = False) -> Column:
    """A fraction among the last round's metrics, shown in percent."""
    return Column(_utility(key, title, meaning, lower), lambda cell: by_seed(cell, lambda run: run.final.get(name)))


def _fair(key: str, title: str, meaning: str, read: Callable[[Fairness], float], lower: bool | None = False) -> Column:
    """A fraction of the clients' fairness, shown in percent; runs without groups have no gap."""
    bounds = (0.0, 1.0) if lower is False else SIGNED

    def value(run: RunRecord) -> float | None:
        found = None if run.fairness is None else read(run.fairness)
        return None if found is None or math.isnan(found) else found

    return Column(_utility(key, title, meaning, lower), lambda cell: by_seed(cell, value), bounds)


def _utility(key: str, title: str, meaning: str, lower: bool | None) -> Measure:
    return Measure(key, title, f"{meaning}, in percent", "utility", "%", 100, 1, lower)


def _group(name: str) -> Callable[[Fairness], float]:
    return lambda found: next((group.mean for group in found.groups if group.name == name), math.nan)


def _train_test_gap(run: RunRecord) -> float | None:
    train, test = (run.final.get(f"server/{name}") for name in ("train_accuracy", "accuracy"))
    return None if train is None or test is None else train - test


def _epsilon(cell: RowRuns) -> SeedValues | NotAvailable:
    """The strongest promise of every run: proven ones before nominal ones, then the smallest epsilon."""
    promises = {run.labels.seed: _strongest(run.budgets) for run in cell.runs if run.budgets}
    if not promises:
        return NO_PROMISE
    finite = {seed: promise for seed, promise in promises.items() if math.isfinite(promise.epsilon)}
    if not finite:
        return UNBOUNDED
    shown = next(iter(finite.values()))
    marks = (shown.unit, *(("nominal",) if any(promise.nominal for promise in finite.values()) else ()))
    values = {seed: promise.epsilon for seed, promise in finite.items()}
    return SeedValues(values, marks=marks, notes=absent(cell, values))


def _strongest(budgets: Sequence[PrivacyStatement]) -> PrivacyStatement:
    def order(promise: PrivacyStatement) -> tuple[bool, bool, float]:
        endless = not math.isfinite(promise.epsilon)
        return endless, promise.nominal, 0.0 if endless else promise.epsilon

    return min(budgets, key=order)


def _cost(key: str, title: str, meaning: str, unit: str, read: Read) -> Column:
    measure = Measure(key, title, meaning, "cost", unit, digits=3, lower_is_better=True)
    return Column(measure, lambda cell: by_seed(cell, read), POSITIVE)


def _per_round(run: RunRecord) -> float | None:
    return run.cost.get("seconds_per_round")


def _train_seconds(run: RunRecord) -> float | None:
    return run.cost.get("train_seconds_per_client_round")


def _bytes(run: RunRecord, way: str) -> float | None:
    return _quotient(run.cost, f"bytes/{way}", "clients", MEGABYTE)


def _quotient(numbers: Mapping[str, float], above: str, below: str, unit: float) -> float | None:
    top, bottom = numbers.get(above), numbers.get(below)
    return None if top is None or not bottom else top / bottom / unit


def _ratio(cell: RowRuns, plain: RowRuns | None) -> SeedValues | NotAvailable:
    """Seconds over those of the undefended run of the same seed."""
    if plain is None:
        return NotAvailable("there is no run of this method without a defense")

    def ratio(run: RunRecord) -> float | None:
        other = plain.run(run.labels.seed)
        base, own = (None if each is None else _per_round(each) for each in (other, run))
        return None if own is None or not base else own / base

    found = by_seed(cell, ratio)
    return (
        found if isinstance(found, SeedValues) else NotAvailable("there is no run of the same seed without a defense")
    )
