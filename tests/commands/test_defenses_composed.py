"""Every defense over every kind of method: it runs, or it is refused with the reason."""

import json

import pytest
from run_kit import command, parsed, train

from app.commands.fit import fit
from app.common.errors import UserError
from app.recipes import shipped_recipes

DEFENSES = [recipe.name for recipe in shipped_recipes() if recipe.kind == "defense"]
CHANNELS = ["paillier", "paillier-simulated", "secure-aggregation"]
METHODS = ["fedavg", "heterofl", "mapp-fl", "fdropout", "fedrolex"]

REFUSED = {
    ("dp-sgd", "fjord"): "draws narrower networks step by step",
    ("dp-sgd", "qffl"): "by their loss",
    ("dp-fedavg", "qffl"): "by their loss",
    ("secure-aggregation", "fdropout"): "change by a single client from one round to the next",
}
"""Pairs that would not protect what they promise to protect."""


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("defense", DEFENSES)
def test_defense_over_method(tmp_path, defense, method):
    """Recipes add up; the run ends with a model that can be evaluated, and tells of its defense."""
    rounds = 2 if defense == "adversarial-regularisation" else 1  # the first one warms up
    folder = train(tmp_path, "a", "--config", method, "--config", defense, rounds=rounds)
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 <= summary["final"]["server/accuracy"] <= 1
    assert summary["final"]["clients/dropped"] == 0
    assert len(parsed("--config", method, "--config", defense)["defenses"]) == 1


@pytest.mark.parametrize(("pair", "words"), REFUSED.items(), ids=map("-".join, REFUSED))
def test_refused_combination(tmp_path, pair, words):
    """Before any training, with a way out."""
    defense, method = pair
    with pytest.raises(UserError, match=words) as error:
        fit(command(tmp_path, "a", "--config", method, "--config", defense))
    assert all(problem.remedy for problem in error.value.problems)


@pytest.mark.usefixtures("no_figures")
def test_three_defenses_in_layers(tmp_path):
    """Smoothed labels, pruning of what is sent, then noise on it: all act, in that order."""
    layers = ("--config", "heterofl", "--config", "label-smoothing", "--config", "memdefense", "--config", "nbafl")
    folder = train(tmp_path, "a", *layers, rounds=1)
    final = json.loads((folder / "summary.json").read_text())["final"]
    assert {"memdefense/zeros", "nbafl/noise_up"} <= set(final)
    assert final["memdefense/zeros"] == 0, "noise is added to the zeros, too"


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("channel", ["secure-aggregation", "paillier-simulated"])
@pytest.mark.parametrize("defense", [name for name in DEFENSES if name not in CHANNELS])
def test_defense_under_a_channel(tmp_path, defense, channel):
    """Updates are defended first and hidden then; the server ends up with a model of the same quality."""
    layers = ("--config", "heterofl", "--config", defense)
    hidden = train(tmp_path, "hidden", *layers, "--config", channel, rounds=2)
    plain = train(tmp_path, "plain", *layers, rounds=2)
    ends = [json.loads((folder / "summary.json").read_text())["final"] for folder in (hidden, plain)]
    assert ends[0]["server/loss"] == pytest.approx(ends[1]["server/loss"], abs=0.01)
    assert json.loads((hidden / "privacy.json").read_text())["channels"]
