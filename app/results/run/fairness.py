"""Results on fairness: accuracies of all clients and of newcomers, as files, figures and lines for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from matplotlib.figure import Figure

from app.common.files import csv_text
from app.common.wording import LOCAL_TEST, counted
from app.metrics.fairness import POINTS, Fairness, Swap, gap_estimate, mean_estimate, swap_estimate
from app.metrics.intervals import Estimate
from app.result import PlainTable, Result

OWN, ANOTHER, MEAN, NONE, FINE_TUNED = "own", "another", "mean", "none", "fine_tuned"
"""Whose private part a client is evaluated with; the last one is its own model after one more local training."""

PREFIX = "everyone/"
"""Front of the names of these metrics."""

CONTROLS = {ANOTHER: "another", MEAN: "mean_choice", NONE: "no_choice"}
"""Metrics of the last round that show whether the models are personal."""

SETTLED = 10
"""Measured rounds over which the settled numbers are means: a single round swings."""

WORDS = {
    "final": "every client of the federation with the model it would use after the last round, on its own test set, "
    "each client counted once; accuracies are fractions, 0 to 1",
    "variance": "population variance over clients of the accuracies in percent, in squared percentage points",
    "worst_tenth": "mean of the worst tenth of the clients, rounded up to whole clients; best_tenth likewise",
    "gap": "mean of the majority less that of the minority, or of the best group less that of the worst",
    "interval": "from drawing the clients anew within their groups: it tells about other clients of the same kind, not "
    "about training again",
    "settled": "means over the last rounds in which every client was evaluated, at most ten, since all groups joined",
    "controls": "the same clients with the private part of another client of their group, with the mean of all, and "
    "with none (the server's released model)",
    "swap": "accuracy with the own private part less that with another client's, over the clients that hold one; where "
    "its interval reaches down to 0, the models are not personal",
    "fine_tuned": "every client's model after one more local training that is sent to nobody",
}
"""What the entries of `fairness.json` mean."""


@dataclass(frozen=True)
class ClientAccuracies:
    """Accuracy of every client that has a test set of its own, after one round; one entry per client, by client id."""

    round: int  # rounds completed
    clients: tuple[int, ...]
    groups: tuple[str, ...]  # subpopulation of each client
    samples: tuple[int, ...]  # size of its own test set
    holders: tuple[bool, ...]  # whether it holds a private part
    # fractions in [0, 1] by whose private part was used: `own` always, the others where measured
    accuracies: dict[str, tuple[float, ...]]

    def fairness(self, whose: str = OWN) -> Fairness:
        return Fairness.of(self.accuracies[whose], self.groups)

    def estimate(self, whose: str = OWN) -> Estimate:
        return mean_estimate(self.accuracies[whose], self.groups)

    @property
    def swap(self) -> Swap | None:
        """What another client's private part costs; None where nothing is private."""
        if ANOTHER not in self.accuracies:
            return None
        own, another = (
            [accuracy for accuracy, held in zip(self.accuracies[whose], self.holders, strict=True) if held]
            for whose in (OWN, ANOTHER)
        )
        return swap_estimate(own, another)

    def metrics(self) -> dict[str, float]:
        metrics = {"accuracy" if name == "mean" else name: value for name, value in _numbers(self.fairness()).items()}
        metrics |= {name: self.fairness(whose).mean for whose, name in CONTROLS.items() if whose in self.accuracies}
        if FINE_TUNED in self.accuracies:
            tuned = _numbers(self.fairness(FINE_TUNED))
            metrics[FINE_TUNED] = tuned.pop("mean")
            metrics |= {f"{FINE_TUNED}_{name}": value for name, value in tuned.items()}
        return {f"{PREFIX}{name}": value for name, value in metrics.items()}


def fairness_record(measured: ClientAccuracies, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Content of `fairness.json` as plain data; `WORDS` explains the entries."""
    record: dict[str, Any] = {
        "round": measured.round,
        "final": _final(measured, OWN),
        "settled": settled(measured, records),
    }
    if (swap := measured.swap) is not None:
        record["controls"] = {whose: _final(measured, whose) for whose in CONTROLS}
        record["swap"] = {**asdict(swap), "personal": swap.personal, "verdict": swap.verdict}
    if FINE_TUNED in measured.accuracies:
        record[FINE_TUNED] = _final(measured, FINE_TUNED)
    return record


def settled(measured: ClientAccuracies, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the last measured rounds, the one at hand included; not over those before a group joined."""
    last = measured.metrics()
    names = [f"{PREFIX}{'accuracy' if name == 'mean' else name}" for name in _numbers(measured.fairness())]
    whole = [record for record in records if all(name in record for name in names)]
    before = [record for record in whole if record["round"] < measured.round]
    rounds = [*before[1 - SETTLED :], last]
    means = {name.removeprefix(PREFIX): math.fsum(record[name] for record in rounds) / len(rounds) for name in names}
    return {"rounds": len(rounds), **means}


def fairness_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, number and explanation of what the summary holds, for the terminal; nothing from an empty one."""
    if not record:
        return []
    final, rounds = record["final"], record["settled"]["rounds"]
    where = f"of {counted(final['clients'], 'client')} with the model that each would use"
    rows = [(LOCAL_TEST, f"{final['mean']:.2%}", f"{where}, worst {final['worst']:.2%}, {_spread(final)}")]
    if rounds > 1:
        groups = [{"name": group["name"], "mean": record["settled"][group["name"]]} for group in _groups(final)]
        mean = {**record["settled"], "groups": groups}
        rows.append((f"last {rounds} measured", f"{mean['accuracy']:.2%}", f"mean of the rounds, {_spread(mean)}"))
    if controls := record.get("controls"):
        means = {whose: f"{controls[whose]['mean']:.2%}" for whose in CONTROLS}
        text = f"mean choice {means[MEAN]}, none {means[NONE]}: {record['swap']['verdict']}"
        rows.append(("another's choice", means[ANOTHER], text))
    if tuned := record.get(FINE_TUNED):
        rows.append(("after fine-tuning", f"{tuned['mean']:.2%}", f"worst {tuned['worst']:.2%}, {_spread(tuned)}"))
    return rows


def unplanned(name: str, planned: bool) -> bool:
    """Whether a metric of clients is measured at the end of a run only, or in a round that was not planned."""
    measured = name.removeprefix(PREFIX)
    last_only = measured in CONTROLS.values() or measured.startswith(FINE_TUNED)
    return name.startswith(PREFIX) and (last_only or not planned)


def _numbers(fairness: Fairness) -> dict[str, float]:
    """Mean, worst and variance, and with several groups the mean of each and the gap."""
    numbers = {"mean": fairness.mean, "worst": fairness.worst, "variance": fairness.variance}
    if len(fairness.groups) > 1:
        numbers |= {group.name: group.mean for group in fairness.groups} | {"gap": fairness.gap}
    return numbers


def _final(measured: ClientAccuracies, whose: str) -> dict[str, Any]:
    accuracies, groups = measured.accuracies[whose], measured.groups
    numbers = {**asdict(measured.fairness(whose)), "mean_interval": asdict(measured.estimate(whose).interval)}
    if len(set(groups)) > 1:
        return {**numbers, "gap_interval": asdict(gap_estimate(accuracies, groups).interval)}
    return {name: value for name, value in numbers.items() if name != "gap"}


def _groups(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups: list[Mapping[str, Any]] = record["groups"]
    return groups if len(groups) > 1 else []


def _spread(record: Mapping[str, Any]) -> str:
    groups = [f"{group['name']} {group['mean']:.2%}" for group in _groups(record)]
    gap = [f"gap {POINTS * record['gap']:.1f} points"] if groups else []
    return ", ".join([f"variance {record['variance']:.1f}", *groups, *gap])


def _table(measured: ClientAccuracies) -> str:
    columns = {"client": measured.clients, "group": measured.groups, "test_samples": measured.samples}
    if ANOTHER in measured.accuracies:
        columns["holds_own"] = tuple(map(int, measured.holders))
    columns |= measured.accuracies
    return csv_text([list(columns), *zip(*columns.values(), strict=True)])


NEWCOMER_WORDS = {
    "server": "the released model as it is, which knows nothing of any client",
    "mean": "the released model with the mean of the private parts of the clients that were trained",
    "fitted": "after the newcomer has fitted its private part alone; all that is shared is frozen",
    "own": "with the private part of the newcomer's own, from the rounds it took part in since it joined",
    "fine_tuned": "after one local training of all parameters, private and shared; sent to nobody",
}
"""What newcomers were evaluated with."""


@dataclass(frozen=True)
class JoinedClients:
    """Newcomers with a test set of their own, by client id."""

    clients: tuple[int, ...]
    groups: tuple[str, ...]  # subpopulation of each
    visits: int  # local trainings of the private part
    # fractions in [0, 1] on their own test sets, by what they were evaluated with (see `NEWCOMER_WORDS`)
    accuracies: dict[str, tuple[float, ...]]
    round: int | None = None  # first round that they could take part in; None where they joined after the last one

    def record(self) -> dict[str, Any]:
        means = {
            stage: {"mean": estimate.value, "interval": asdict(estimate.interval)}
            for stage, own in self.accuracies.items()
            for estimate in [mean_estimate(own, self.groups)]
        }
        joined = {"visits": self.visits} if self.round is None else {"round": self.round}
        return {"clients": len(self.clients), **joined, "accuracy": means}


def newcomer_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, number and accuracies of the newcomers, for the terminal; nothing from an empty summary."""
    if not record:
        return []
    stages = {
        "server": "with the released model",
        "mean": "with the mean private part",
        "fitted": f"private part fitted in {record.get('visits')} visits, all else frozen",
        "own": f"with the private part of their own, trained since round {record.get('round')}",
        "fine_tuned": "everything fine-tuned once",
    }
    means = [
        f"{record['accuracy'][stage]['mean']:.2%} {text}"
        for stage, text in stages.items()
        if stage in record["accuracy"]
    ]
    return [("newcomers", str(record["clients"]), "; ".join(means))]


@dataclass(frozen=True, eq=False, repr=False)
class _ClientsResult(Result):
    """A record as plain data, kept with an explanation of its entries (`words`)."""

    folder = "."
    words: ClassVar[Mapping[str, str]]

    content: dict[str, Any]

    @property
    def numbers(self) -> Mapping[str, float]:
        return {name: value for name, value in self.content.items() if isinstance(value, (int, float))}

    def record(self) -> dict[str, Any]:
        return self.content | {"words": self.words}

    @classmethod
    def paths(cls, run: Path) -> list[Path]:
        return [path for path in [run / f"{cls.label}.json"] if path.is_file()]

    @classmethod
    def restore(cls, plain: Any) -> Self:
        return cls({key: value for key, value in plain.items() if key != "words"})

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        return ""  # stands in the closing table of a run

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        return PlainTable(
            ("result", "value", "explanation"), [list(row) for one in results for row in one.closing_rows()]
        )

    @classmethod
    def summary(cls, results: Sequence[Self]) -> dict[str, Any]:
        return results[-1].content


@dataclass(frozen=True, eq=False, repr=False)
class FairnessResult(_ClientsResult):
    """Every client of the federation with the model that it would use."""

    kind = "fairness"
    redrawn = True
    part = "fairness"
    label = "fairness"
    words = WORDS

    measured: ClientAccuracies | None = None  # accuracies behind the record, None for a result that was loaded
    # metrics of the rounds in which all clients were evaluated
    history: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, measured: ClientAccuracies, history: Sequence[Mapping[str, Any]]) -> FairnessResult:
        return cls(fairness_record(measured, history), measured, history)

    @property
    def numbers(self) -> Mapping[str, float]:
        return {name: value for name, value in self.content["final"].items() if isinstance(value, float)}

    def closing_rows(self) -> Sequence[tuple[str, str, str]]:
        return fairness_rows(self.content)

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        from app.results.run.figures import draw_fairness  # which is about these results

        if self.measured is not None:
            yield "fairness.png", draw_fairness(self.measured, self.history, title.removeprefix("fairness: "))

    @classmethod
    def files(cls, results: Sequence[Self]) -> Iterator[tuple[str, str]]:
        yield from (("everyone.csv", _table(one.measured)) for one in results if one.measured is not None)


@dataclass(frozen=True, eq=False, repr=False)
class NewcomersResult(_ClientsResult):
    """Clients that joined when the training was over; `joined` is None for a result that was loaded."""

    kind = "newcomers"
    part = "newcomers"
    label = "newcomers"
    words = NEWCOMER_WORDS

    joined: JoinedClients | None = None

    def closing_rows(self) -> Sequence[tuple[str, str, str]]:
        return newcomer_rows(self.content)

    @classmethod
    def files(cls, results: Sequence[Self]) -> Iterator[tuple[str, str]]:
        for joined in (one.joined for one in results if one.joined is not None):
            rows = zip(joined.clients, joined.groups, *joined.accuracies.values(), strict=True)
            yield "newcomers.csv", csv_text([("client", "group", *joined.accuracies), *rows], line_end="\n")
