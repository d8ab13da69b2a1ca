"""What a run tells about clients that joined when its training was over: `newcomers.csv`, `newcomers.json`, lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.metrics.fairness import mean_estimate
from app.results.run_folder import RunFolder, write_text

WORDS = {
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
        clients: client ids.
        groups: subpopulation of each.
        visits: local trainings of the private part.
        accuracies: fractions in [0, 1] on their own test sets, by what they were evaluated with (see `WORDS`).
    """

    clients: tuple[int, ...]
    groups: tuple[str, ...]
    visits: int
    accuracies: dict[str, tuple[float, ...]]

    def record(self) -> dict[str, Any]:
        """Mean accuracies with intervals over the newcomers, as plain data."""
        means = {
            stage: {"mean": estimate.value, "interval": asdict(estimate.interval)}
            for stage, own in self.accuracies.items()
            for estimate in [mean_estimate(own, self.groups)]
        }
        return {"clients": len(self.clients), "visits": self.visits, "accuracy": means}


def write_newcomers(folder: RunFolder, joined: JoinedClients) -> None:
    """Write `newcomers.csv` and `newcomers.json`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["client", "group", *joined.accuracies])
    rows.writerows(zip(joined.clients, joined.groups, *joined.accuracies.values(), strict=True))
    write_text(folder.path / "newcomers.csv", text.getvalue())
    folder.write_json("newcomers.json", joined.record() | {"words": WORDS})


def newcomer_summary(folder: RunFolder) -> dict[str, Any]:
    """What a run has told about newcomers, without the explanations; empty where there were none."""
    path = folder.path / "newcomers.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {name: value for name, value in record.items() if name != "words"}


def newcomer_lines(record: Mapping[str, Any]) -> list[str]:
    """What the summary tells, to be read on a terminal; nothing from an empty one."""
    if not record:
        return []
    told = {
        "server": "with the released model",
        "mean": "with the mean private part",
        "fitted": f"private part fitted in {record['visits']} visits, all else frozen",
        "fine_tuned": "everything fine-tuned once",
    }
    means = [
        f"{record['accuracy'][stage]['mean']:.2%} {words}"
        for stage, words in told.items()
        if stage in record["accuracy"]
    ]
    return [f"  {record['clients']:3} newcomers      {'; '.join(means)}"]
