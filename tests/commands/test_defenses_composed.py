"""Every defense over every kind of method: it runs, or it is refused with the reason."""

import functools
import json

import pytest
import torch
from run_kit import command, train

from app.commands.fit import fit
from app.common.errors import UserError
from app.configuration import expand, run_parser
from app.recipes import shipped_recipes
from app.run import run_of

DEFENSES = [recipe.name for recipe in shipped_recipes() if recipe.kind == "defense"]
CHANNELS = ["paillier", "paillier-simulated", "secure-aggregation", "distributed-dp"]
"""Recipes with a channel that hides updates."""
METHODS = ["fedavg", "heterofl", "mapp-fl", "fdropout", "fedrolex"]
LOCAL = ["adversarial-regularisation", "dropout", "l2", "label-smoothing", "mixup", "stop-early"]
"""Defenses that act within a client, who does not know how its coordinates were chosen."""
DEFENDED = [("heterofl", defense) for defense in DEFENSES]

REFUSED = {
    ("dp-sgd", "fjord"): "draws narrower networks step by step",
    ("dp-sgd", "qffl"): "by their loss",
    **{
        (recipe, "qffl"): "by their loss" for recipe in ("dp-fedavg", "dp-fedavg-adaptive", "dp-ftrl", "distributed-dp")
    },
    ("distributed-dp", "fdropout"): "change by a single client from one round to the next",
    ("secure-aggregation", "fdropout"): "change by a single client from one round to the next",
}
"""Pairs that would not protect what they promise to protect."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run of a round or two with some recipes, trained when it is asked for first; a defense's own has a folder."""

    @functools.cache
    def run(*recipes):
        rounds = 2 if {"heterofl", "adversarial-regularisation"} & {*recipes} else 1  # a first one warms attackers up
        layers = [part for recipe in recipes for part in ("--config", recipe)]
        fewer = ("--data.partition.samples", "40", "--model.evaluation.clients", "false", "--model.executor", "auto")
        all_clients = ("--model.participation", "1") if "dp-ftrl" in recipes else ()
        short_key = ("--defenses.paillier.key_length", "1024") if "paillier" in recipes[-1] else ()
        parser, root = run_parser(), tmp_path_factory.mktemp("run")
        config = parser.parse_args(expand(command(root, "a", *layers, *fewer, *short_key, *all_clients, rounds=rounds)))
        return run_of(parser, config, "fit" if recipes in DEFENDED else "finished").fit()

    return run


def composed():
    """All defenses under all methods; those within a client under two methods, and each under another third one."""
    for number, defense in enumerate(DEFENSES):
        others = METHODS[2:]
        others = [others[number % len(others)]] if defense in LOCAL else others
        yield from ((defense, method) for method in (*METHODS[:2], *others))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("defense", "method"), composed())
def test_defense_over_method(finished, defense, method):
    """Recipes add up; the run ends with a model that can be evaluated, and has its defense and no other.

    Distributed noise brings the channel that it needs.
    """
    run = finished(method, defense)
    report = run.federation.report
    assert report.round == run.trainer.max_epochs
    assert 0 <= report.server.accuracy <= 1
    assert not any(client.dropped for client in report.clients)
    assert len(run.config["defenses"]) == (2 if defense == "distributed-dp" else 1)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("method", "defense"), DEFENDED)
def test_folder_of_a_defended_run(finished, method, defense):
    """It tells how the model does, and what is hidden from the server."""
    run = finished(method, defense)
    final = json.loads((run.folder.path / "summary.json").read_text())["final"]
    assert 0 <= final["server/accuracy"] <= 1
    assert final["clients/dropped"] == 0
    privacy = run.folder.path / "privacy.json"
    channels = json.loads(privacy.read_text())["channels"] if privacy.exists() else []
    assert bool(channels) == (defense in CHANNELS)


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
def test_defense_under_a_channel(finished, defense, channel):
    """Updates are defended first and hidden then; the server ends up with the same model, but for rounding."""
    hidden, plain = (finished("heterofl", *rest).federation for rest in ((defense, channel), (defense,)))
    torch.testing.assert_close(hidden.theta, plain.theta, atol=1e-5, rtol=0)
    assert hidden.hooks.channel_statements()
