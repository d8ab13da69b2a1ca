"""Results of a user's own attacks and recorders are kept as they are, or refused where no file can hold them."""

import json
import math

import numpy as np
import pytest
import torch
from finding_kit import kept
from matplotlib.figure import Figure
from matplotlib.image import imread

from app.common.errors import UserError
from app.result import LONGEST, Measurement, fits_file
from app.results.run.folder import RunFolder
from app.results.run.results import conclude, summaries

NAMES = [(label, name) for label in ("again", "drift") for name in ("mean", "clients")]
UNFIT = ["../drift", "a/b", "a\\b", "a:b", "", "a\nb", ".hidden", "a*", "<b>", "x" * (LONGEST + 1)]


def drift(label="drift", **others):
    """A result with numbers, a table, and a remark."""
    rows = ((0, "wide", 1.5), (1, None, 0.25))
    return Measurement(
        label, {"mean": 0.875, "clients": 2}, ("client", "width", "norm"), rows, ("two rounds",), **others
    )


@pytest.mark.usefixtures("pixels")
def test_everything_comes_back(tmp_path):
    """Numbers, table and remarks as they were; the figure is a file, which the result need not hold again."""
    figure = Figure()
    figure.subplots().plot([0, 1], [1, 0])
    found = drift(figure=figure)
    found.save(tmp_path)
    conclude(RunFolder(tmp_path), [found])
    [loaded] = Measurement.load_all(tmp_path)
    assert kept(loaded) == kept(found)
    assert loaded.numbers == {"mean": 0.875, "clients": 2.0}
    assert loaded.figure is None
    assert imread(tmp_path / "results" / "drift.png").ndim == 3
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["drift.json", "drift.png"]


def test_the_summary_holds_all_numbers(tmp_path):
    """By label and name, those of earlier results included; the table and the text say the same."""
    (tmp_path / "summary.json").write_text("{}")
    for found in (drift(), drift("again")):
        found.save(tmp_path)
        conclude(RunFolder(tmp_path), [found])
    numbers = {f"results/{label}/{name}": {"mean": 0.875, "clients": 2.0}[name] for label, name in NAMES}
    assert summaries(RunFolder(tmp_path)) == {"results": numbers}
    assert json.loads((tmp_path / "summary.json").read_text()) == {"results": numbers}
    both = Measurement.load_all(tmp_path)
    assert Measurement.table(both).rows == [[label, name, numbers[f"results/{label}/{name}"]] for label, name in NAMES]
    assert Measurement.text(both).splitlines() == [
        f"{label}: mean 0.875, clients 2; two rounds" for label in ("again", "drift")
    ]


def test_numbers_of_other_libraries(tmp_path):
    """Scalars and arrays of NumPy and PyTorch are kept as plain numbers; what is not finite has no value."""
    values = {"a": np.float32(0.5), "b": torch.tensor(2.0), "c": np.int64(3), "d": math.nan, "e": np.float32("inf")}
    Measurement("x", values, ("n", "m"), np.array([[1, 2], [3, 4]])).save(tmp_path)
    text = (tmp_path / "results" / "x.json").read_text()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert plain["values"] == {"a": 0.5, "b": 2.0, "c": 3, "d": None, "e": None}
    [loaded] = Measurement.load_all(tmp_path)
    assert loaded.numbers == {"a": 0.5, "b": 2.0, "c": 3.0}
    assert loaded.rows == ((1, 2), (3, 4))


def test_a_later_result_takes_the_place_of_the_earlier(tmp_path):
    """With its figure, which would show something else."""
    found = drift(figure=Figure())
    found.save(tmp_path)
    conclude(RunFolder(tmp_path), [found])
    Measurement("drift", {"mean": 0.5}).save(tmp_path)
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["drift.json"]
    assert Measurement.load_all(tmp_path)[0].numbers == {"mean": 0.5}


@pytest.mark.parametrize("label", UNFIT)
def test_labels_that_are_no_file_names_are_refused(tmp_path, label):
    """Nothing is written, inside or outside the folder, and the message says what to do."""
    assert not fits_file(label)
    with pytest.raises(UserError, match="called") as told:
        drift(label).save(tmp_path / "run")
    assert "short names" in told.value.problems[0].remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"{}", b'{"label": "x", "values": {"a": "b"}}', b"\xff\xfe"]
)
def test_broken_files_are_named(tmp_path, content):
    """A file that is no result is told as a mistake, with its path."""
    drift().save(tmp_path)
    (tmp_path / "results" / "other.json").write_bytes(content)
    with pytest.raises(UserError, match=r"other\.json cannot be read"):
        Measurement.load_all(tmp_path)


def test_what_a_younger_version_added_may_be_absent(tmp_path):
    """A label is enough."""
    drift().save(tmp_path)
    (tmp_path / "results" / "old.json").write_text('{"label": "old", "unknown": 3}')
    assert [one.label for one in Measurement.load_all(tmp_path)] == ["drift", "old"]
    assert Measurement.load_all(tmp_path)[1].numbers == {}


def test_texts_are_texts_whatever_a_file_holds(tmp_path):
    """Reports sort labels and collect remarks, which nothing but texts must be."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "odd.json").write_text('{"label": 3, "columns": [0], "notes": [[1], "a"]}')
    [odd] = Measurement.load_all(tmp_path)
    assert (odd.label, odd.columns, odd.notes) == ("3", ("0",), ("[1]", "a"))
