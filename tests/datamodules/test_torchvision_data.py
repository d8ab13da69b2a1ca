import gzip
import pickle
import struct
from urllib.error import URLError

import numpy as np
import pytest
from torchvision import datasets

from app.common.errors import UserError
from app.models.base import DataShape
from datamodules import CIFAR10, CIFAR100, MNIST, FashionMNIST, Holdout, Iid

ALL = [MNIST, FashionMNIST, CIFAR10, CIFAR100]


@pytest.mark.parametrize("kind", ALL)
def test_missing_files_are_explained(kind, tmp_path):
    with pytest.raises(UserError) as error:
        kind(root=str(tmp_path / "nowhere")).setup()
    text = str(error.value)
    assert f"no {kind.title} in {tmp_path / 'nowhere'}" in text
    assert "--data.download true" in text
    assert "--data.root" in text


@pytest.mark.parametrize(
    "failure", [URLError("no route to host"), OSError("disk full"), RuntimeError("bad\n checksum")]
)
@pytest.mark.parametrize("kind", ALL)
def test_a_failed_download_is_explained(kind, failure, tmp_path, monkeypatch):
    def fail(self):
        raise failure

    monkeypatch.setattr(getattr(datasets, kind.__name__), "download", fail)
    with pytest.raises(UserError) as error:
        kind(root=str(tmp_path), download=True).prepare_data()
    text = str(error.value)
    assert f"{kind.title} could not be downloaded to {tmp_path}" in text
    assert " ".join(str(failure).split()) in text
    assert "--data.download false" in text


@pytest.mark.parametrize("kind", ALL)
def test_nothing_is_fetched_unless_asked_for(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(getattr(datasets, kind.__name__), "download", lambda self: pytest.fail("downloaded"))
    kind(root=str(tmp_path)).prepare_data()


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())
    path.with_suffix(".gz").write_bytes(gzip.compress(b""))


@pytest.fixture
def fake_mnist(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        for part, count in (("train", 40), ("t10k", 10)):
            raw = tmp_path / name / "raw"
            write_idx(raw / f"{part}-images-idx3-ubyte", generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
            write_idx(raw / f"{part}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_padding_adds_a_black_frame(kind, fake_mnist):
    plain, padded = (kind(str(fake_mnist), pad=pad, partition=Iid(2), holdout=Holdout(0, 0, 0)) for pad in (0, 2))
    plain.setup()
    padded.setup()
    assert plain.shape == DataShape(1, 28, 28, 10)
    assert padded.shape == DataShape(1, 32, 32, 10)
    frame = padded.store.images.clone()
    assert (frame[:, 2:30, 2:30] == plain.store.images).all()
    frame[:, 2:30, 2:30] = 0
    assert frame.sum() == 0


def test_class_names(fake_mnist):
    digits, clothes = MNIST(str(fake_mnist), partition=Iid(2)), FashionMNIST(str(fake_mnist), partition=Iid(2))
    digits.setup()
    clothes.setup()
    assert digits.class_names == tuple("0123456789")
    assert clothes.class_names[0] == "T-shirt/top"


def test_negative_padding_is_refused(fake_mnist):
    with pytest.raises(UserError, match=r"pad is -1(.|\n)*--data\.pad"):
        MNIST(str(fake_mnist), pad=-1).setup()


def test_own_cifar_files_are_read_only_without_the_check(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, count in (("train", 20), ("test", 5)):
        content = {"data": np.full((count, 3072), 7, dtype=np.uint8), "fine_labels": [3] * count}
        (folder / name).write_bytes(pickle.dumps(content))
    names = [f"thing {label}" for label in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: path.endswith("meta"))
    settings = {"root": str(tmp_path), "partition": Iid(2), "holdout": Holdout(0, 0, 0)}
    with pytest.raises(UserError, match=r"differ from the published CIFAR-100(.|\n)*--data\.verify false"):
        CIFAR100(**settings).setup()
    data = CIFAR100(verify=False, **settings)
    data.setup()
    assert data.sizes == [10, 10]
    assert data.shape == DataShape(3, 32, 32, 100)


def test_broken_own_cifar_files_are_explained(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, _ in datasets.CIFAR10.train_list + datasets.CIFAR10.test_list:
        (folder / name).write_bytes(b"no pickle")
    with pytest.raises(UserError, match="no CIFAR-10 in"):
        CIFAR10(str(tmp_path), verify=False).setup()
