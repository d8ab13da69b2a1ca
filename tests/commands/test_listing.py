"""`rampart list` shows everything there is to choose from."""

import re

import pytest
from run_kit import exit_code

import app.models
import datamodules
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.auditing import OTHERS
from app.catalogue import CATALOGUE
from app.federation.aggregation import ServerOptimizer
from app.models import ScalableNet
from app.recipes import shipped_recipes
from datamodules import FederatedDataModule, Partition


def listed(capsys, *what):
    """Names by section, with their descriptions."""
    assert exit_code("list", *what) == 0
    sections, current = {}, {}
    for line in capsys.readouterr().out.splitlines():
        if match := re.match(r"(\w+)  \((--.*)\)$", line):
            current = sections.setdefault(match.group(1), {})
        elif match := re.match(r"  (\S+)\s*(.*)$", line):
            current[match.group(1)] = match.group(2)
    return sections


def public(package, base):
    """Concrete classes that a package offers."""
    kinds = [getattr(package, name) for name in package.__all__]
    return {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, base)} - {base.__name__}


def test_every_section_and_every_choice(capsys):
    """Recipes, datasets, partitions and networks are complete, each with a line that says what it is."""
    sections = listed(capsys)
    assert list(sections) == list(CATALOGUE)
    assert set(sections["recipes"]) == {recipe.name for recipe in shipped_recipes()}
    assert set(sections["attacks"]) == {*ATTACKS, *ACTIVE, *PASSIVE, *OTHERS}
    assert set(sections["suites"]) == {recipe.name for recipe in shipped_recipes() if recipe.kind == "attack"}
    assert set(sections["methods"]) == {recipe.name for recipe in shipped_recipes() if recipe.kind == "method"}
    assert set(sections["datasets"]) == public(datamodules, FederatedDataModule)
    assert set(sections["partitions"]) == public(datamodules, Partition)
    assert set(sections["models"]) == public(app.models, ScalableNet)
    assert {"FedAvg", "FedAvgM", "FedAdam", "QFFL"} <= set(sections["servers"])
    assert ServerOptimizer.__name__ not in sections["servers"]
    assert "Prefix" in sections["submodels"]
    for entries in sections.values():
        assert all(line for name, line in entries.items() if name != "none")


def test_recorders_are_no_defenses(capsys):
    """What only watches cannot be chosen as a defense."""
    names = set(listed(capsys, "defenses")["defenses"])
    assert not names & {"RunRecorder", "TranscriptRecorder", "FederationProgress"}


def test_named_sections_in_the_order_asked_for(capsys):
    """Two sections."""
    assert list(listed(capsys, "models", "datasets")) == ["models", "datasets"]


@pytest.mark.parametrize("what", ["recipe", "Models"])
def test_unknown_section(what, capsys):
    """Exit code 2, with the sections there are."""
    assert exit_code("list", what) == 2
    assert f"unknown: {what}; choose from methods" in capsys.readouterr().err
