import pytest
import torch
from torchvision.transforms.v2 import functional

from app.models.base import DataShape
from datamodules import ImageStore

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])


def byte_store(count: int = 7) -> ImageStore:
    images = torch.randint(0, 256, (count, 5, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return ImageStore(images, torch.arange(count), MEAN, STD, classes=10)


def test_bytes_are_scaled_and_normalised_as_torchvision_does():
    store = byte_store()
    images, labels = store.batch(torch.tensor([6, 0, 6]))
    raw = store.images[[6, 0, 6]].permute(0, 3, 1, 2)
    expected = functional.normalize(functional.to_dtype(raw, torch.float32, scale=True), MEAN.tolist(), STD.tolist())
    torch.testing.assert_close(images, expected, rtol=1e-6, atol=1e-6)
    assert labels.tolist() == [6, 0, 6]


def test_a_pixel_by_hand():
    images = torch.tensor([[[[255, 0]]]], dtype=torch.uint8)
    store = ImageStore(images, torch.tensor([3]), torch.tensor([0.5, 0.1]), torch.tensor([0.25, 0.2]), 4)
    batch, _ = store.batch(torch.tensor([0]))
    torch.testing.assert_close(batch.flatten(), torch.tensor([2.0, -0.5]))
    torch.testing.assert_close(store.black, torch.tensor([-2.0, -0.5]))


def test_floats_are_not_divided_by_255():
    store = ImageStore(torch.ones(1, 1, 1, 1), torch.tensor([0]), torch.tensor([0.0]), torch.tensor([0.5]), 2)
    assert store.batch(torch.tensor([0]))[0].item() == 2.0


def test_a_batch_is_channels_last_without_a_copy():
    images, _ = byte_store().batch(torch.arange(6))
    assert images.shape == (6, 3, 5, 4)
    assert images.stride() == (60, 1, 12, 3)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_block_of_clients_equals_its_batches():
    store = byte_store()
    indices = torch.tensor([[1, 2, 3], [4, 5, 6]])
    block, labels = store.batch(indices)
    assert block.shape == (2, 3, 3, 5, 4)
    assert torch.equal(labels, indices)
    for client, row in enumerate(indices):
        assert torch.equal(block[client], store.batch(row)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_round_the_exact_result(dtype):
    store = byte_store()
    exact = store.batch(torch.arange(7), torch.float64)[0]
    images = store.batch(torch.arange(7), dtype)[0]
    assert images.dtype == dtype
    torch.testing.assert_close(images.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_the_stored_bytes_survive_a_batch():
    store = byte_store()
    before = store.images.clone()
    store.batch(torch.arange(7))
    assert torch.equal(store.images, before)


def test_shape_length_and_device():
    store = byte_store()
    assert (len(store), store.shape) == (7, DataShape(3, 5, 4, 10))
    assert store.to("cpu") is store
    assert store.to("meta").images.device.type == "meta"
