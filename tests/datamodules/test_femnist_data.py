import json

import numpy as np
import pytest
from run_kit import parsed

from app.common.errors import UserError
from app.models.base import DataShape
from datamodules import FEMNIST, Holdout, Natural, Staircase

PAPER = Holdout(0, 0, 0)


def arrays(count: int = 60) -> dict[str, np.ndarray]:
    """5 writers with 12 images each, the last 2 of each for testing."""
    generator = np.random.default_rng(0)
    return {
        "images": generator.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        "labels": (np.arange(count) % 62).astype(np.uint8),
        "writers": np.repeat(np.arange(count // 12), 12).astype(np.uint16),
        "split": (np.arange(count) % 12 >= 10).astype(np.uint8),
        "writer_names": np.array([f"f{writer:04}" for writer in range(count // 12)]),
    }


def write_npz(path, **changes):
    content = {name: array for name, array in {**arrays(), **changes}.items() if array is not None}
    np.savez(path, **content)
    return str(path)


def write_leaf(folder, repeat=False):
    """The same samples as LEAF stores them; with `repeat`, each writer's first training image is also tested on."""
    data = arrays()
    for part, wanted in (("train", 0), ("test", 1)):
        users = {}
        for writer, name in enumerate(data["writer_names"]):
            own = np.flatnonzero((data["writers"] == writer) & (data["split"] == wanted))
            if repeat and part == "test":
                own = np.append(own, 12 * writer)
            pixels = (data["images"][own].reshape(len(own), 784) / 255).tolist()
            users[str(name)] = {"x": pixels, "y": data["labels"][own].tolist()}
        (folder / part).mkdir(parents=True)
        content = {"users": list(users), "num_samples": [len(user["y"]) for user in users.values()], "user_data": users}
        (folder / part / "all_data.json").write_text(json.dumps(content))
    return str(folder)


def test_npz_and_leaf_give_the_same_samples(tmp_path):
    loaded = []
    for source in (write_npz(tmp_path / "f.npz"), write_leaf(tmp_path / "leaf")):
        data = FEMNIST(source, partition=Natural(), holdout=PAPER)
        data.setup()
        loaded.append(data)
    assert loaded[0].shape == DataShape(1, 28, 28, 62)
    assert loaded[0].sizes == loaded[1].sizes == [10] * 5
    assert loaded[0].client_names == loaded[1].client_names == tuple(f"f{writer:04}" for writer in range(5))
    assert (loaded[0].store.images == loaded[1].store.images).all()
    assert (loaded[0].store.labels == loaded[1].store.labels).all()
    assert len(loaded[0].common_test) == 10


def test_white_paper_becomes_a_small_positive_number(tmp_path):
    source = write_npz(tmp_path / "f.npz", images=np.full((60, 28, 28), 255, dtype=np.uint8))
    data = FEMNIST(source, partition=Natural(), holdout=PAPER)
    data.setup()
    images, _ = data.store.batch(data.common_test)
    assert images.numpy() == pytest.approx((1 - 0.9652) / 0.1559, rel=1e-4)


def test_class_names_run_through_digits_capitals_and_small_letters(tmp_path):
    data = FEMNIST(write_npz(tmp_path / "f.npz"), partition=Natural())
    data.setup()
    assert [data.class_names[label] for label in (0, 9, 10, 35, 36, 61)] == list("09AZaz")


def test_duplicates_stay_by_default_and_the_training_copy_wins(tmp_path):
    source = write_leaf(tmp_path, repeat=True)
    sizes = []
    for drop in (False, True):
        data = FEMNIST(source, drop, partition=Natural(), holdout=PAPER)
        data.setup()
        sizes.append((sum(data.sizes), len(data.common_test)))
    assert sizes == [(50, 15), (50, 10)]


def test_clients_are_groups_of_writers_by_default(tmp_path):
    data = FEMNIST(write_npz(tmp_path / "f.npz"))
    assert isinstance(data.partition, Staircase)
    with pytest.raises(UserError, match="136 owners asked for, 5 have"):
        data.setup()


def test_missing_source(tmp_path):
    with pytest.raises(UserError, match=r"no FEMNIST at(.|\n)*--data\.source"):
        FEMNIST(str(tmp_path / "none.npz")).setup()


def test_a_file_that_is_no_npz(tmp_path):
    (tmp_path / "f.npz").write_text("hello")
    with pytest.raises(UserError, match="cannot be read"):
        FEMNIST(str(tmp_path / "f.npz")).setup()


def test_objects_in_an_npz_are_never_unpickled(tmp_path):
    source = write_npz(tmp_path / "f.npz", writers=np.array([{"a": 1}] * 60, dtype=object))
    with pytest.raises(UserError, match="cannot be read"):
        FEMNIST(source).setup()


def test_missing_arrays_are_named(tmp_path):
    with pytest.raises(UserError, match="has no writers, split"):
        FEMNIST(write_npz(tmp_path / "f.npz", writers=None, split=None)).setup()


def test_wrong_arrays_are_reported_at_once(tmp_path):
    images = np.zeros((59, 27, 28), dtype=np.float32)
    source = write_npz(tmp_path / "f.npz", images=images, writer_names=np.array(["a", "b"]))
    with pytest.raises(UserError) as error:
        FEMNIST(source).setup()
    text = str(error.value)
    assert "float32 of shape (59, 27, 28)" in text
    assert "differ in length" in text
    assert "writers in" in text
    assert len(error.value.problems) == 3


def test_labels_beyond_62_classes(tmp_path):
    source = write_npz(tmp_path / "f.npz", labels=np.full(60, 62))
    with pytest.raises(UserError, match="labels run from 62 to 62, the dataset has 62 classes"):
        FEMNIST(source, partition=Natural()).setup()


def test_every_fault_of_a_leaf_folder_is_reported(tmp_path):
    write_leaf(tmp_path)
    (tmp_path / "train" / "broken.json").write_text("{")
    faulty = {
        "short": {"x": [[0.0] * 783], "y": [1]},
        "bright": {"x": [[2.0] * 784], "y": [1]},
        "lost": {"x": [[1.0] * 784], "y": [1, 2]},
    }
    (tmp_path / "train" / "faulty.json").write_text(json.dumps({"user_data": faulty}))
    (tmp_path / "test" / "all_data.json").unlink()
    with pytest.raises(UserError) as error:
        FEMNIST(str(tmp_path)).setup()
    text = str(error.value)
    for part in ("broken.json is no LEAF file", "writer short", "writer bright", "writer lost", "no .json file"):
        assert part in text
    assert len(error.value.problems) == 5


def unseen():
    """`arrays` with the last writer as the only test writer."""
    return {"split": (arrays()["writers"] == 4).astype(np.uint8)}


def test_known_test_writers_are_refused_where_unseen_ones_are_asked_for(tmp_path):
    source = write_npz(tmp_path / "f.npz")
    with pytest.raises(UserError) as error:
        FEMNIST(source, unseen_writers=True, partition=Natural()).setup()
    [problem] = error.value.problems
    assert "5 of 5 test writers in" in problem.cause
    assert "f0000, f0001, f0002 ..." in problem.cause
    assert "./preprocess.sh -s niid --sf 0.2 -k 300 -t user --smplseed 0 --spltseed 0" in problem.remedy
    assert "--data.unseen_writers false" in problem.remedy


def test_unseen_test_writers_are_accepted(tmp_path):
    data = FEMNIST(write_npz(tmp_path / "f.npz", **unseen()), unseen_writers=True, partition=Natural(), holdout=PAPER)
    data.setup()
    assert (data.sizes, len(data.common_test)) == ([12] * 4, 12)


def test_the_papers_recipe_asks_for_the_papers_writers(tmp_path):
    """Writers of 300 samples and more, none of them in both sets; 299 are too few."""
    sizes = [300] * 137 + [299] * 5 + [300]
    writers = np.repeat(np.arange(len(sizes)), sizes).astype(np.uint16)
    split = (writers == len(sizes) - 1).astype(np.uint8)
    images = np.zeros((len(writers), 28, 28), dtype=np.uint8)
    content = {"images": images, "labels": (np.arange(len(writers)) % 62).astype(np.uint8), "writers": writers}
    source = write_npz(tmp_path / "f.npz", **content, split=split, writer_names=None)
    given = parsed("--config", "mapp-fl-femnist")["data"]["init_args"]
    stairs = Staircase(**given["partition"]["init_args"])
    data = FEMNIST(source, partition=stairs, holdout=PAPER)
    data.setup()
    assert data.sizes == [600, *(300 * step for step in range(27, 0, -3))]
    assert given["unseen_writers"] is True
