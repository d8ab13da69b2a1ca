"""Folders from strangers: no link is followed, nothing outside is read or written, nothing small grows large."""

import csv
import io
import json
import zipfile
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from store_kit import attack, labels, make_run, rebuilt

from app import load_run, report
from app.common.array_files import read_arrays
from app.common.errors import UserError
from app.common.files import append_text, cell_text, csv_text, png_bytes, replace_all
from app.common.reading import OversizedError, load_yaml, read_json, read_text, read_yaml
from app.experiments.folder import ComparisonFolder
from app.experiments.locks import at_work
from app.federation.transcript import Transcript
from app.recipes import read_layer
from app.result import Measurement
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.comparison.data_formats import as_csv, as_csv_seeds
from app.results.run.figures import draw_accuracy
from app.results.run.folder import RunFolder
from app.results.run.results import conclude
from app.results.run.store import COMPARISON, read_store
from datamodules.table import PartitionTable

SECRET = "the user's own"


def compared(folder, place, name="one", **parts):
    """A comparison of one run, with its labels."""
    make_run(folder / name, place, **parts)
    cells = [{"run": name, **asdict(place)}]
    (folder / COMPARISON).write_text(json.dumps({"name": place.dataset, "cells": cells}))
    return folder


@pytest.fixture
def victim(tmp_path):
    """A file outside of the stranger's folder."""
    path = tmp_path / "victim" / "own.txt"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


@pytest.fixture
def run(tmp_path):
    """A finished run from a stranger."""
    return make_run(tmp_path / "runs" / "theirs")


# ---- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.html", "report.html.part", "report/table.csv", "report/table.csv.part"])
def test_a_report_overwrites_nothing_outside(name, run, victim):
    """Neither through the names of its files nor through those of temporary ones."""
    link = run / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(UserError):
        report(run)
    (run.parent / link.name).symlink_to(victim)
    link.unlink()
    with suppress(UserError):
        report(run.parent)
    assert victim.read_text() == SECRET


@pytest.mark.parametrize("name", ["report", "report.html"])
def test_a_report_is_written_to_no_folder_outside(name, run, victim):
    """A comparison's folder is the stranger's too: its page and the page's folder may be links."""
    (run.parent / name).symlink_to(victim.parent)
    if name == "report":
        with pytest.raises(UserError, match="is a link to"):
            report(run.parent)
    else:
        report(run.parent)
        assert not (run.parent / name).is_symlink()
    assert [path.name for path in victim.parent.iterdir()] == [victim.name]


def test_a_report_shows_nothing_from_outside(run, victim):
    """A table that is a link to a file of the user's makes the run one that is left out, with the reason."""
    make_run(run.with_name("honest"))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(victim)
    (run.parent / "elsewhere").symlink_to(run.with_name("honest"))
    store = read_store([run.parent])
    assert [one.name for one in store.runs] == ["honest"]
    reasons = {one.path.name: one.reason for one in store.skipped}
    assert "is a link to" in reasons["theirs"]
    assert "is a link" in reasons["elsewhere"]


@pytest.mark.parametrize("name", ["attacks", "checkpoints", "transcript", "wandb", "clients.csv", "a/b"])
def test_no_run_is_opened_or_resumed_through_links(name, run, victim):
    """Attacks and further rounds would be written to where the link leads."""
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(victim.parent)
    with pytest.raises(UserError, match="is a link to"):
        load_run(run)
    config = yaml.safe_load((run / "config.yaml").read_text()) | dict.fromkeys(("trainer", "model", "data", "tracking"))
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match="is a link to"):
        RunFolder(run).claim(config, overwrite=True)
    RunFolder(run).release()
    assert victim.read_text() == SECRET


@pytest.mark.parametrize("name", [".lock", ".logs/a.log", ".logs/a.lock"])
def test_a_comparison_follows_no_links(name, tmp_path, victim):
    """The lock would be emptied, the log of a run be appended to."""
    folder = ComparisonFolder(tmp_path / "theirs")
    link = folder.path / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises((UserError, OSError)):
        folder.claim()
    if name == ".lock":
        with pytest.raises(OSError, match="symbolic"), at_work(folder.path):
            pass
    assert victim.read_text() == SECRET


def test_links_are_replaced_and_refused(tmp_path, victim):
    """Files that are written replace a link, files that are appended to or read refuse it."""
    link = tmp_path / "link"
    link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        append_text(link, "more")
    with pytest.raises(OSError, match="it is a link"):
        read_text(link)
    replace_all({link: b"new"})
    assert (link.read_text(), link.is_symlink(), victim.read_text()) == ("new", False, SECRET)


# ---- sizes -----------------------------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))


def test_aliases_do_not_multiply(tmp_path, run):
    """Forty lines that stand for 9^39 values are refused in no time, wherever a configuration is read."""
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    with pytest.raises(OversizedError):
        read_yaml(tmp_path / "bomb.yaml")
    with pytest.raises(UserError, match="aliases"):
        read_layer(tmp_path / "bomb.yaml")
    (run / "config.yaml").write_text(LAUGHS)
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        read_store([run])


@pytest.mark.parametrize("text", ["&a [*a]", "[" * 5000, "a: " + "x" * 2**22], ids=["itself", "deep", "large"])
def test_other_yaml_that_would_not_end(text, tmp_path):
    """A list that holds itself, a very deep one, and a very large file."""
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError):
        read_yaml(tmp_path / "bomb.yaml")


def test_a_few_aliases_are_fine():
    """As in a user's own recipe."""
    assert load_yaml("a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 3}") == {
        **{"a": {"b": [1, 2]}, "c": {"b": [1, 2]}},
        **{"d": {"b": [1, 2], "e": 3}},
    }


def zipped(path, name, content):
    """An npz file with one array of this content."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)


def header(shape):
    """The head of an array of bytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_arrays_do_not_grow(tmp_path):
    """80 MB of zeros in 80 kB, and an array of a terabyte of which nothing is there."""
    zipped(tmp_path / "released.npz", "theta", header((80_000_000,)) + bytes(80_000_000))
    assert (tmp_path / "released.npz").stat().st_size < 200_000
    with pytest.raises(ValueError, match="at most"):
        Transcript(tmp_path).external_view().released()
    zipped(tmp_path / "false.npz", "theta", header((10**12,)))
    with pytest.raises(ValueError, match="another size"):
        read_arrays(tmp_path / "false.npz")
    np.savez_compressed(tmp_path / "honest.npz", theta=np.zeros(1_000_000))
    assert read_arrays(tmp_path / "honest.npz", ["theta"])["theta"].shape == (1_000_000,)


def test_json_does_not_end_the_program(tmp_path):
    """Nested deeper than the interpreter can go."""
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="deep"):
        read_json(tmp_path / "deep.json")


# ---- texts that programs interpret -----------------------------------------------------------------------------------

FORMULAS = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]


def test_no_cell_is_a_formula():
    """Texts get an apostrophe, numbers stay numbers, and our own readers take the apostrophe off."""
    [cells] = csv.reader(io.StringIO(csv_text([[*FORMULAS, "-1.5", -2.5, "a=b", "'"]]), newline=""))
    assert cells == [*(f"'{text}" for text in FORMULAS), "-1.5", "-2.5", "a=b", "'"]
    assert [cell_text(cell) for cell in cells] == [*FORMULAS, "-1.5", "-2.5", "a=b", "'"]


def test_tables_of_runs_hold_no_formulas(tmp_path):
    """Names come from the stranger: of clients in a run's table, of methods and defenses in a report's."""
    folder = RunFolder(tmp_path)
    folder.append_rows("clients.csv", ["round", "=name"], [[1, "=1+1"], [2, -0.5]])
    assert (tmp_path / "clients.csv").read_bytes() == b"round,'=name\r\n1,'=1+1\r\n2,-0.5\r\n"
    made = report(compared(tmp_path / "runs", labels("=evil()", "+m", "@d")))
    for text in (as_csv(made.table), as_csv_seeds(made.table)):
        _, first, *_ = csv.reader(io.StringIO(text, newline=""))
        assert not [cell for cell in first if cell.startswith(("=", "+", "@"))]


DOLLARS = [r"a$\frac$b", "$x$", "cost in $ and $", r"\$"]


@pytest.mark.parametrize("name", DOLLARS)
def test_dollars_do_not_break_pictures_of_runs(name, tmp_path):
    """Names of runs and classes are drawn as they are, not as formulas."""
    run = load_run(make_run(tmp_path / name))
    draw_accuracy([{"round": 1, "server/accuracy": 0.5}], run.folder.path / "accuracy.png", name)
    conclude(run.folder, [ReconstructionRecord.of(rebuilt())])
    drawn = PartitionTable(np.ones((2, 2), dtype=int), (name, "b"), (name, "1"), ("x", name)).draw()
    png_bytes(drawn)


def test_dollars_do_not_break_reports(tmp_path):
    """Labels of datasets, methods and defenses are drawn as they are, not as formulas."""
    places = {name: labels("digits", name, DOLLARS[number - 1]) for number, name in enumerate(DOLLARS)}
    for name, place in places.items():
        make_run(tmp_path / name, place, attacks=(attack("yeom", "global"),))
    cells = [{"run": name, **asdict(place)} for name, place in places.items()]
    (tmp_path / COMPARISON).write_text(json.dumps({"name": DOLLARS[0], "cells": cells}))
    figures = [figure.read_text() for figure in report(tmp_path).path.with_suffix("").glob("*.svg")]
    for name in DOLLARS:
        assert any(name in figure for figure in figures)


def test_formulas_of_the_users_own_figures_stay(tmp_path):
    """What a recorder of the user's draws is the user's affair."""
    figure = Figure()
    title = figure.subplots().set_title(r"$\epsilon$")
    folder = make_run(tmp_path / "run")
    result = Measurement("mine", {"a": 1.0}, figure=figure)
    result.save(folder)
    conclude(RunFolder(folder), [result])
    assert title.get_parse_math()
    assert json.loads((folder / "results" / "mine.json").read_text())["label"] == "mine"
