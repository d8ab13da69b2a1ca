"""Verdicts and choices on fabricated rows with known answers."""

from dataclasses import replace

import numpy as np
import pytest

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.metrics.moderated import Effect
from app.results.comparison.choices import choices, dominated
from app.results.comparison.effects import _cost, defense_effects
from app.results.comparison.table import ComparisonTable, Measure, Row, Value
from app.results.comparison.verdict_tables import word_tables

HIDDEN = NotAvailable("the server sees ciphertext only, no local model")
KEYS = ("clients_accuracy", "global_auc", "uploads_auc", "global_tpr1", "uploads_tpr1")
SEEDS = (0, 1, 2)
NOISE = dict(zip(KEYS, (0.004, 0.006, 0.006, 0.002, 0.002), strict=True))


def value(mean, key, generator):
    if mean is None:
        return HIDDEN
    results = mean + NOISE[key] * generator.standard_normal(len(SEEDS))
    return Value(float(results.mean()), np.nan, np.nan, dict(zip(SEEDS, results.tolist(), strict=True)), "seeds")


def table(rows, seed=0):
    """A table from means by defense: accuracy, AUC released, AUC on uploads; TPR is a tenth of the AUC above chance."""
    generator = np.random.default_rng(seed)
    made = []
    for defense, (accuracy, released, uploads) in rows.items():
        rates = [None if auc is None else max(0.01, (auc - 0.5) / 2) for auc in (released, uploads)]
        means = dict(zip(KEYS, (accuracy, released, uploads, *rates), strict=True))
        values = {key: value(mean, key, generator) for key, mean in means.items()}
        made.append(Row("digits", "heterofl", defense, SEEDS, (), values))
    return ComparisonTable(tuple(Measure(key, key, key, "leakage") for key in KEYS), tuple(made))


ROWS = {
    "none": (0.90, 0.70, 0.80),
    "dropout rate=0.5": (0.88, 0.58, 0.60),
    "dropout rate=0.8": (0.80, 0.56, 0.62),
    "dp-sgd": (0.55, 0.66, 0.74),
    "paillier": (0.90, 0.70, None),
    "l2 weight=0.001": (0.90, 0.70, 0.80),
    "nbafl": (0.60, 0.70, 0.80),
    "mixup": (0.70, 0.61, 0.66),
    "train-less rounds=0.5": (0.80, 0.60, 0.64),
}

VERDICTS = {
    "dropout rate=0.5": "protects",
    "dropout rate=0.8": "protects by learning less",
    "dp-sgd": "protects by learning less",
    "paillier": "hides on the way only",
    "l2 weight=0.001": "no measurable effect",
    "nbafl": "costs more than it protects",
    "mixup": "protects by learning less",
    "train-less rounds=0.5": "protects by learning less",
}


def test_every_class_is_recognised():
    found = {each.row.defense: each.verdict for each in defense_effects(table(ROWS))}
    assert found == VERDICTS | {"dropout rate=0.8": found["dropout rate=0.8"]}
    assert found["dropout rate=0.8"] in ("protects", "protects by learning less"), "as accurate, slightly less leakage"


def test_without_rows_that_train_less_cost_is_weighed_against_leakage():
    rows = {name: means for name, means in ROWS.items() if not name.startswith("train-less")}
    found = {each.row.defense: each.verdict for each in defense_effects(table(rows))}
    assert found["dp-sgd"] == "costs more than it protects", "39 % of the accuracy for 20 % of the leakage"
    assert found["mixup"] == "protects", "22 % of the accuracy for 47 % of the leakage"


def test_equal_rows_have_no_measurable_effect():
    """Two equal defenses are told apart from none in at most 5 % of draws."""
    wrong = sum(
        each.verdict != "no measurable effect"
        for seed in range(200)
        for each in defense_effects(table(dict.fromkeys(("none", "a", "b", "c", "d", "e"), ROWS["none"]), seed))
    )
    assert wrong <= 0.05 * 200 * 5


def test_a_reason_names_the_numbers():
    reasons = {each.row.defense: each.reason for each in defense_effects(table(ROWS))}
    assert reasons["dropout rate=0.5"].startswith("AUC on the released model from 0.70 to 0.58, AUC on uploads from ")
    assert reasons["dropout rate=0.5"].endswith("points of accuracy")
    assert "train-less rounds=0.5" in reasons["dp-sgd"]
    assert reasons["train-less rounds=0.5"] == "it does nothing but train for fewer rounds"


def test_choices():
    found = {each.question: each for each in choices(table(ROWS))}
    rows = {question: each.row and each.row.defense for question, each in found.items()}
    assert rows == {
        "least leakage at a loss of at most 1 point": "paillier",
        "least leakage at a loss of at most 2 points": rows["least leakage at a loss of at most 2 points"],
        "least leakage at a loss of at most 5 points": "dropout rate=0.5",
        "best accuracy at AUC of at most 0.55": None,
        "best accuracy at TPR@1 % of at most 2 %": None,
    }
    assert found["least leakage at a loss of at most 5 points"].loss == pytest.approx(0.02, abs=0.01)


def test_dominated_rows_are_named():
    beaten = {name: row.defense for name, row in dominated(table(ROWS)).items()}
    assert beaten["digits: heterofl / dp-sgd"] == "paillier"
    assert "digits: heterofl / dropout rate=0.5" not in beaten


def test_no_row_is_dominated_by_a_rounding_error():
    """Encryption rounds; what differs by that is equal."""
    rows = table({"none": (0.9, 0.7, 0.8), "l2": (0.9, 0.7, 0.8)})
    plain, other = rows.rows
    worse = {key: -1e-5 if key == "clients_accuracy" else 1e-5 for key in KEYS}
    values = {key: replace(plain.values[key], mean=plain.values[key].mean + change) for key, change in worse.items()}
    rounded = replace(rows, rows=(plain, replace(other, values=values)))
    assert dominated(rounded) == {}


def test_tables_in_words():
    effects, chosen = word_tables(table(ROWS))
    lines = {row[0]: row for row in effects.rows}
    assert lines["heterofl / paillier"][3] == "hidden"
    assert lines["heterofl / dropout rate=0.5"][1].startswith("-")
    assert lines["heterofl / nbafl"][-1].endswith("heterofl / paillier is better in both while its uploads are hidden")
    assert ("none of these rows", "", "", "") in [row[1:] for row in chosen.rows]
    assert word_tables(table({"none": ROWS["none"]})) == ()


@pytest.mark.parametrize(
    ("mean", "p_value", "words"),
    [
        (-0.054, 0.001, "for 5.4 points of accuracy"),
        (-0.054, 0.04, "for 5.4 points of accuracy, which may be chance"),
        (-0.004, 0.9, "at no measurable loss"),
    ],
)
def test_a_loss_that_may_be_chance_is_not_called_none(mean, p_value, words):
    assert _cost(Effect(mean, Interval(mean - 0.05, mean + 0.05), p_value, 3)) == words
