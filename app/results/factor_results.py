"""Keeps what uploads tell of a private choice of factors: numbers, a table of the clients, and a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any

from tqdm import tqdm

from app.attacks.factor_recovery import COSTS, ClientRecovery, FactorFinding
from app.metrics.intervals import Estimate, Interval
from app.metrics.membership import NotAvailable
from app.results.factor_pictures import draw_factors
from app.results.result_files import replace_all
from app.results.run_folder import RunFolder, cannot_write, finite

STEM = "attacks/factors"
"""Files within the run's folder, without their endings."""

MEANINGS = {
    "support": "AUC: the server's ranking (movement times prior odds) tells the factors that a client uses (above 1/2)",
    "moved": "the same by how far factors moved alone",
    "prior": "control without any upload: the same by the public prior alone",
    "population": "control without the client's upload: the same by the mean choice of all clients, which is secret",
    "specific": "AUC: movement over its mean tells the factors that a client uses more than the population does",
    "own": "accuracy on the client's own test set of its upload with its true choice",
    "recovered": "the same with the choice that the server takes it for",
    "concealed": "the same as the upload was sent: without a choice",
    "another": "the same with another client's choice",
    "concealed_cost": "what the upload as it was sent loses of the accuracy with the true choice, paired by client",
    "recovered_cost": "what it still loses with the choice that the server takes it for",
    "another_cost": "what it loses with another client's choice",
}
"""What is measured, in words."""


class FactorResults:
    """Files of one run: `attacks/factors.json`, `.csv` and `.png`."""

    def __init__(self, folder: RunFolder) -> None:
        """Write nothing yet.

        Args:
            folder: the run's folder, which exists.
        """
        self._folder = folder

    def keep(self, finding: FactorFinding | NotAvailable) -> None:
        """Write the files and say what was found; a result without numbers says why.

        Raises:
            UserError: where the files cannot be written.
        """
        text, table, picture = (self._folder.path / f"{STEM}.{kind}" for kind in ("json", "csv", "png"))
        contents = {text: (json.dumps(finite(_record(finding)), indent=2) + "\n").encode()}
        if isinstance(finding, FactorFinding):
            contents[table] = _table(finding)
            contents[picture] = _picture(finding, f"private choice of factors: {self._folder.name}")
        try:
            text.parent.mkdir(parents=True, exist_ok=True)
            replace_all(contents)
            for path in {table, picture} - set(contents):  # of an earlier result
                path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(text, error) from error
        self._folder.update_summary("factors", factor_summary(self._folder))
        tqdm.write("\n".join([f"\nprivate choice of factors: {self._folder.name}", *factor_lines(finding), ""]))


def factor_summary(folder: RunFolder) -> dict[str, float]:
    """All numbers that are available under `attacks/factors/<name>`; empty where factors were not attacked."""
    path = folder.path / f"{STEM}.json"
    if not path.is_file():
        return {}
    means = json.loads(path.read_text()).get("means", {})
    return {f"{STEM}/{name}": part["value"] for name, part in means.items() if "value" in part}


def factor_lines(finding: FactorFinding | NotAvailable) -> list[str]:
    """What was found, for the terminal."""
    if isinstance(finding, NotAvailable):
        return [f"  N/A: {finding.reason}"]
    told = {name: _told(one, _form(name)) for name, one in finding.means.items()}
    return [
        f"  factors in use       AUC {told['support']}; moved alone {told['moved']}",
        f"  without the upload   AUC {told['prior']} by the public prior, {told['population']} by the clients' mean",
        f"  more than others do  AUC {told['specific']}",
        f"  rebuilt models       {told['own']} true choice, {told['recovered']} recovered",
        f"                       {told['concealed']} as sent, {told['another']} another client's choice",
        f"  not knowing costs    {told['concealed_cost']} points of accuracy; after recovery {told['recovered_cost']}",
        *(f"  {note}" for note in finding.notes),
        f"  {STEM}.png shows it, {STEM}.json and .csv hold the numbers",
    ]


_AREAS = ("support", "moved", "prior", "population", "specific")


def _form(name: str) -> Callable[[float], str]:
    """How a number is written: areas as they are, accuracies in percent, losses of accuracy in points."""
    if name in COSTS:
        return lambda value: f"{100 * value:.2f}"
    return "{:.3f}".format if name in _AREAS else "{:.2%}".format


def _told(estimate: Estimate | NotAvailable, form: Callable[[float], str]) -> str:
    if isinstance(estimate, NotAvailable):
        return "N/A"
    value, interval = form(estimate.value), estimate.interval
    return f"{value} ({form(interval.low)} to {form(interval.high)})" if isinstance(interval, Interval) else value


def _record(finding: FactorFinding | NotAvailable) -> dict[str, Any]:
    if isinstance(finding, NotAvailable):
        return {"reason": finding.reason}
    means = {name: dict(_numbers(one)) for name, one in finding.means.items()}
    return {"clients": len(finding.clients), "means": means, "meaning": MEANINGS, "notes": list(finding.notes)}


def _numbers(estimate: Estimate | NotAvailable) -> Iterator[tuple[str, float | str]]:
    if isinstance(estimate, NotAvailable):
        yield "reason", estimate.reason
        return
    yield "value", estimate.value
    if isinstance(estimate.interval, Interval):
        yield from (("low", estimate.interval.low), ("high", estimate.interval.high))


def _table(finding: FactorFinding) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([field.name for field in fields(ClientRecovery)])
    writer.writerows([list(finite(asdict(client)).values()) for client in finding.clients])
    return text.getvalue().encode()


def _picture(finding: FactorFinding, title: str) -> bytes:
    file, figure = io.BytesIO(), draw_factors(finding, title)
    figure.savefig(file, dpi=130, format="png")
    return file.getvalue()
