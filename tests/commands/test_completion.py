"""`rampart completion bash`, as bash uses it."""

import shutil
import subprocess

import pytest
from run_kit import exit_code

from app.cli import COMMANDS
from app.commands.completion import bash_script
from app.recipes import shipped_comparisons, shipped_recipes

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_rampart
printf '%s\\n' "${COMPREPLY[@]}"
complete -p rampart
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script in a file."""
    path = tmp_path_factory.mktemp("completion") / "rampart"
    path.write_text(bash_script())
    return path


def offered(script, *words):
    """What bash offers for the last word."""
    asked = ["bash", "--norc", "-c", ASK, "bash", str(script), "rampart", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *found, registered = done.stdout.splitlines()
    assert registered == "complete -o bashdefault -o default -F _rampart rampart"
    return [word for word in found if word]


def test_commands(script):
    """All of them, and those that begin with what is typed."""
    assert offered(script, "") == [*COMMANDS, "--help", "--version"]
    assert offered(script, "co") == ["compare", "cost", "completion"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fit", "--model.wo"), ["--model.workers"]),
        (("plan", "--plan."), ["--plan.folder", "--plan.rounds"]),
        (("cost", "--cost.r"), ["--cost.round"]),
        (("report", "--o"), ["--open", "--output"]),
        (("compare", "--gpus"), ["--gpus_per_run"]),
        (("compare", "--config", "demo", "--engine", ""), ["local", "ray"]),
        (("compare", "--engine", "=", "r"), ["ray"]),
        (("fit", "--model.method", "Fj"), ["FjORD"]),
        (("fit", "--defenses.mine", "MemD"), ["MemDefense"]),
        (("fit", "--defenses", "memd"), ["memdefense"]),
        (("fit", "--data", "=", "Dig"), ["Digits"]),
        (("attack", "runs/demo", "--attacks", "yeom,lira-of"), ["yeom,lira-offline"]),
        (("list", "mod"), ["models"]),
        (("completion", ""), ["bash"]),
        (("report", "runs/"), []),  # files
        (("fit", "--config", "mine.ya"), []),
    ],
)
def test_options_and_names(words, expected, script):
    """By command and by the option before; where nothing is offered, bash completes files."""
    assert offered(script, *words) == expected


def test_recipes_and_comparisons(script):
    """Single runs are of recipes, comparisons of files of their own."""
    assert set(offered(script, "fit", "--config", "")) == {recipe.name for recipe in shipped_recipes()}
    assert offered(script, "compare", "-c", "") == [one.name for one in shipped_comparisons()]


def test_the_command(capsys, script):
    """It prints the script; another shell is refused."""
    assert exit_code("completion", "bash") == 0
    assert capsys.readouterr().out == script.read_text()
    assert exit_code("completion", "tcsh") == 2
