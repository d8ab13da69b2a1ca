"""What is searched, and the points that are tried."""

import math

import numpy as np
import pytest
from comparison_kit import problems_of
from run_kit import parsed
from tuning_kit import TUNED, tuner_of

import callbacks
from app.common.errors import UserError
from app.experiments.tuning.space import RATE, SHORT, Choices, Range, Searched, points, read_span, row_space
from app.federation.hooks import Around, FederatedCallback

RATES = Searched(RATE, Range(0.01, 1.0, False), 0.1, "")
EPOCHS = Searched(SHORT["epochs"], Range(1, 8, True), 2, "")
BATCH = Searched(SHORT["batch_size"], Choices((16, 32)), 16, "")


def test_every_part_of_a_range_is_tried_once():
    """A Latin hypercube: one learning rate in every fifth of the range's logarithm, in some order."""
    _, *tried = points([RATES, BATCH], 6, seed=3)
    fifths = [int(5 * (math.log(point[RATE]) - math.log(0.01)) / math.log(100)) for point in tried]
    assert sorted(fifths) == [0, 1, 2, 3, 4]
    _, *tried = points([BATCH], 9, seed=3)
    assert sorted(point[BATCH.option] for point in tried) == [16] * 4 + [32] * 4


def test_rows_try_what_they_share_at_the_same_points():
    """Whatever else they search; another seed gives other points, and the first trial is the recipe."""
    plain, more = points([RATES], 12, seed=0), points([BATCH, EPOCHS, RATES], 12, seed=0)
    assert [point.get(RATE) for point in plain] == [point.get(RATE) for point in more]
    assert plain[0] == more[0] == {}
    assert points([RATES], 12, seed=1) != plain


def test_options_are_independent():
    """Orders of two options are unrelated: over many seeds, their mean correlation is 0."""
    pairs = [[list(point.values()) for point in points([RATES, EPOCHS], 13, seed)[1:]] for seed in range(200)]
    found = [np.corrcoef(np.log(np.array(each)).T)[0, 1] for each in pairs]
    assert abs(np.mean(found)) < 4 * 0.3 / math.sqrt(200)


def test_whole_numbers_are_equally_wide_and_ends_belong_to_it():
    epochs = Range(1, 3, True, log=False)
    assert [epochs.at(share) for share in (0, 0.32, 0.34, 0.66, 0.67, 0.999)] == [1, 1, 2, 2, 3, 3]
    assert (RATES.span.at(0), RATES.span.at(0.5), RATES.span.at(1 - 1e-12)) == (0.01, 0.1, 1.0)


def test_usual_options_are_around_the_recipe():
    """Learning rate and epochs; not epochs where steps take their place."""
    found = {each.option: each for each in row_space({}, parsed("--config", "demo", "--model.local.epochs", "4"))}
    assert (found[RATE].span, found[RATE].recipe) == (Range(0.0001, 0.01, False), 0.001)
    assert found[EPOCHS.option].span == Range(2, 8, True)
    assert [each.option for each in row_space({}, parsed("--model.local.steps", "5"))] == [RATE]


def test_what_defenses_declare():
    config = parsed("--config", "dp-sgd", "--model.local.batch_size", "32")
    found = {each.option: each for each in row_space({}, config)}
    assert found["defenses.dp_sgd.clip"].span == Range(0.1, 10, False)
    assert found[BATCH.option].span == Range(32, 512, True)
    assert [each.option for each in found.values() if each.own] == ["defenses.dp_sgd.clip", BATCH.option]
    asked = row_space({"clip": read_span("clip", [0.5, 2.0]), "lr": "default"}, config)
    assert [str(each.span) for each in asked] == ["0.5, 2.0", "0.0001 to 0.01"]
    assert not row_space({"clip": "default"}, parsed("--config", "demo"))


def test_numbers_stay_of_their_kind():
    """A range between whole numbers is one of whole numbers only for options that are."""
    asked = {name: read_span(name, {"low": 1, "high": 8}) for name in ("lr", "epochs")}
    assert [each.span.whole for each in row_space(asked, parsed("--config", "demo"))] == [True, False]


def test_a_strength_is_never_searched():
    """Neither the option that a row is a strength of, nor what a defense does not declare."""
    config = parsed("--config", "demo", "--model.local.epochs", "4")
    assert [each.option for each in row_space({}, config, axis=EPOCHS.option)] == [RATE]


@pytest.mark.parametrize("name", ["target_epsilon", "gamma", "trainer.max_epochs", "data.label_noise", "model.local.x"])
def test_what_must_not_be_searched(tmp_path, name):
    defenses = {"none": None, "dp-sgd": None, "memdefense": None}
    with pytest.raises(UserError, match=f"tune.space names {name}, which is not searched in any row"):
        tuner_of(tmp_path, defenses=defenses, tune={"trials": 2, "space": {name: [1, 2]}})


def test_a_swept_option_stays_as_it_is(tmp_path):
    """Rows that are strengths in local epochs keep them; the others search them."""
    defenses = {"none": None, "dropout": {"sweep": {"model.local.epochs": [2, 4]}}}
    found = {
        row.labels.defense: [each.option for each in row.searched] for row in tuner_of(tmp_path, defenses=defenses).rows
    }
    assert found["dropout epochs=2"] == found["dropout epochs=4"] == [RATE]
    assert found["none"] == [EPOCHS.option, RATE]


@pytest.mark.parametrize(
    "wanted", [0.1, [], [None], {"low": 0.1}, {"low": 1, "high": 0.1}, {"low": 0, "high": 1}, {"around": 1}, "all"]
)
def test_what_is_no_span(wanted):
    with pytest.raises(UserError, match="write lr:"):
        read_span("lr", wanted)


def test_spans():
    assert read_span("lr", {"low": 0, "high": 1, "log": False}) == Range(0, 1, True, False)
    assert read_span("epochs", {"low": 1, "high": 8}) == Range(1, 8, True)
    assert read_span("lr", {"around": 10}) == Around(10, 10)


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"trials": 1}, "tune.trials is 1"),
        ({"trials": "many"}, "tune.trials is 'many'"),
        ({"validation": 0}, "tune.validation is 0"),
        ({"prune": "yes"}, "tune.prune is 'yes'"),
        ({"trails": 3}, "did you mean trials"),
        ({"space": {"lr": 3}}, "tune.space.lr is 3"),
        (12, "tune is 12"),
    ],
)
def test_what_is_no_tuning(tmp_path, tune, words):
    assert any(words in problem for problem in problems_of(tmp_path, **{**TUNED, "tune": tune}))


def test_every_defense_declares_options_of_its_own_that_are_no_strength():
    kinds = [getattr(callbacks, name) for name in callbacks.__all__]
    declaring = [kind for kind in kinds if issubclass(kind, FederatedCallback) and kind.tuned]
    assert {"DPSGD", "DPFedAvg", "NbAFL"} <= {kind.__name__ for kind in declaring}
    for kind in declaring:
        assert kind.knob.option not in kind.tuned
        for option in kind.tuned:
            assert option.startswith("model.local.") or hasattr(kind(**{kind.knob.option: kind.knob.values[0]}), option)
