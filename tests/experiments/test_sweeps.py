"""Strengths of defenses as an axis of a comparison."""

from itertools import pairwise

import pytest
from comparison_kit import problems_of, spec_of

import callbacks
from app.experiments.matrix import planned_runs
from app.federation.hooks import FederatedCallback, Knob

NO_STRENGTH = {"ClientEarlyStopping", "Paillier", "SecureAggregation", "Tripwire"}
"""Defenses that have nothing to turn: they hide updates, watch, or belong to a baseline."""


def runs_by_defense(folder, **changes):
    runs = planned_runs(spec_of(folder, methods=["heterofl"], **changes))
    return {run.labels.defense: run.arguments for run in runs}


def options(arguments, name):
    return [value for option, value in pairwise(arguments) if option == f"--{name}"]


def test_values_of_one_option(tmp_path):
    found = runs_by_defense(tmp_path, defenses={"none": None, "memdefense": {"sweep": {"gamma": [0.5, 0.9]}}})
    assert list(found) == [
        *("none", "memdefense gamma=0.5", "memdefense gamma=0.9"),
        *("train-less rounds=0.25", "train-less rounds=0.5"),
    ]
    assert options(found["memdefense gamma=0.9"], "defenses.memdefense.gamma") == ["0.9"]
    assert options(found["train-less rounds=0.25"], "trainer.max_epochs") == ["5"], "of the 20 that demo trains"
    assert not options(found["none"], "trainer.max_epochs")


def test_rounds_follow_the_options_of_the_comparison(tmp_path):
    defenses = {"none": None, "train-less": {"sweep": {"rounds": [0.5]}}}
    found = runs_by_defense(tmp_path, defenses=defenses, set={"trainer.max_epochs": 6})
    assert options(found["train-less rounds=0.5"], "trainer.max_epochs")[-1] == "3"


def test_the_default_of_a_defense(tmp_path):
    dp_sgd = {"sweep": "default", "set": {"model.net": "MLP"}}
    found = runs_by_defense(tmp_path, defenses={"none": None, "dp-sgd": dp_sgd})
    swept = [name for name in found if name.startswith("dp-sgd")]
    assert swept == [f"dp-sgd target_epsilon={value}" for value in (64, 16, 4, 1)]
    assert options(found[swept[0]], "model.net") == ["MLP"]


def test_an_option_of_another_part(tmp_path):
    sweep = {"sweep": {"model.local.epochs": [1, 2]}}
    found = runs_by_defense(tmp_path, defenses={"none": None, "dropout": sweep})
    assert options(found["dropout epochs=2"], "model.local.epochs") == ["2"]


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("all", "write `sweep: {OPTION: [VALUE, VALUE]}`"),
        ({"gamma": 0.5}, "list its values"),
        ({"gamma": [0.5, 0.5]}, "each once"),
        ({"gamma": [0.5], "scope": ["layer"]}, "with one option"),
    ],
)
def test_what_is_no_sweep(tmp_path, sweep, words):
    problems = problems_of(tmp_path, defenses={"none": None, "memdefense": {"sweep": sweep}})
    assert any("defenses.memdefense: a sweep" in problem and words in problem for problem in problems)


def test_a_defense_without_strength(tmp_path):
    problems = problems_of(tmp_path, defenses={"none": None, "paillier": {"sweep": "default"}})
    assert any("leave out the sweep" in problem for problem in problems)
    problems = problems_of(tmp_path, defenses={"none": None, "train-less": {"sweep": {"rounds": [2]}}})
    assert any("rounds: [0.25, 0.5]" in problem for problem in problems)


def test_every_defense_declares_its_knob():
    """An option of its own, with values that its constructor takes; or it is known to have none."""
    kinds = [getattr(callbacks, name) for name in callbacks.__all__]
    defenses = [kind for kind in kinds if issubclass(kind, FederatedCallback) and kind.kind == "defense"]
    assert len(defenses) > 10
    for kind in defenses:
        if kind.__name__ in NO_STRENGTH:
            assert kind.knob is None
        else:
            assert isinstance(kind.knob, Knob), kind
            for value in kind.knob.values:
                assert getattr(kind(**{kind.knob.option: value}), kind.knob.option) == value
