"""Marks: every row can be found in every figure, with the numbers of the table."""

from dataclasses import replace

import pytest
from figure_kit import data_of, figures
from store_kit import make_store

from app.metrics.membership import NotAvailable
from app.results.figures import figures_of
from app.results.figures.marks import in_words, marks_of
from app.results.figures.pareto import pareto


@pytest.fixture(scope="module")
def known():
    """Two methods and four defenses on two datasets."""
    return data_of(make_store(seeds=(0, 1), datasets=("digits", "letters")))


def test_every_figure_names_its_rows(known):
    """All rows of its dataset that it can show, by their places in the table; hidden uploads are in all but one."""
    for figure in figures_of(known.store, known.table):
        named = {name for mark in marks_of(figure.plot).values() for name in mark.rows}
        dataset = "letters" if "letters" in figure.key else "digits"
        rows = {row.name: place for place, row in enumerate(known.table.rows) if row.dataset == dataset}
        assert figure.rows == rows
        without = {"clients": "secure", "cost": "none"}.get(figure.key.partition("-")[0], "no such")
        assert named == {name for name in rows if without not in name}


def test_every_row_says_something_in_every_figure(known):
    """Not only its labels."""
    for figure in figures_of(known.store, known.table):
        marks = marks_of(figure.plot).values()
        assert {name for mark in marks for name in mark.rows} == {
            name for mark in marks if mark.says or mark.each for name in mark.rows
        }


def test_words_are_those_of_the_table(known):
    """Title, mean, unit and interval; what is not available is left out, and so is what is no column."""
    row, measures = known.table.rows[0], known.table.measures
    [measure] = [measure for measure in measures if measure.key == "server_accuracy"]
    value = row.values["server_accuracy"]
    mean, low, high = (f"{100 * one:.1f}" for one in (value.mean, value.low, value.high))
    assert in_words(row, measures, "server_accuracy", "no column") == f"server {mean} % [{low}, {high}]"
    lost = replace(row, values={**row.values, "server_accuracy": NotAvailable("lost")})
    assert in_words(lost, measures, "server_accuracy") == ""
    assert measure.title == "server"


def test_ids_are_unique(known):
    """Also where two panels show the same rows."""
    [figure, _] = figures(pareto, known)
    ids = [artist.get_gid() for artist in figure.plot.findobj() if artist.get_gid() in marks_of(figure.plot)]
    assert len(ids) == len(set(ids)) == len(marks_of(figure.plot))
