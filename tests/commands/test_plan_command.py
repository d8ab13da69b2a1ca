"""`rampart plan`: the table, the files, and that nothing is trained."""

import csv
import json
import re
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from run_kit import TINY, exit_code

from app.configuration import expand, run_parser
from app.federation.module import FederatedModule
from app.federation.plan_audit.audit import LayerAudit
from app.results.run.plan_report import COLUMNS
from app.run import run_of

SMALL_CNN = (
    *("--model.net", "CNN", "--model.net.u", "4", "--data.partition", "Iid", "--data.partition.clients", "6"),
    *("--tracking", "offline", "--trainer.accelerator", "cpu"),
)
FIELDS = ("name", "cells", "rounds", "contributors", "differences", "covered", "alone", "exposed")


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Whoever trains, evaluates or claims a run folder fails the test."""

    def refuse(*_, **__):
        raise AssertionError("nothing may be trained")

    for name in ("training_step", "validation_step", "on_train_epoch_start", "configure_optimizers"):
        monkeypatch.setattr(FederatedModule, name, refuse)
    monkeypatch.setattr("lightning.pytorch.Trainer.fit", refuse)
    monkeypatch.setattr("app.results.run.folder.RunFolder.claim", refuse)


@pytest.fixture
def few_figures(monkeypatch):
    """Drawing takes most of the time."""

    monkeypatch.setattr("app.commands.plan.draw_layer", lambda *_: Figure(figsize=(0.1, 0.1)))
    monkeypatch.setattr("app.commands.plan.draw_overview", lambda *_: Figure(figsize=(0.1, 0.1)))


def planned(root, capsys, *options):
    """What the command prints, and plan.json."""
    assert exit_code("plan", "--run.root", str(root), *options) == 0
    return capsys.readouterr().out, json.loads((root / "plan" / "plan.json").read_text())


def layer_of(record):
    """The audit of a layer as plan.json has it."""
    plain = {name: tuple(v) if isinstance(v := record[name], list) else v for name in FIELDS}
    return LayerAudit(coordinates=plain.pop("cells"), **plain)


def rows_of(text):
    """Cells of the printed table by the name in the first column."""
    lines = text.splitlines()
    start, end = (number for number, line in enumerate(lines) if set(line) == {"-"})
    table = [re.split(r"\s{2,}", line) for line in lines[start - 1 : end + 2] if set(line) != {"-"}]
    return table[0], {row[0]: row[1:] for row in table[1:]}


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize(("recipe", "code"), [("heterofl", "OFM"), ("mapp-fl", "GFM")])
def test_table_and_files_agree(recipe, code, tmp_path, capsys):
    """One row per layer and the total in the terminal, in plan.csv and in plan.json; a picture per weight layer."""
    said, record = planned(tmp_path, capsys, "--config", recipe, *SMALL_CNN, "--plan.rounds", "3")
    start = f"{code} ({recipe}): 6 clients (2 of width 1, 4 of width 0.5), 3 rounds with 6 clients each\n"
    assert said.startswith(start)
    header, rows = rows_of(said)
    assert header == ["layer", *(column.head for column in COLUMNS)]
    layers = [layer_of(plain) for plain in (*record["layers"], record["total"])]
    assert list(rows) == [layer.name for layer in layers]
    with (tmp_path / "plan" / "plan.csv").open(newline="") as file:
        table = {row["name"]: row for row in csv.DictReader(file)}
    for layer, plain in zip(layers, (*record["layers"], record["total"]), strict=True):
        assert rows[layer.name] == [column.text(layer) for column in COLUMNS]
        for column in COLUMNS:
            assert plain[column.key] == column.value(layer)
            assert table[layer.name][column.key] == ("" if plain[column.key] is None else str(plain[column.key]))
        assert table[layer.name]["alone"] == " ".join(map(str, layer.alone))
    weights = ["blocks.0.conv", "blocks.1.conv", "blocks.2.conv", "blocks.3.conv", "classifier"]
    files = {"plan.json", "plan.csv", "overview.png", *(f"{name}.png" for name in weights)}
    assert {path.name for path in (tmp_path / "plan").iterdir()} == files
    assert set(record["pictures"]) == files - {"plan.json", "plan.csv"}


@pytest.mark.usefixtures("few_figures")
def test_columns_say_what_their_names_promise(tmp_path, capsys):
    """Rolling windows of half and a quarter of 8 rows (65 weights each), four clients in two rounds, by hand.

    Three windows of rows 0-3 and one of rows 0-1 move on: row 0 loses four clients, row 2 gains one, row 4 three.
    """
    options = ("--config", "fedrolex", "--model.capacities", "[0.5, 0.25, 0.5, 0.5]", "--plan.rounds", "2")
    said, _ = planned(tmp_path, capsys, *TINY, *options)
    header, rows = rows_of(said)
    assert dict(zip(header[1:], rows["layers.hidden1"], strict=True)) == {
        **{"weights": "520", "trained": "50.00%", "ever": "62.50%", "min": "0", "med": "1.5", "max": "4"},
        **{"nobody": "520", "one": "0", "changed": "195", "by one": "65", "least": "1"},
    }


@pytest.mark.usefixtures("pixels")
def test_figures_are_drawn(tmp_path, capsys):
    """Every picture that plan.json names."""
    _, record = planned(tmp_path, capsys, "--config", "mapp-fl", *TINY, "--plan.rounds", "2")
    assert record["pictures"] == ["overview.png", "layers.hidden1.png", "layers.classifier.png"]
    assert all((tmp_path / "plan" / name).read_bytes().startswith(b"\x89PNG") for name in record["pictures"])


@pytest.mark.usefixtures("few_figures")
def test_only_the_plan_folder_is_written(tmp_path, capsys, monkeypatch):
    """No run folder, no logger's folder, nothing in the working directory; a second plan replaces the first."""
    monkeypatch.chdir(tmp_path)
    options = ("--config", "heterofl", *SMALL_CNN, "--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logs")
    assert exit_code("plan", *options, "--plan.folder", "here", "--run.root", "all") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"here"}
    (tmp_path / "here" / "mine.png").write_bytes(b"")
    tiny = (*TINY, "--plan.folder", "here", "--plan.rounds", "2")
    assert exit_code("plan", *tiny) == 0
    names = {"plan.json", "plan.csv", "overview.png", "layers.hidden1.png", "layers.classifier.png", "mine.png"}
    assert {path.name for path in (tmp_path / "here").iterdir()} == names


@pytest.mark.usefixtures("few_figures")
def test_settings_are_kept(tmp_path, capsys):
    """Method, seeds, widths, capacities, participants; all rounds of the run where no number is given."""
    options = ("--seed_everything", "5", "--trainer.max_epochs", "4", "--model.participation", "0.5")
    said, record = planned(
        tmp_path, capsys, "--config", "fedrolex", *TINY, *options, "--model.capacities", "[1, 0.5, 0.25, 0.5]"
    )
    assert "4 rounds with 2 clients each" in said
    kept = {name: record[name] for name in ("method", "seed", "data_seed", "rounds", "participation")}
    expected = {"method": "FedRolex", "seed": 5, "data_seed": 5, "rounds": 4, "participation": 0.5}
    assert kept == expected
    assert record["capacities"] == [1, 0.5, 0.25, 0.5]
    assert record["widths"] == [1, 0.5, 0.25]
    assert [len(of_round) for of_round in record["participants"]] == [2] * 4
    assert any(before != after for before, after in pairwise(record["participants"]))


FINDINGS = {
    "one wide client": (
        ("--config", "heterofl", "--model.capacities.large", "1", "--model.capacities.widest", "first"),
        (
            "a single contributor: 900 of 1,830 (weight, round) pairs (49.18%)",
            "only client 0 ever trains weights alone",
        ),
    ),
    "equal clients": ((), ("a single contributor: none", "changes between rounds: none", "uncovered weights: none")),
    "small clients only": (
        ("--config", "heterofl", "--model.capacities.large", "0", "--model.uncovered_cells", "zero"),
        ("49.18% of the weights are trained by nobody", "49.18% in no round at all", "they become zero"),
    ),
    "few at a time": (
        ("--model.participation", "0.25"),
        ("(100.00%), in all layers", "secure aggregation would reveal their update"),
    ),
    "rolling": (
        ("--config", "fedrolex", "--model.capacities", "[1, 1, 0.5, 1]"),
        ("changes by a single client", "joins or leaves: client 2"),
    ),
    "no federation": (("--config", "local"), ("nothing is sent",)),
    "own head": (("--config", "local-head"), ("never sent: layers.classifier",)),
}


@pytest.mark.parametrize("case", FINDINGS)
@pytest.mark.usefixtures("few_figures")
def test_findings_in_words(case, tmp_path, capsys):
    """What follows from the numbers, for plans whose numbers are known."""
    options, sentences = FINDINGS[case]
    said, _ = planned(tmp_path, capsys, *TINY, *options, "--plan.rounds", "3")
    words = " ".join(said.split())
    for sentence in sentences:
        assert sentence in words


MISTAKES = {
    "no round": (["--plan.rounds", "0"], "--plan.rounds is 0", "set --plan.rounds in that range"),
    "unknown recipe": (["--config", "mapp-lf"], "no configuration 'mapp-lf'", "did you mean mapp-fl"),
    "unknown option": (["--plan.round", "3"], "--plan.round 3", "did you mean --plan.rounds"),
    "wrong type": (["--plan.rounds", "many"], "--plan.rounds is many", "set --plan.rounds in that range"),
    "capacities": (["--model.capacities", "[1, 0.5]"], "2 capacities for 4 clients", "--model.capacities"),
    "trainer": (["--trainer.max_epochs", "-5"], "the trainer refuses its settings", "`rampart fit --help`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_ends_with_cause_and_remedy(mistake, tmp_path, capsys):
    """Exit code 2, what is wrong and what to do instead; no file is left."""
    arguments, cause, remedy = MISTAKES[mistake]
    assert exit_code("plan", *TINY, "--run.root", str(tmp_path), *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert cause in said
    assert remedy in said[said.index("remedy:") :]
    assert not list(tmp_path.iterdir())


def test_folder_of_a_run_is_left_alone(tmp_path, capsys):
    """A run has a plan.json of its own."""
    (tmp_path / "config.yaml").write_text("")
    assert exit_code("plan", *TINY, "--plan.folder", str(tmp_path)) == 2
    assert "holds a run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_folder_that_cannot_be_made(tmp_path, capsys):
    """A file is in the way."""
    (tmp_path / "file").write_text("")
    assert exit_code("plan", *TINY, "--plan.folder", str(tmp_path / "file" / "plan"), "--plan.rounds", "1") == 2
    assert "choose another --plan.folder" in capsys.readouterr().err


def test_help_names_the_command_and_its_options(capsys):
    """plan --help and rampart --help."""
    assert exit_code("plan", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: rampart plan [--config" in text
    assert "--plan.rounds" in text
    assert "plan the first so many rounds, at least 1" in text
    assert exit_code("--help") == 0
    assert "plan show who trains which weights, before any training" in " ".join(capsys.readouterr().out.split())


def test_runs_on_any_device_can_be_planned_here(tmp_path):
    """The trainer of the plan is a bare one on the CPU, without the folder that a run would have."""
    elsewhere = ("--trainer.devices", "8", "--trainer.strategy", "ddp", "--trainer.logger", "CSVLogger")
    parser = run_parser("rampart plan")
    options = expand([*TINY, *elsewhere, "--trainer.logger.save_dir", str(tmp_path)])
    run = run_of(parser, parser.parse_args(options), "dry")
    assert run.trainer.world_size == 1
    assert not run.trainer.loggers
    assert (run.folder, run.tracker) == (None, None)
