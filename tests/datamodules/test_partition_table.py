import csv
import warnings

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from app.common.files import write_figure
from datamodules import Holdout, Multimodal
from datamodules.table import PartitionTable


def table(clients: int, classes: int) -> PartitionTable:
    counts = np.arange(clients * classes).reshape(clients, classes)
    names = tuple(f"class {label}" for label in range(classes))
    return PartitionTable(counts, names, tuple(map(str, range(clients))), ("all",) * clients)


@pytest.mark.usefixtures("pixels")
def test_files_written_by_a_data_module(toy, tmp_path):
    data = toy(Multimodal(2, 1, [0, 1]), Holdout(0, 0, 0))
    data.setup()
    data.write_table(tmp_path / "new" / "folder")
    with (tmp_path / "new" / "folder" / "partition.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client", "size", "cat", "dog", "emu", "fox", "group", "name"]
    assert [row["group"] for row in rows] == ["majority", "majority", "minority"]
    counts = [[int(row[name]) for name in data.class_names] for row in rows]
    assert counts == data.client_class_table().tolist()
    assert [int(row["size"]) for row in rows] == data.sizes == [12, 12, 12]
    with Image.open(tmp_path / "new" / "folder" / "partition.png") as picture:
        assert len(picture.convert("L").getcolors()) > 10


def test_counts_are_spelled_out_where_they_can_be_read():
    texts = [text.get_text() for text in table(3, 4).draw().axes[0].texts]
    assert texts == [str(count) for count in range(12)]


@pytest.mark.parametrize(("clients", "classes"), [(300, 10), (10, 100), (1, 1)])
def test_large_tables_have_no_text_and_a_bounded_size(clients, classes):
    figure = table(clients, classes).draw()
    assert len(figure.axes[0].texts) == (1 if clients * classes == 1 else 0)
    assert max(figure.get_size_inches()) <= 14


def test_axes_are_labelled():
    axes = table(3, 4).draw().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("class", "client")
    assert axes.get_title() == "3 clients, 66 training samples, 6 to 38 each"


def test_groups_are_named_beside_the_picture():
    plain = table(30, 2)
    grouped = PartitionTable(plain.counts, plain.classes, plain.clients, ("majority",) * 20 + ("minority",) * 10)
    assert [text.get_text() for text in grouped.draw().axes[0].texts] == ["majority", "minority"]


@pytest.mark.usefixtures("pixels")
def test_names_that_the_font_lacks_are_spelled_by_their_code(tmp_path):
    """A Chinese class and a client with an emoji: no warning, and no two names look alike."""
    drawn = PartitionTable(np.eye(2, dtype=int), ("猫", "dog é"), ("鳥", "b 🐟"), ("犬", "other")).draw()
    with warnings.catch_warnings(action="error"):
        write_figure(tmp_path / "partition.png", drawn)
    axes = drawn.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["U+732B", "dog é"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["U+9CE5", "b U+1F41F"]
    assert [text.get_text() for text in axes.texts][:2] == ["U+72AC", "other"]


def test_a_font_of_the_users_choice_is_asked_first(tmp_path):
    """STIXGeneral has the sign that DejaVu Sans lacks, as a Chinese font has Chinese ones."""
    with mpl.rc_context({"font.family": ["DejaVu Sans", "STIXGeneral"]}):
        drawn = PartitionTable(np.eye(2, dtype=int), ("\u2316", "b"), ("0", "1"), ("all", "all")).draw()
        with warnings.catch_warnings(action="error"):
            write_figure(tmp_path / "partition.png", drawn)
    assert drawn.axes[0].get_xticklabels()[0].get_text() == "\u2316"
