"""One name for each accuracy of clients, in the terminal, in tables, in figures and beside published numbers."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from app.commands.fit import _accuracies as closing_lines
from app.common.wording import LOCAL_TEST, RECEIVED, TRAINED
from app.federation.evaluation import Score
from app.federation.reports import ClientReport, RoundReport
from app.results.comparison.plain_columns import utility_columns
from app.results.figures.pareto import UTILITY
from app.results.figures.rounds import ACCURACIES
from app.results.published.formats import TITLES
from app.results.run.fairness import ClientAccuracies, fairness_record, fairness_rows
from app.results.run.figures import draw_accuracy, draw_fairness
from callbacks.recorders.progress import _accuracies as progress_line

NAMES = {
    **dict.fromkeys(("clients_accuracy", "clients_worst", "clients/received_common/mean"), RECEIVED),
    **dict.fromkeys(("clients_own", "clients/trained_own/mean", "trained"), TRAINED),
    **dict.fromkeys(("everyone_accuracy", "everyone_worst", "everyone/accuracy", "local"), LOCAL_TEST),
}
"""Name of each quantity by its key in files, tables and below."""

AMBIGUOUS = re.compile(r"^(worst |all |every )?clients?\b|\bclients?'?s? (accuracy|models?)\b|own data|trained clients")
"""Names that leave open which model is meant."""


def round_of(own):
    """A round of a single client with this accuracy on its own test set."""
    client = ClientReport(0, 1.0, 10, 1.0, False, 0.4, 0.4, 0.6, own, 8, 4, 1.5, 0.5)
    return RoundReport(1, (client,), Score(correct=3, total=4, loss=2.0), {"total": 9.0})


def terminal():
    """Lines of the progress and of the end."""
    for own in (0.5, math.nan):
        yield "trained", progress_line(SimpleNamespace(report=round_of(own))).split("  ")[1]
        yield from (("trained", label) for label, *_ in closing_lines(round_of(own)) if "server" not in label)
    measured = ClientAccuracies(1, (0, 1), ("all", "all"), (4, 4), (False, False), {"own": (0.5, 0.75)})
    yield "local", fairness_rows(fairness_record(measured, []))[0][0]


def drawn_accuracies(monkeypatch, tmp_path):
    """Lines of `accuracy.png`, and texts of `fairness.png`."""
    figures = []
    monkeypatch.setattr("app.results.run.figures.write_figure", lambda _, figure: figures.append(figure))
    trained = {f"clients/trained_{where}/{which}": 0.5 for where in ("own", "common") for which in ("mean", "worst")}
    draw_accuracy([{"round": 1, **trained, "capacity-0.5/trained_common/mean": 0.4}], tmp_path / "a.png", "run")
    draw_accuracy([{"round": 1, "everyone/accuracy": 0.5}], tmp_path / "a.png", "run")
    for figure, quantity in zip(figures, ("trained", "local"), strict=True):
        yield from ((quantity, line.get_label()) for line in figure.axes[0].get_lines())
    measured = ClientAccuracies(2, (0, 1), ("all", "all"), (4, 4), (False, False), {"own": (0.5, 0.75)})
    fairness = draw_fairness(measured, [{"round": r, "everyone/accuracy": 0.5} for r in (1, 2)], "run")
    yield "local", fairness.get_suptitle().splitlines()[1]
    yield from (("local", label) for label in (fairness.axes[0].get_xlabel(), fairness.axes[1].get_ylabel()))


@pytest.fixture
def names(monkeypatch, tmp_path):
    """Pairs of a quantity and what it is called, over everything that users read."""
    columns = [(column.measure.key, column.measure.title) for column in utility_columns()]
    axes = [*UTILITY.items(), *(item for panel in ACCURACIES for item in panel.items())]
    every = [*terminal(), *columns, *axes, *TITLES.items(), *drawn_accuracies(monkeypatch, tmp_path)]
    return [(quantity, name.replace("\n", " ")) for quantity, name in every]


def test_every_accuracy_of_clients_has_its_one_name(names):
    assert [(quantity, name) for quantity, name in names if NAMES.get(quantity, "") not in name] == []
    assert np.isin(list(NAMES), [quantity for quantity, _ in names]).all()


def test_no_name_leaves_open_which_model_is_meant(names):
    assert [name for _, name in names if AMBIGUOUS.search(name)] == []


@pytest.mark.parametrize("name", ["clients", "clients 85.0%", "clients' accuracy", "worst client", "all clients"])
def test_the_search_finds_ambiguous_names(name):
    assert AMBIGUOUS.search(name)
