"""`rampart validate RUN`: evaluate the model of a finished run again, and compare with what the run recorded.

The released model, or that of a client, is evaluated on the common test set, and a client's also on its own.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from app.commands.export import notes, whose
from app.commands.fit import quieten
from app.commands.options import validate_parser
from app.common.errors import UserError
from app.common.reading import read_text
from app.common.wording import counted
from app.federation.evaluation import score
from app.federation.execution.distributed import autocast_of
from app.finished import FinishedRun, load_run
from app.results.run.record import error_text
from app.results.text_table import text_table

FORMATS = {"accuracy": "{:.2%}", "loss": "{:.4f}"}
DIFFERENT = "warning: the run recorded other numbers: its data, its files, the program or the device have changed"


def validate(arguments: Sequence[str]) -> int:
    """Evaluate a model again; returns the exit code: 1 where the run recorded other numbers of the same model."""
    quieten()
    options = validate_parser().parse_args(list(arguments))
    run = load_run(options.run, options.trust)
    model, federation = run.model(options.client, options.static), run.run.federation
    rows, equal = [], True
    for name, samples, recorded in _test_sets(run, options.client):
        with autocast_of(federation.trainer)():
            store, size = federation.data.store.rightly_labelled, federation.evaluation.batch_size
            measured = score(model.net, store, samples, size)
        numbers = _texts({"accuracy": measured.accuracy, "loss": measured.mean_loss})
        same = numbers | recorded == numbers
        told = ", ".join(recorded.values()) + (": equal" if same else ": different") if recorded else "nothing"
        rows.append((name, str(measured.total), *numbers.values(), told))
        equal &= same or options.static  # which no run is evaluated with
    print(f"{whose(model)} of {run.folder.path}, after {counted(len(run.metrics), 'round')}")
    print(text_table(("test set", "samples", "accuracy", "loss", "the run recorded"), rows, left=(0, 4)))
    print(notes(model), end="")
    if not equal:
        print(DIFFERENT, file=sys.stderr)
    return 0 if equal else 1


def _test_sets(run: FinishedRun, client: int | None) -> Iterator[tuple[str, Tensor, dict[str, str]]]:
    """Name and samples of every test set of a model, with the numbers that the run recorded."""
    data, final = run.run.data, run.record.final
    if client is None:
        server = {name: final[f"server/{name}"] for name in FORMATS if f"server/{name}" in final}
        yield "common test set", data.common_test, _texts(server)
        return
    yield "common test set", data.common_test, {}
    own = _recorded(run.folder.path / "everyone.csv")
    if len(samples := data.test_indices(client)):
        yield f"own test set of client {client}", samples, _texts(own.get(client, {}))


def _recorded(table: Path) -> dict[int, dict[str, float]]:
    """Accuracies of all clients on their own test sets; none where there is no such table."""
    try:
        rows = list(csv.DictReader(read_text(table).splitlines())) if table.is_file() else []
        return {int(row["client"]): {"accuracy": float(row["own"])} for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError.of(
            f"{table} cannot be read ({error_text(error)})",
            "there is nothing to compare with",
            "take it from a copy, or delete it to validate without a comparison",
        ) from error


def _texts(numbers: dict[str, float]) -> dict[str, str]:
    return {name: FORMATS[name].format(number) for name, number in numbers.items()}
