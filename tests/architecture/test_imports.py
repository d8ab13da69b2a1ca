"""Who may import whom: data flow in one direction, heavy libraries behind one door each."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[2]
OURS = ("app", "callbacks", "datamodules")
BOTTOM = {"app.common"}
PURE = {"datamodules", "app.models", "app.metrics", "app.crypto", "app.privacy", "app.result"} | BOTTOM
LIBRARY = {"callbacks", "app.attacks", "app.federation", "app.results"} | PURE

MAY_IMPORT = {
    **dict.fromkeys(BOTTOM, BOTTOM),
    **dict.fromkeys(PURE - BOTTOM, PURE),
    "app.result": {"app.metrics", *BOTTOM},
    "app.federation": {
        "app.federation",
        "app.models",
        "app.metrics",
        "app.privacy",
        "app.crypto",
        "app.result",
        "datamodules",
        *BOTTOM,
    },
    "app.attacks": {"app.attacks", "app.federation", *PURE},
    # a shadow federation is a run of its own
    "callbacks": {"callbacks", "app.attacks", "app.federation", "app.results", "app.run", *PURE},
    "app.results": {"app.results", "app.attacks", "app.federation", *PURE},
    "app.recipes": {"app.federation", *BOTTOM},
    "app.catalogue": {"app.recipes", *LIBRARY},
    "app.config_checks": {"app.recipes", *LIBRARY},
    "app.option_errors": BOTTOM,
    "app.configuration": {"app.catalogue", "app.config_checks", "app.option_errors", "app.recipes", *LIBRARY},
    "app.run": {"app.configuration", "app.recipes", *LIBRARY},
    "app.experiments": {"app.experiments", "app.configuration", "app.recipes", "app.federation", "app.results"}
    | BOTTOM,
}
"""Parts that are bound; what is not named here (`app.cli`, `app.commands` ...) may import everything."""

EVERYWHERE_REFUSED = ("scripts", "tests", "app.cli", "app.commands")
FRONT = ("app.__main__", "app.cli", "app.commands")

HEAVY = {
    "wandb": {"app.results.run.tracking"},
    "opacus": {"app.privacy.accounting", "app.privacy.private_steps"},
    "dp_accounting": {"app.privacy.pld"},
    "phe": None,
    "ray": None,
    "optuna": {"app.experiments.tuning.study"},
}
"""Third parties that few modules wrap; None where that is one of any name."""


def modules():
    """The file of every module of ours by dotted name."""
    found = {}
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(name):
    """The syntax tree of a module."""
    return ast.parse(MODULES[name].read_text(), filename=str(MODULES[name]))


@cache
def imports(name):
    """Dotted names that a module imports, wherever in the module."""
    found = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} uses a relative import"
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def inside(name, parts):
    """Whether a dotted name lies in one of the parts."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_part_imports_only_what_it_may(part):
    """Nothing reaches upwards."""
    wrong = [
        f"{name} imports {target}"
        for name in MODULES
        if inside(name, [part])
        for target in imports(name)
        if inside(target, OURS) and target != "app" and not inside(target, MAY_IMPORT[part])  # its folder alone
    ]
    assert not wrong


def test_nobody_imports_the_front_or_the_tests():
    """Commands, scripts and tests are at the end of every chain."""
    wrong = [
        f"{name} imports {target}"
        for name in MODULES
        if not inside(name, FRONT)
        for target in imports(name)
        if inside(target, EVERYWHERE_REFUSED)
    ]
    wrong += [f"{name} imports {t}" for name in MODULES for t in imports(name) if inside(t, ("scripts", "tests"))]
    assert not wrong


def test_only_comparisons_use_experiments():
    """Nothing that a single run needs; `app` exports `compare`, and commands show its plan."""
    users = {name for name in MODULES for target in imports(name) if inside(target, ["app.experiments"])}
    assert [name for name in users - {"app"} if not inside(name, ["app.experiments", "app.commands"])] == []


def test_callbacks_make_runs_late():
    """Only shadow federations are runs; a run imports callbacks, so the import is within a function."""
    users = {name for name in MODULES for target in imports(name) if inside(target, ["app.run"])}
    assert {name for name in users if inside(name, ["callbacks"])} == {"callbacks.attacks.shadow_federations"}
    top = [node for node in tree("callbacks.attacks.shadow_federations").body if isinstance(node, ast.ImportFrom)]
    assert "app.run" not in {node.module for node in top}


def test_attacks_read_transcripts_only():
    """An attack never sees the trainer, nor the defenses."""
    attacks = [name for name in MODULES if inside(name, ["app.attacks"])]
    refused = ("callbacks", "app.federation.module", "app.results", "app.commands")
    wrong = [
        f"{name} imports {target}"
        for name in attacks
        for target in imports(name)
        if inside(target, refused) or (target.startswith("lightning") and target.endswith(".Trainer"))
    ]
    assert not wrong


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_heavy_library_has_one_door(library):
    """Only the module that wraps it imports it."""
    users = {name for name in MODULES for target in imports(name) if inside(target, [library])}
    users -= {name for name in users if inside(name, ["app.benchmarks"])}
    assert users <= HEAVY[library] if HEAVY[library] is not None else len(users) <= 1, users


def test_starting_the_program_is_cheap():
    """Until a command is chosen, nothing is loaded but the standard library, the errors, and the parser above it."""
    top = [node for node in tree("app.cli").body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top}
    ours = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert ours == {"app.common.errors", "app.commands.parser", "app.common.leaving", "app.common.signals"}
    light = {"app.common.errors.UserError", "app.common.wording.near"}
    assert {name for name in imports("app.commands.parser") if inside(name, OURS)} <= light


def test_every_package_is_installed():
    """The patterns of pyproject.toml find every folder with an __init__.py, and nothing else, such as the tests."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in OURS
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert sorted(find_packages(str(ROOT), **setup["packages"]["find"])) == sorted(packages)


def test_every_data_file_is_installed():
    """Recipes, comparisons, the report's style and script, and the marks of typed packages are package data."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for package, patterns in data.items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    files = {path for package in OURS for path in (ROOT / package).rglob("*") if path.is_file()}
    not_needed = {path for path in files if path.suffix in (".py", ".pyc", ".pyo") or path.name == "README.md"}
    assert files - not_needed == installed
    assert {path.parent.name for path in installed if path.name == "py.typed"} == set(OURS)


def test_every_folder_of_modules_is_a_package():
    """A folder without an __init__.py would be left out of the installation."""
    bare = [
        str(path.parent.relative_to(ROOT))
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert not bare
