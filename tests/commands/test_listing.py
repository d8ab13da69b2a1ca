"""`rampart list` shows everything there is to choose from."""

import importlib
import inspect
import pkgutil
import re

import pytest
from run_kit import exit_code

import app.federation
import app.models
import callbacks
import datamodules
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.auditing import OTHERS
from app.catalogue import CATALOGUE, callbacks_of, names
from app.federation.aggregation import ServerOptimizer
from app.federation.submodels import SubmodelMethod
from app.federation.submodels.integration import NAMES
from app.models import ScalableNet
from app.recipes import CODES, published_coverage, shipped_comparisons, shipped_recipes
from datamodules import FederatedDataModule, Partition


def listed(capsys, *what):
    """Names by section, with their descriptions."""
    assert exit_code("list", *what) == 0
    sections, current = {}, {}
    for line in capsys.readouterr().out.splitlines():
        if match := re.match(r"(\w+)  \((--.*)\)$", line):
            current = sections.setdefault(match.group(1), {})
        elif re.match(r"\S", line):
            current = {}  # a part that is no section
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


def subclasses(kind):
    """A class and all that derive from it."""
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def first_line(kind):
    """The first line of a class's documentation."""
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]


@pytest.mark.parametrize(
    ("section", "base", "package"),
    [
        ("submodels", SubmodelMethod, app.federation),
        ("servers", ServerOptimizer, app.federation),
        ("datasets", FederatedDataModule, datamodules),
        ("partitions", Partition, datamodules),
        ("models", ScalableNet, app.models),
    ],
)
def test_sources_say_what_importing_says(section, base, package):
    """The same classes with the same lines, although nothing is imported for the list."""
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    kinds = [kind for kind in subclasses(base) if kind.__module__.startswith(package.__name__)]
    found = [kind for kind in kinds if not inspect.isabstract(kind) and not kind.__name__.startswith("_")]
    expected = sorted((kind.__name__, first_line(kind)) for kind in found if kind is not ServerOptimizer)
    assert CATALOGUE[section][1]() == expected


def test_sources_say_what_callbacks_and_attacks_are():
    """By the attributes of the imported classes."""
    for kind in ("defense", "attack", "recorder"):
        classes = [getattr(callbacks, name) for name in sorted(callbacks.__all__)]
        assert callbacks_of(kind) == [(one.__name__, first_line(one)) for one in classes if one.kind == kind]
    attacks = {**ATTACKS, **ACTIVE, **PASSIVE, "factor-recovery": callbacks.FactorRecovery}
    attacks["source-inference"] = callbacks.SourceInference
    assert CATALOGUE["attacks"][1]() == [(name, first_line(one)) for name, one in attacks.items()]
    assert {"MemDefense", "yeom", "heterofl", "demo"} <= set(names())


def test_codes_of_methods():
    """Recipes go by the names of the methods."""
    assert {code.lower(): name for name, code in NAMES.items()} == CODES


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
    assert f"invalid choice: '{what}' (choose from methods" in capsys.readouterr().err


NUMBERED = {
    "MaPP-FL": (["1", "2", "3", "4", "5", "6"], 5),
    "taxonomy": (["1", "2", "3", "4", "5", "6", "7", "8", "9"], 5),
    "WAFFLe": (["1", "2", "3", "4", "5", "6", "7"], 7),
    "Breaking Privacy": (["1", "2"], 14),
    "MemDefense": (["I", "II", "III", "IV", "V", "VI"], 4),
}
"""Numbers of the tables, and how many figures, in each of the papers."""


def test_every_table_and_figure_of_the_papers(capsys):
    """Each stands in the list of comparisons, with what shows it, or why nothing does."""
    assert exit_code("list", "comparisons") == 0
    lines = capsys.readouterr().out.split("tables and figures of the five papers\n")[1].splitlines()[2:]
    shown = {tuple(re.split(r"  +", line.strip())[:2]) for line in lines if line}
    tables = {(paper, f"Table {number}") for paper, (numbers, _) in NUMBERED.items() for number in numbers}
    figures = {(paper, f"Figure {one + 1}") for paper, (_, count) in NUMBERED.items() for one in range(count)}
    assert shown == tables | figures


def test_what_shows_a_table_exists():
    """It is a comparison, a recipe or a command; each comparison of a paper shows something; gaps have a reason."""
    known = {one.name for one in (*shipped_comparisons(), *shipped_recipes())}
    named = {name for one in published_coverage() for name in one.by.split(", ") if name}
    assert {name for name in named if not name.startswith("rampart ")} <= known
    of_no_paper = {"defenses-fashionmnist", "demo", "newcomers"}
    assert {one.name for one in shipped_comparisons()} - named == of_no_paper
    assert all(one.by or one.left_out.startswith("no results") for one in published_coverage())
