"""Fairness of a run on disk: `everyone.csv`, `fairness.json`, `newcomers.json`, and their lines for the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.files import csv_text, write_text
from app.metrics.fairness import POINTS, Fairness, Swap, gap_estimate, mean_estimate, swap_estimate
from app.metrics.intervals import Estimate
from app.results.run.folder import RunFolder

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
    "settled": "means over the last rounds in which every client was evaluated, at most ten",
    "controls": "the same clients with the private part of another client of their group, with the mean of all, and "
    "with none (the server's released model)",
    "swap": "accuracy with the own private part less that with another client's, over the clients that hold one; where "
    "its interval reaches down to 0, the models are not personal",
    "fine_tuned": "every client's model after one more local training that is sent to nobody",
}
"""What the entries of `fairness.json` mean."""


@dataclass(frozen=True)
class ClientAccuracies:
    """Accuracy of every client that has a test set of its own, after one round; one entry per client, by client id.

    Attributes:
        round: rounds completed.
        groups: subpopulation of each client.
        samples: size of its own test set.
        holders: whether it holds a private part.
        accuracies: fractions in [0, 1] by whose private part was used: `own` always, the others where measured.
    """

    round: int
    clients: tuple[int, ...]
    groups: tuple[str, ...]
    samples: tuple[int, ...]
    holders: tuple[bool, ...]
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


def write_fairness(folder: RunFolder, measured: ClientAccuracies, records: Sequence[Mapping[str, Any]]) -> None:
    """Write `everyone.csv` and `fairness.json`; `records` are the lines of `metrics.jsonl`."""
    write_text(folder.path / "everyone.csv", _table(measured))
    folder.write_json("fairness.json", fairness_record(measured, records) | {"words": WORDS})


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
    """Means over the last measured rounds, the one at hand included."""
    last = measured.metrics()
    names = [f"{PREFIX}{'accuracy' if name == 'mean' else name}" for name in _numbers(measured.fairness())]
    before = [record for record in records if names[0] in record and record["round"] < measured.round]
    rounds = [*before[1 - SETTLED :], last]
    means = {name.removeprefix(PREFIX): math.fsum(record[name] for record in rounds) / len(rounds) for name in names}
    return {"rounds": len(rounds), **means}


def fairness_summary(folder: RunFolder) -> dict[str, Any]:
    """Content of `fairness.json` without the explanations; empty where nothing was measured."""
    return _without_words(folder, "fairness.json")


def fairness_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, number and explanation of what the summary holds, for the terminal; nothing from an empty one."""
    if not record:
        return []
    final, rounds = record["final"], record["settled"]["rounds"]
    where = f"on its own test set ({final['clients']} of them)"
    rows = [("every client", f"{final['mean']:.2%}", f"{where}, worst {final['worst']:.2%}, {_spread(final)}")]
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


def forget_unplanned(folder: RunFolder, planned: Sequence[int]) -> None:
    """Drop measurements that a shorter run made at its end; a longer one would not have made them.

    Args:
        folder: the run's folder; its `metrics.jsonl` holds rounds before the last one only.
        planned: rounds (counted from 1) in which all clients are evaluated.
    """
    records = folder.read_lines("metrics.jsonl")
    kept = [
        {name: value for name, value in record.items() if not _unplanned(name, record["round"] in planned)}
        for record in records
    ]
    if kept != records:
        write_text(folder.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))


def _unplanned(name: str, planned: bool) -> bool:
    """Whether a metric is measured at the end of a run only, or in a round that was not planned."""
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
    "fine_tuned": "after one local training of all parameters, private and shared; sent to nobody",
}
"""What newcomers were evaluated with."""


@dataclass(frozen=True)
class JoinedClients:
    """Newcomers with a test set of their own, by client id.

    Attributes:
        groups: subpopulation of each.
        visits: local trainings of the private part.
        accuracies: fractions in [0, 1] on their own test sets, by what they were evaluated with (see `NEWCOMER_WORDS`).
    """

    clients: tuple[int, ...]
    groups: tuple[str, ...]
    visits: int
    accuracies: dict[str, tuple[float, ...]]

    def record(self) -> dict[str, Any]:
        means = {
            stage: {"mean": estimate.value, "interval": asdict(estimate.interval)}
            for stage, own in self.accuracies.items()
            for estimate in [mean_estimate(own, self.groups)]
        }
        return {"clients": len(self.clients), "visits": self.visits, "accuracy": means}


def write_newcomers(folder: RunFolder, joined: JoinedClients) -> None:
    """Write `newcomers.csv` and `newcomers.json`."""
    rows = zip(joined.clients, joined.groups, *joined.accuracies.values(), strict=True)
    text = csv_text([("client", "group", *joined.accuracies), *rows], line_end="\n")
    write_text(folder.path / "newcomers.csv", text)
    folder.write_json("newcomers.json", joined.record() | {"words": NEWCOMER_WORDS})


def newcomer_summary(folder: RunFolder) -> dict[str, Any]:
    """Content of `newcomers.json` without the explanations; empty where there were none."""
    return _without_words(folder, "newcomers.json")


def _without_words(folder: RunFolder, name: str) -> dict[str, Any]:
    path = folder.path / name
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {key: value for key, value in record.items() if key != "words"}


def newcomer_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, number and accuracies of the newcomers, for the terminal; nothing from an empty summary."""
    if not record:
        return []
    stages = {
        "server": "with the released model",
        "mean": "with the mean private part",
        "fitted": f"private part fitted in {record['visits']} visits, all else frozen",
        "fine_tuned": "everything fine-tuned once",
    }
    means = [
        f"{record['accuracy'][stage]['mean']:.2%} {text}"
        for stage, text in stages.items()
        if stage in record["accuracy"]
    ]
    return [("newcomers", str(record["clients"]), "; ".join(means))]
