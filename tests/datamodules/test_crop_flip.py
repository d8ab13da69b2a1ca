import pytest
import torch
from torchvision.transforms.v2 import functional

from app.common.ranges import range_problems
from datamodules import CropFlip, Crops, ImageStore


def oracle(image: torch.Tensor, padding: int, top: int, left: int, flip: bool) -> torch.Tensor:
    """One raw image (channels, height, width), the slow way: pad with 0, cut the window out, mirror it."""
    height, width = image.shape[-2:]
    window = functional.crop(functional.pad(image, [padding]), top, left, height, width)
    return functional.horizontal_flip(window) if flip else window


def small_store() -> ImageStore:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (40, 6, 5, 3), dtype=torch.uint8, generator=generator)
    return ImageStore(images, torch.zeros(40).long(), torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4]), 1)


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_equals_padding_the_raw_image_and_normalising_afterwards(padding):
    store, augment = small_store(), CropFlip(padding)
    crops = augment.draw(40, torch.Generator().manual_seed(0))
    result = augment.apply(store.batch(torch.arange(40))[0], crops, store.black)
    raw = [
        oracle(image, padding, int(top), int(left), bool(flip))
        for image, top, left, flip in zip(
            store.images.permute(0, 3, 1, 2), crops.tops, crops.lefts, crops.flips, strict=True
        )
    ]
    cropped = ImageStore(torch.stack(raw).permute(0, 2, 3, 1), store.labels, store.mean, store.std, 1)
    assert torch.equal(result, cropped.batch(torch.arange(40))[0])


def test_known_window():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    shifted = Crops(torch.tensor([2]), torch.tensor([0]), torch.tensor([False]))
    mirrored = Crops(torch.tensor([1]), torch.tensor([1]), torch.tensor([True]))
    fill = torch.tensor([-9.0])
    assert CropFlip(1).apply(image, shifted, fill).tolist() == [[[[-9, 3], [-9, -9]]]]
    assert CropFlip(1).apply(image, mirrored, fill).tolist() == [[[[2, 1], [4, 3]]]]


def test_memory_layout_is_kept():
    images, fill = small_store().batch(torch.arange(8))[0], torch.zeros(3)
    result = CropFlip(2)(images, torch.Generator().manual_seed(0), fill)
    assert result.stride() == images.stride()
    plain = CropFlip(2)(images.contiguous(), torch.Generator().manual_seed(0), fill)
    assert plain.is_contiguous()
    assert torch.equal(plain, result)


def test_a_block_of_clients_is_one_long_batch():
    store = small_store()
    block = store.batch(torch.arange(40).view(4, 10))[0]
    result = CropFlip(2)(block, torch.Generator().manual_seed(5), store.black)
    flat = CropFlip(2)(block.flatten(0, 1), torch.Generator().manual_seed(5), store.black)
    assert result.stride() == block.stride()
    assert torch.equal(result.flatten(0, 1), flat)


def test_windows_and_flips_are_uniform():
    crops = CropFlip(4).draw(9000, torch.Generator().manual_seed(0))
    for offsets in (crops.tops, crops.lefts):
        counts = torch.bincount(offsets, minlength=9)
        assert len(counts) == 9
        assert (counts - 1000).abs().max() < 150
    assert abs(crops.flips.sum().item() - 4500) < 200
    assert abs(torch.corrcoef(torch.stack([crops.tops, crops.lefts]).float())[0, 1]) < 0.04


def test_flip_can_be_switched_off_without_moving_the_windows():
    with_flips = CropFlip(4).draw(50, torch.Generator().manual_seed(0))
    without = CropFlip(4, flip=False).draw(50, torch.Generator().manual_seed(0))
    assert not without.flips.any()
    assert torch.equal(with_flips.tops, without.tops)


def test_negative_padding_is_a_problem():
    [problem] = range_problems(CropFlip(-1), "data.augment")
    assert (problem.cause, problem.consequence) == ("--data.augment.padding is -1", "it must be int >= 0")
