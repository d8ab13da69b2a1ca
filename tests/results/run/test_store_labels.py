"""Runs that belong to no comparison are labelled by the names of the recipes they were made with."""

import pytest
from run_kit import parsed

from app.federation.submodels.integration import NAMES, PRESETS
from app.results.run.labels import RunLabels, labels_of

CODES = {code: name for name, code in NAMES.items()}


@pytest.mark.parametrize(
    "recipe",
    [
        *("fedavg", "fedavgm", "fedadam", "fedprox", "qffl", "scaffold", "centralised"),
        *("local", "local-head", "fedbn", "ditto"),
        *("heterofl", "mapp-fl", "mapp-fl-r", "fdropout", "ofr", "osm", "osr", "gsr", "ufr"),
        *("fdropout-independent", "mapp-fl-r-independent", "fedrolex", "fjord", "fjord-distilled", "waffle"),
    ],
)
def test_shipped_methods_go_by_the_names_of_their_recipes(recipe):
    """The complete configuration of a run leads back to the recipe."""
    assert labels_of(parsed("--config", recipe)) == RunLabels("digits", recipe, "none", 0)


def test_other_recipes_of_the_same_method_share_its_name():
    """Networks do not make another method, the literal WAFFLe does; several parts are joined."""
    assert labels_of(parsed("--config", "waffle-lenet")).method == "waffle"
    assert labels_of(parsed("--config", "waffle", "--config", "waffle-literal")).method == "waffle-literal"
    assert labels_of(parsed("--config", "heterofl-levels")).method == "heterofl"
    assert labels_of(parsed("--config", "mapp-fl", "--config", "fedprox", "--config", "fedavgm")).method == (
        "mapp-fl+fedprox+fedavgm"
    )


def test_capacities_that_narrow_nobody_make_no_heterofl():
    """Plain FedAvg also where a recipe below had rates that were taken back."""
    assert labels_of(parsed("--config", "overfitted")).method == "heterofl"
    assert labels_of(parsed("--config", "overfitted", "--model.capacities.rates", "null")).method == "fedavg"
    assert labels_of(parsed("--model.capacities", "[1.0, 1.0]")).method == "fedavg"
    assert labels_of(parsed("--model.capacities.large", "2")).method == "heterofl"


def test_datasets_tell_their_partition_and_defenses_their_stack():
    """A partition that was asked for is part of the dataset; defenses stand in their order."""
    told = labels_of(
        parsed(
            *("--config", "l2", "--config", "memdefense", "--seed_everything", "7"),
            *("--data.partition", "DirichletLabels"),
        )
    )
    assert told == RunLabels("digits-dirichlet-labels", "fedavg", "l2+memdefense", 7)


@pytest.mark.parametrize(("code", "axes"), PRESETS.items())
def test_all_nine_integration_methods_have_a_name(code, axes):
    """By name where there is one, else by code."""
    init = dict(zip(("grouping", "dynamics", "policy"), axes, strict=True))
    model = {"method": {"class_path": "app.federation.submodels.ChannelSubset", "init_args": init}, "capacities": {}}
    found = labels_of({"data": {"class_path": "datamodules.MNIST"}, "model": model})
    assert found == RunLabels("mnist", CODES.get(code, code.lower()), "none", 0)


@pytest.mark.parametrize("config", [{}, {"data": {}}, {"data": 3, "model": 4}])
def test_configurations_that_tell_nothing_are_refused(config):
    """Labels are never guessed from nothing."""
    with pytest.raises((KeyError, AttributeError)):
        labels_of(config)
