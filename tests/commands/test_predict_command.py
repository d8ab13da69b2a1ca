"""`rampart predict`: image files get the classes that the network gives, whatever their colours and size."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from run_kit import exit_code, train
from trained_kit import images_of, released_logits

from app import load_run
from datamodules.folder import list_folder, read_images


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_images(folder, run, count=40, border=0):
    """The first images of the common test set as grey PNG files, without their border."""
    folder.mkdir(parents=True)
    pixels = (images_of(run)[:count, 0] * 255).round().byte().numpy()
    for number, image in enumerate(pixels):
        inner = image[border : len(image) - border, border : len(image) - border]
        Image.fromarray(inner).save(folder / f"{number:03d}.png")
    return torch.from_numpy(pixels)


def table(path="predictions.csv"):
    """Rows of the result."""
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def answers(path="predictions.csv"):
    """Class numbers in the result."""
    return [int(row["number"]) for row in table(path)]


def test_the_classes_of_the_network(loaded, here, capsys):
    """Digits as files: the classes are those of the digits themselves, the probabilities those of the bytes."""
    run = loaded("sampled-factors")
    pixels = write_images(here / "images", run)
    assert exit_code("predict", str(run.folder.path), "images") == 0
    rows, store = table(), run.run.data.store
    assert [row["file"] for row in rows] == [f"images/{number:03d}.png" for number in range(40)]
    assert answers() == released_logits(run)[:40].argmax(1).tolist()
    assert len(set(answers())) == 10
    assert [row["class"] for row in rows] == [row["number"] for row in rows]  # digits are named by their numbers
    normalised = (pixels[:, None] / 255 - store.mean) / store.std
    expected = released_logits(run, normalised).softmax(1).max(1).values
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.tolist(), abs=2e-6)
    told = capsys.readouterr().out
    assert "images/000.png" in told
    assert "images/030.png" not in told
    assert "predictions.csv: 40 images, classified by the released model" in told
    assert "converted" not in told


def test_a_client(loaded, here):
    """Its own private head answers."""
    run = loaded("private-head")
    write_images(here / "images", run)
    assert exit_code("predict", str(run.folder.path), "images", "--client", "1", "--output", "own.csv") == 0
    with torch.no_grad():
        expected = run.model(1)(images_of(run)[:40]).argmax(1).tolist()
    assert answers("own.csv") == expected
    assert expected != released_logits(run)[:40].argmax(1).tolist()


def test_other_colours_and_sizes(loaded, here, capsys):
    """Grey digits in colour, four times as large, are the same digits; what was converted is said once."""
    run = loaded("private-head")
    pixels = write_images(here / "images", run, count=9).numpy()
    for number, image in enumerate(pixels):
        large = Image.fromarray(np.kron(image, np.ones((4, 4), dtype=np.uint8)))
        large.convert("RGB").save(here / "images" / f"{number:03d}.png")
    (here / "images" / "deep").mkdir()
    Image.fromarray(pixels[0]).convert("RGBA").save(here / "images" / "deep" / "a.png")
    assert exit_code("predict", str(run.folder.path), "images") == 0
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith("converted")] == [
        "converted 9 of 10 images: RGB to L",
        "converted 9 of 10 images: scaled to 8x8 pixels",
        "converted 1 of 10 images: RGBA to L",
    ]
    expected = released_logits(run)[:9].argmax(1).tolist()
    assert answers() == [*expected, expected[0]]


@pytest.mark.parametrize("border", [0, 2])
def test_padded_data(border, loaded, here, capsys):
    """The border is added where files lack it, and files that have it are taken as they are."""
    run = loaded("padded")
    assert run.run.data.shape.height == 12
    write_images(here / "images", run, border=border)
    assert exit_code("predict", str(run.folder.path), "images", "--trust") == 0
    assert answers() == released_logits(run)[:40].argmax(1).tolist()
    told = capsys.readouterr().out
    assert ("converted 40 of 40 images: 2 black pixels added on each side" in told) == (border == 2)
    assert "scaled" not in told


def test_images_are_read_as_in_training(here):
    """A colour run on a folder: its own files, one of them grey, give the classes of what the data module reads."""
    generator = np.random.default_rng(0)
    for place in range(60):
        path = here / "data" / f"site{place % 2}" / f"class{place // 2 % 3}" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (11, 9, 3), dtype=np.uint8)
        pixels[..., place // 2 % 3] |= 128
        Image.fromarray(pixels if place else pixels[..., 0]).save(path)
    data = ("--data", "ImageFolder", "--data.root", str(here / "data"), "--data.image_size", "8")
    run = load_run(train(here, "colour", *data, "--data.partition.clients", "2", "--model.local.epochs", "10"))
    assert exit_code("predict", str(run.folder.path), "data") == 0
    entries, _ = list_folder(here / "data")
    images, _ = read_images(entries, 8, grayscale=False)
    store = run.run.data.store
    logits = released_logits(run, ((images / 255 - store.mean) / store.std).movedim(-1, 1))
    by_file = {row["file"]: (row["class"], int(row["number"])) for row in table()}
    expected = {entry.path.relative_to(here): int(logit.argmax()) for entry, logit in zip(entries, logits, strict=True)}
    assert by_file == {str(path): (f"class{number}", number) for path, number in expected.items()}
    assert len(set(expected.values())) > 1


def test_unreadable_files(loaded, here, capsys):
    """They are listed and passed over, and the exit code tells."""
    run = loaded("private-head")
    write_images(here / "images", run, count=3)
    (here / "images" / "001.png").write_bytes(b"no image")
    whole = (here / "images" / "002.png").read_bytes()
    (here / "images" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (here / "images" / "readme.txt").write_text("no image, and not taken for one")
    assert exit_code("predict", str(run.folder.path), "images", "images/readme.txt") == 1
    told = capsys.readouterr().err
    assert [name for name in ("001.png", "cut.png", "readme.txt", "000.png") if name in told] == [
        *("001.png", "cut.png", "readme.txt"),
    ]
    assert [row["file"] for row in table()] == ["images/000.png", "images/002.png"]


def test_nothing_but_unreadable_files(trained, here):
    """There is nothing to write."""
    (here / "a.png").write_bytes(b"no image")
    assert exit_code("predict", str(trained("private-head")), "a.png") == 1
    assert not (here / "predictions.csv").exists()


def test_a_single_image_and_batch_statistics(loaded, here, capsys):
    """It has none; statistics of the training data serve as well."""
    run = loaded("by-batch")
    write_images(here / "images", run, count=30)
    arguments = ("predict", str(run.folder.path), "images/000.png")
    assert exit_code(*arguments) == 2
    assert "--static" in capsys.readouterr().err
    assert exit_code(*arguments, "--static", "--output", "one.csv") == 0
    assert exit_code("predict", str(run.folder.path), "images", "--static") == 0
    assert table("one.csv") == table()[:1]


def test_existing_tables_are_kept(loaded, here, capsys):
    """Unless they are to be overwritten."""
    run = loaded("private-head")
    write_images(here / "images", run, count=2)
    (here / "predictions.csv").write_text("precious")
    arguments = ("predict", str(run.folder.path), "images")
    assert exit_code(*arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (here / "predictions.csv").read_text() == "precious"
    assert exit_code(*arguments, "--overwrite") == 0
    assert len(table()) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no 'nowhere'"),
        (["empty"], "holds no images"),
        (["empty", "--output", "table.txt"], "use .csv"),
        (["image.png", "--client", "4"], "from 0 to 3"),
    ],
)
def test_wrong_arguments(arguments, told, trained, here, capsys):
    """With a remedy each; nothing is written."""
    (here / "empty").mkdir()
    Image.new("L", (8, 8)).save(here / "image.png")
    assert exit_code("predict", str(trained("private-head")), *arguments) == 2
    assert told in capsys.readouterr().err
    assert not list(here.glob("*.csv"))
