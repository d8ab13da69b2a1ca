import numpy as np
import pytest
import torch
from PIL import Image

from app.common.errors import UserError
from app.models.base import DataShape
from datamodules import Holdout, ImageFolder, Natural
from datamodules.folder import channel_statistics

PAPER = Holdout(0, 0, 0)
COLOURS = {"cat": (255, 0, 0), "dog": (0, 255, 0)}


def paint(path, colour=(10, 20, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 12), colour).save(path)


@pytest.fixture
def folder(tmp_path):
    """Clients alice and bob, red cats and green dogs, 5 of each."""
    root = tmp_path / "pictures"
    for client in ("alice", "bob"):
        for label, colour in COLOURS.items():
            for number in range(5):
                paint(root / client / label / f"{number}.{'png' if number else 'JPG'}", colour)
    (root / "alice" / "cat" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    return root


def write_table(path, rows, header="path,label,client"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def test_folders_name_clients_and_classes(folder):
    data = ImageFolder(str(folder), image_size=8, holdout=PAPER)
    data.setup()
    assert isinstance(data.partition, Natural)
    assert data.shape == DataShape(3, 8, 8, 2)
    assert data.client_names == ("alice", "bob")
    assert data.class_names == ("cat", "dog")
    assert len(data.store) == 20
    assert len(data.common_test) == 4
    assert data.client_class_table().sum(0).tolist() == [8, 8]


def test_pixels_belong_to_their_labels(folder):
    data = ImageFolder(str(folder), image_size=8)
    data.setup()
    red, green = data.store.images[:, 0, 0, 0] > 128, data.store.images[:, 0, 0, 1] > 128
    assert torch.equal(red, data.store.labels == 0)
    assert torch.equal(green, data.store.labels == 1)


def test_grey_images_have_one_channel(folder):
    data = ImageFolder(str(folder), image_size=5, grayscale=True)
    data.setup()
    assert data.shape == DataShape(1, 5, 5, 2)


def test_the_pool_is_normalised_by_its_own_statistics(folder):
    data = ImageFolder(str(folder), image_size=4, holdout=PAPER)
    data.setup()
    pool = torch.cat([data.train_indices(client) for client in range(data.clients)])
    images, _ = data.store.batch(pool, torch.float64)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(images[:, :2].std((0, 2, 3), correction=0), torch.ones(2).double(), atol=1e-5, rtol=0)


def test_channel_statistics_by_hand():
    images = torch.tensor([[[[0, 51]]], [[[255, 51]]]], dtype=torch.uint8)
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((0.5, 0.2))
    assert std == pytest.approx((0.5, 1.0))


def test_a_table_names_paths_labels_and_clients(folder):
    rows = [f"{c}/{k}/{n}.png,{k},{10 if c == 'bob' else 9}" for c in ("bob", "alice") for k in COLOURS for n in (1, 2)]
    table = write_table(folder / "list.csv", rows)
    data = ImageFolder(table=table, image_size=4, holdout=PAPER)
    data.setup()
    assert data.client_names == ("9", "10")
    assert data.class_names == ("cat", "dog")
    assert len(data.store) == 8


def test_many_images_show_progress(folder, monkeypatch, capsys):
    monkeypatch.setattr("datamodules.folder.MANY_IMAGES", 19)
    ImageFolder(str(folder)).setup()
    assert "reading images" in capsys.readouterr().err
    monkeypatch.setattr("datamodules.folder.MANY_IMAGES", 20)
    ImageFolder(str(folder)).setup()
    assert capsys.readouterr().err == ""


def test_every_fault_of_a_folder_is_reported(folder):
    for number in range(7):
        (folder / "bob" / "dog" / f"broken{number}.png").write_bytes(b"not an image")
    (folder / "bob" / "emu").mkdir()
    (folder / "carol").mkdir()
    with pytest.raises(UserError) as error:
        ImageFolder(str(folder)).setup()
    text = str(error.value)
    assert "7 unreadable images" in text
    assert "broken4.png and 2 more" in text
    assert f"folders without images: {folder / 'bob' / 'emu'}" in text
    assert f"without class folders: {folder / 'carol'}" in text
    assert len(error.value.problems) == 3


def test_a_truncated_image_is_unreadable(folder):
    path = folder / "bob" / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match=r"1 unreadable image: .*1\.png"):
        ImageFolder(str(folder)).setup()


def test_missing_and_empty_roots(tmp_path):
    with pytest.raises(UserError, match=r"no folder(.|\n)*--data\.root"):
        ImageFolder(str(tmp_path / "none")).setup()
    with pytest.raises(UserError, match="folders without images"):
        ImageFolder(str(tmp_path)).setup()


def test_every_fault_of_a_table_is_reported(folder):
    (folder / "broken.png").write_bytes(b"not an image")
    missing = [f"lost{number}.png,cat,9" for number in range(6)]
    rows = ["alice/cat/1.png,cat,9", "alice/cat/2.png,,9", "broken.png,cat,9", *missing]
    with pytest.raises(UserError) as error:
        ImageFolder(table=write_table(folder / "list.csv", rows)).setup()
    text = str(error.value)
    assert "blank cells in row 3" in text
    assert "6 missing files" in text
    assert "lost4.png and 1 more" in text
    assert "1 unreadable image" in text
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("file,label,site", ["a.png,cat,9"], "has no column path, client"),
        ("path,label,client", [], "has no rows"),
    ],
)
def test_tables_without_columns_or_rows(tmp_path, header, rows, message):
    with pytest.raises(UserError, match=message):
        ImageFolder(table=write_table(tmp_path / "list.csv", rows, header)).setup()


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_tables_with_another_delimiter_are_read_and_said(folder, delimiter):
    cells = [(f"{c}/{k}/{n}.png", k, c) for c in ("bob", "alice") for k in COLOURS for n in (1, 2)]
    rows = [delimiter.join(row) for row in cells]
    table = write_table(folder / "list.csv", rows, delimiter.join(["path", "label", "client"]))
    data = ImageFolder(table=table, image_size=4, holdout=PAPER)
    with pytest.warns(UserWarning, match=r"list\.csv: the delimiter is a (semicolon|tab|bar), not a comma"):
        data.setup()
    assert data.client_names == ("alice", "bob")
    assert len(data.store) == 8


def test_spaces_after_the_delimiter_belong_to_no_name(folder):
    rows = [f"{c}/{k}/{n}.png, {k}, {c}" for c in ("bob", "alice") for k in COLOURS for n in (1, 2)]
    data = ImageFolder(table=write_table(folder / "list.csv", rows, "path, label, client"), image_size=4)
    data.setup()
    assert data.client_names == ("alice", "bob")


def test_missing_columns_are_told_from_those_there_are(tmp_path):
    table = write_table(tmp_path / "list.csv", ["a.png;cat;9"], "path;kind;client")
    with (
        pytest.warns(UserWarning, match="delimiter"),
        pytest.raises(UserError, match="has no column label; its columns are path, kind, client"),
    ):
        ImageFolder(table=table).setup()


@pytest.mark.parametrize(("encoding", "byte"), [("latin-1", "0xe9"), ("utf-16", "0xff")])
def test_a_table_that_is_not_in_utf8_names_the_encoding(tmp_path, encoding, byte):
    table = tmp_path / "list.csv"
    table.write_bytes("path,label,client\na.png,café,9\n".encode(encoding))
    with pytest.raises(UserError, match=rf"not encoded in UTF-8: line \d holds the byte {byte}(.|\n)*iconv -f"):
        ImageFolder(table=str(table)).setup()


def test_files_of_the_operating_system_are_no_images(folder):
    for name in ("._1.png", ".DS_Store", "Thumbs.db"):
        (folder / "alice" / "cat" / name).write_bytes(b"attributes")
    resource = folder / "__MACOSX" / "cat" / "._1.png"
    resource.parent.mkdir(parents=True)
    resource.write_bytes(b"attributes")
    data = ImageFolder(str(folder), image_size=4, holdout=PAPER)
    data.setup()
    assert (len(data.store), data.client_names) == (20, ("alice", "bob"))
    rows = [f"{c}/{k}/{n}.png,{k},{c}" for c in ("bob", "alice") for k in COLOURS for n in (1, 2)]
    listed = ImageFolder(table=write_table(folder / "list.csv", [*rows, "alice/cat/._1.png,cat,alice"]), image_size=4)
    listed.setup()
    assert len(listed.store) == 8


def test_labels_of_a_single_image_are_named(folder):
    rows = [f"{c}/{k}/{n}.png,{k},{c}" for c in ("bob", "alice") for k in COLOURS for n in (1, 2)]
    table = write_table(folder / "list.csv", [*rows, "bob/cat/3.png,banana,bob"])
    with pytest.warns(UserWarning, match=rf"1 label with 1 image: banana \(row 10 of {table}\)"):
        ImageFolder(table=table, image_size=4).setup()
    paint(folder / "bob" / "banana" / "1.png")
    with pytest.warns(UserWarning, match=rf"1 label with 1 image: banana \({folder}/bob/banana/1.png\)"):
        ImageFolder(str(folder), image_size=4).setup()


def test_labels_of_several_images_need_no_warning(folder, recwarn):
    ImageFolder(str(folder), image_size=4).setup()
    assert not [warning for warning in recwarn if "label" in str(warning.message)]


def test_a_missing_table(tmp_path):
    with pytest.raises(UserError, match=r"no table(.|\n)*--data\.table"):
        ImageFolder(table=str(tmp_path / "list.csv")).setup()


def test_bad_settings_are_reported_before_reading(tmp_path):
    with pytest.raises(UserError, match=r"image_size is 0(.|\n)*test_fraction is 2"):
        ImageFolder(str(tmp_path), image_size=0, test_fraction=2).setup()


def test_numbers_are_sorted_by_value(tmp_path):
    for label in ("10", "9", "x"):
        for number in range(4):
            paint(tmp_path / "c" / label / f"{number}.png", tuple(np.full(3, int(number))))
    data = ImageFolder(str(tmp_path))
    data.setup()
    assert data.class_names == ("9", "10", "x")
