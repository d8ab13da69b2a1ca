"""The program itself: its version, and `python -m app`."""

import subprocess
import sys
from importlib import metadata

import pytest
from run_kit import exit_code

import app
from app.cli import COMMANDS, DISTRIBUTION


def test_version(capsys, monkeypatch):
    """That of the installed distribution; from a checkout, that of the sources."""
    monkeypatch.setattr(metadata, "version", lambda name: {DISTRIBUTION: "1.2.3"}[name])
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == "rampart 1.2.3\n"

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"rampart {app.__version__}\n"


def test_module_is_the_program():
    """`python -m app` does what `rampart` does, without loading anything heavy for its help."""
    run = subprocess.run([sys.executable, "-m", "app", "--help"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("usage: rampart COMMAND [options]")
    assert all(f"\n  {name} " in run.stdout for name in COMMANDS)


HELP = """
import contextlib, sys
from app.cli import main
for arguments in [["list"], ["report"], *([name, "--help"] for name in sys.argv[1:])]:
    with contextlib.suppress(SystemExit):
        main(arguments)
print([name for name in ("torch", "lightning", "scipy", "matplotlib", "sklearn", "wandb") if name in sys.modules])
"""


def test_nothing_heavy_is_loaded_to_answer_at_once():
    """The list, a mistake in the options, and the help of every command whose options do not follow from classes."""
    light = [name for name, command in COMMANDS.items() if command.parser]
    assert {"report", "compare", "export", "validate", "predict", "list"} <= set(light)
    done = subprocess.run([sys.executable, "-c", HELP, *light], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"\nusage: rampart {name} " in f"\n{done.stdout}" for name in light)
    assert "the following arguments are required: FOLDER" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name):
    """The module and the function exist."""
    assert callable(COMMANDS[name].load())
