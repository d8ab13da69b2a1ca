"""What the report says of tuning, on fabricated trials."""

import math
from dataclasses import replace

import pytest
from store_kit import make_store

from app.common.errors import UserError
from app.results.comparison.formats import as_text
from app.results.comparison.tabulate import tabulate
from app.results.comparison.verdict_tables import word_tables
from app.results.run.store import read_store
from app.results.run.tuned import TUNING, Trial, TunedRow, best, read_tuned, write_tuned

LR, CLIP = "model.local.optimizer.lr", "defenses.dp_sgd.clip"
AROUND = "the recipe's over 10 to times 10"
TRIALS = (
    Trial(0, {}, "complete", 6, 0.5, 3.0),
    Trial(1, {LR: 0.1, CLIP: 2.0}, "complete", 6, 0.75, 3.0),
    Trial(2, {LR: 0.01, CLIP: 1.0}, "stopped", 2, 0.9, 1.0),
)


def tuned(defense, **changes):
    """A row of three trials."""
    searched = {LR: "0.001 to 0.1", CLIP: "0.1 to 10"}
    row = TunedRow("digits", "fedavg", defense, 0, {LR: AROUND}, searched, {LR: 0.01, CLIP: 1.0}, TRIALS, 1)
    return replace(row, **changes)


def table_of(*rows, defenses=("none", "dp-sgd")):
    """The table of a comparison in which these rows were tuned."""
    store = make_store(("fedavg",), defenses, attacked=False)
    return tabulate(replace(store, tuned=rows))


def warnings(table):
    return [words.reading for words in word_tables(table) if words.reading.startswith("Warning")]


def test_what_was_tried_and_chosen():
    [words] = word_tables(table_of(tuned("none"), tuned("dp-sgd", chosen=0)))
    assert words.rows[0] == (
        *("fedavg / none", "3, 1 stopped", "lr 0.001 to 0.1; clip 0.1 to 10", "lr 0.1; clip 2.0"),
        *("50.0 % → 75.0 %", "7 s"),
    )
    assert words.rows[1][3:5] == ("the recipe", "50.0 % → 50.0 %")
    assert "searched" in as_text(table_of(tuned("none")), 300)


def test_rows_that_are_tuned_alike_raise_no_warning():
    """Also where a defense has options of its own."""
    assert not warnings(table_of(tuned("none"), tuned("dp-sgd")))
    assert not warnings(table_of())
    assert not word_tables(table_of())


def failed(trials):
    return (*trials[:-1], replace(trials[-1], state="failed", accuracy=math.nan))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((tuned("none"),), "without tuning: fedavg / dp-sgd"),
        ((tuned("none"), tuned("dp-sgd", trials=TRIALS[:2])), "fedavg / dp-sgd completed 2 of 2 trials"),
        ((tuned("none"), tuned("dp-sgd", trials=failed(TRIALS))), "fedavg / dp-sgd completed 2 of 3 trials"),
        ((tuned("none"), tuned("dp-sgd", asked={LR: "0.1 to 1"})), "fedavg / dp-sgd searched model.local.optimizer.lr"),
    ],
)
def test_rows_that_are_not_tuned_alike(rows, words):
    """Beside the table of what was tried, in the terminal and on the page."""
    table = table_of(*rows)
    [warning] = warnings(table)
    assert "the rows of digits were not tuned alike" in warning
    assert words in warning
    assert words in as_text(table, 1000)


def test_epsilon_does_not_cover_it():
    """The row says so, and the number bears a mark; rows without tuning or without a budget have neither."""
    none, private = table_of(tuned("none"), tuned("dp-sgd")).rows
    assert private.values["epsilon"].marks[-1] == "without tuning"
    [note] = [note for note in private.notes if "tuning" in note]
    assert "epsilon does not cover tuning: the settings were chosen among 3 trials" in note
    assert "validation split that is private data" in note
    assert not any("tuning" in note for note in none.notes)
    [_, untuned] = table_of(tuned("none")).rows
    assert "without tuning" not in untuned.values["epsilon"].marks


def test_records_are_read_back(tmp_path):
    """From the folder of the comparison, or from one of its runs; a broken one is left out."""
    make_store(("fedavg",), ("none",), attacked=False, folder=tmp_path / "compared")
    place = tmp_path / "compared" / TUNING
    place.mkdir()
    row = tuned("none", trials=TRIALS[:2])
    write_tuned(place / "row.json", row)
    (place / "other.json").write_text("{}")
    assert read_tuned(place / "row.json") == row
    assert read_store([tmp_path / "compared"]).tuned == (row,)
    assert read_store([tmp_path / "compared" / "digits-fedavg-none-0"]).tuned == (row,)
    with pytest.raises(UserError, match="cannot be read"):
        read_tuned(place / "other.json")


def test_only_complete_trials_are_chosen():
    """Of equal ones the first; the recipe where there is none."""
    assert best(TRIALS) == 1
    assert best([replace(TRIALS[0], accuracy=0.75), TRIALS[1]]) == 0
    assert best(failed(TRIALS[:1])) == 0
