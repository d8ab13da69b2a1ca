"""What `rampart fit` makes of its arguments: order of defenses, help, and mistakes."""

import json
import re

import pytest
from run_kit import Scale, Shift, command, exit_code, train

from app.common.errors import UserError
from app.configuration import expand, run_parser
from app.run import fit, run_of

BOTH = ("--defenses.scale", "run_kit.Scale", "--defenses.shift", "run_kit.Shift")
NOWHERE = "no-such-folder"


def callbacks_of(arguments, mode="fit"):
    """Callbacks of the trainer that a command line gives."""
    parser = run_parser()
    return run_of(parser, parser.parse_args(expand(arguments)), mode).trainer.callbacks


def test_defenses_act_in_the_order_of_the_layers(tmp_path):
    """The trainer has them in the order given, before the recorders."""
    callbacks = callbacks_of(command(tmp_path, "a", *BOTH))
    assert [type(callback) for callback in callbacks[:2]] == [Scale, Shift]


def test_defense_order_reorders(tmp_path):
    """--defense_order puts the last first."""
    callbacks = callbacks_of(command(tmp_path, "a", *BOTH, "--defense_order", "[shift, scale]"))
    assert [type(callback) for callback in callbacks[:2]] == [Shift, Scale]


@pytest.mark.parametrize("order", [["scale"], ["scale", "shift", "shift"], ["scale", "shfit"], []])
def test_defense_order_must_name_every_defense_once(order, tmp_path):
    """A missing, doubled or unknown name is refused."""
    with pytest.raises(UserError, match="name every defense once"):
        callbacks_of(command(tmp_path, "a", *BOTH, "--defense_order", json.dumps(order)), "dry")


def test_help_explains_the_options(capsys):
    """fit --help tells the options of all parts with their meaning."""
    assert exit_code("fit", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for option, meaning in {
        "--model.local.epochs": "passes over the client's training set per round",
        "--model.participation": "fraction of the clients that take part in a round",
        "--model.personal": "patterns of parameters that stay on the client",
        "--data.help": "Show the help for the given subclass of FederatedDataModule",
        "--run.name": "an unfinished run of that name is resumed",
        "--run.overwrite": "the files it wrote are deleted",
        "--transcript.last": "keep the last so many rounds",
        "--defenses": "Defenses by name, in the order in which they act on updates",
        "--tracking": "Weights & Biases",
    }.items():
        at = text.find(f"{option} ")
        assert at >= 0, option
        assert meaning in text[at : at + 700], option


@pytest.mark.parametrize(
    ("option", "name", "meaning"),
    [
        ("--data.help", "Digits", "--data.test_fraction"),
        ("--defenses.help", "run_kit.Scale", "factor"),
        ("--model.net.help", "MLP", "--model.net.hidden"),
    ],
)
def test_help_of_a_class(option, name, meaning, capsys):
    """Options of one dataset, defense or network."""
    assert exit_code("fit", option, name) == 0
    assert meaning in capsys.readouterr().out


MISTAKES = {
    "unknown option": (["--model.local.epoch", "3"], "--model.local.epoch 3", "did you mean --model.local.epochs"),
    "abbreviated option": (["--conf", "demo"], "--conf demo", "did you mean --config"),
    "wrong type": (["--model.local.epochs", "many"], "--model.local.epochs is many", "--model.local.epochs"),
    "unknown dataset": (["--data", "MINST"], "MINST", "did you mean MNIST"),
    "unknown network": (["--model.net", "MPL"], "MPL", "did you mean MLP"),
    "recipe for a class": (["--model.method", "GFM"], "GFM", "write --config GFM"),
    "unknown recipe": (["--config", "fedavgn"], "fedavgn", "did you mean fedavg or fedavgm"),
    "class not named": (["--data.partition.clients", "3"], "partition", "name the class before its options"),
    "option of a defense": (["--defenses.a", "run_kit.Scale", "--defenses.a.fctor", "2"], "fctor", "--help"),
    "missing images": (["--data", "ImageFolder", "--data.root", NOWHERE], f"no folder {NOWHERE}", "--data.root"),
    "missing dataset": (["--data", "MNIST", "--data.root", NOWHERE], f"no MNIST in {NOWHERE}", "--data.download"),
    "too many classes": (
        ["--data.partition", "Shards", "--data.partition.classes_per_client", "11"],
        "11 different classes",
        "set --data.partition.classes_per_client to 10 or less",
    ),
    "absent accelerator": (
        ["--trainer.accelerator", "tpu"],
        "the trainer refuses",
        "options that begin with --trainer",
    ),
    "wrong strategy": (["--trainer.strategy", "dpp"], "dpp", "options that begin with --trainer"),
    "defense order": (["--defense_order", "[x]"], "defense_order names x", "name every defense once"),
    "stray word": (["demo"], "unrecognized arguments: demo", "rampart fit --help"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_with_cause_and_remedy(mistake, tmp_path, capsys):
    """Exit code 2; what is wrong and what to do instead; no traceback."""
    arguments, cause, remedy = MISTAKES[mistake]
    assert exit_code("fit", "--tracking", "disabled", "--run.root", str(tmp_path), *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert cause in said
    assert remedy in said[said.index("remedy:") :]
    assert "Traceback" not in said


def test_mistake_in_python_is_an_error_with_the_same_text(tmp_path, capsys):
    """It can be caught; nothing is printed and nothing is made."""
    with pytest.raises(UserError) as refusal:
        fit("heterofl", **{"model.local.epoch": 3, "run.root": str(tmp_path)})
    assert "did you mean --model.local.epochs" in str(refusal.value)
    assert capsys.readouterr() == ("", "")
    assert exit_code("fit", "--config", "heterofl", "--model.local.epoch=3", f"--run.root={tmp_path}") == 2
    assert capsys.readouterr().err == "".join(f"error: {problem}\n" for problem in refusal.value.problems)
    assert not list(tmp_path.iterdir())


def test_all_wrong_settings_are_named_at_once(tmp_path, capsys):
    """Three mistakes in one run are three messages."""
    wrong = ("--model.capacities", "[1.0, 2.0]", "--model.participation", "0", "--model.local.epochs", "0")
    assert exit_code("fit", *command(tmp_path, "a", *wrong)) == 2
    said = capsys.readouterr().err
    for option in ("--model.capacities", "--model.participation", "--model.local.epochs"):
        assert re.search(rf"remedy: .*{option}", said), option
    assert len(re.findall("^error: ", said, flags=re.MULTILINE)) >= 3


@pytest.mark.parametrize("arguments", [["fti"], [], ["--fit"]])
def test_unknown_command(arguments, capsys):
    """The commands there are, exit code 2."""
    assert exit_code(*arguments) == 2
    assert "COMMAND" in capsys.readouterr().err


def test_help_lists_the_commands(capsys):
    """rampart --help."""
    assert exit_code("--help") == 0
    assert {"fit", "list"} <= set(re.findall(r"^  (\w+)", capsys.readouterr().out, flags=re.MULTILINE))


@pytest.mark.usefixtures("no_figures")
def test_bar_and_checkpoints_can_be_switched_off(tmp_path, capsys):
    """Lightning's own switches work."""
    off = ("--trainer.enable_progress_bar", "false", "--trainer.enable_checkpointing", "false")
    folder = train(tmp_path, "a", *off, rounds=1)
    assert "round 1/1" not in capsys.readouterr().out
    assert not (folder / "checkpoints").exists()
