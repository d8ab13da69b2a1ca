from types import SimpleNamespace

import numpy as np
import pytest
import torch

from app.common.errors import UserError
from app.models.base import DataShape
from datamodules import CropFlip, Holdout, Iid, Multimodal, Natural

PAPER = Holdout(0, 0, 0)


def test_setup_loads_and_deals_once(toy):
    data = toy(Iid(3))
    data.setup("fit")
    store, membership = data.store, data.membership
    data.setup("test")
    assert data.loads == 1
    assert data.store is store
    assert data.membership is membership


def test_the_store_holds_the_pool_then_the_test_set(toy):
    data = toy(Iid(3))
    data.setup()
    raw = toy().load()
    assert torch.equal(data.store.images, torch.cat([raw.images, raw.test_images]))
    assert data.common_test.tolist() == list(range(48, 60))
    assert data.shape == DataShape(3, 2, 2, 4)
    assert data.class_names == ("cat", "dog", "emu", "fox")


def test_indices_are_the_membership(toy):
    data = toy(Iid(3), seed=2)
    data.setup()
    assert data.clients == 3
    assert data.sizes == [len(data.train_indices(client)) for client in range(3)]
    for client in range(3):
        assert data.train_indices(client).tolist() == data.membership.members[client].tolist()
        assert data.test_indices(client).tolist() == data.membership.nonmembers[client].tolist()
        images, labels = data.store.batch(data.train_indices(client))
        assert len(images) == len(labels) == data.sizes[client]


def test_the_table_counts_training_samples(toy):
    data = toy(Natural(), holdout=PAPER)
    data.setup()
    assert data.client_class_table().tolist() == [[2, 2, 2, 2]] * 6
    held = toy(Natural(), holdout=Holdout(0.25, 0, 0))
    held.setup()
    assert held.client_class_table().sum(1).tolist() == held.sizes == [6] * 6


def test_clients_with_one_owner_bear_its_name(toy):
    alone, pairs = toy(Natural(), holdout=PAPER), toy(Natural(2), holdout=PAPER)
    alone.setup()
    pairs.setup()
    assert alone.client_names == tuple("uvwxyz")
    assert pairs.client_names == ("0", "1", "2")


def test_groups_come_from_the_partition(toy):
    plain, modes = toy(Iid(2)), toy(Multimodal(2, 1, [0, 1]), holdout=PAPER)
    plain.setup()
    modes.setup()
    assert plain.groups == ["all", "all"]
    assert modes.groups == ["majority", "majority", "minority"]
    assert modes.client_class_table()[2].tolist()[2:] == [0, 0]


def test_the_seed_decides(toy):
    members = []
    for seed in (0, 0, 1):
        data = toy(Iid(3), seed=seed)
        data.setup()
        members.append(np.concatenate(data.membership.members).tolist())
    assert members[0] == members[1] != members[2]


def test_defaults_are_ten_equal_clients_and_no_shared_objects(toy):
    one, two = toy(), toy()
    assert isinstance(one.partition, Iid)
    assert one.partition.clients == 10
    assert one.partition is not two.partition
    assert one.holdout == Holdout(0.25, 0.2, 0.1)


def test_every_wrong_setting_is_reported_before_loading(toy):
    data = toy(Iid(0), Holdout(2.0), CropFlip(-3), seed=-1)
    with pytest.raises(UserError) as error:
        data.setup()
    assert data.loads == 0
    causes = [problem.cause for problem in error.value.problems]
    assert causes == [
        *("--data.partition.clients is 0", "--data.holdout.clients is 2.0"),
        *("--data.augment.padding is -3", "--data.seed is -1"),
    ]


def test_too_many_clients(toy):
    with pytest.raises(UserError, match=r"49 clients share 48 samples"):
        toy(Iid(49), PAPER).setup()


def test_labels_without_a_class_are_refused(toy):
    class Mislabelled(toy):
        def load(self):
            raw = super().load()
            raw.labels[0] = 4
            return raw

    with pytest.raises(UserError, match=r"labels run from 0 to 4, the dataset has 4 classes"):
        Mislabelled(Iid(2)).setup()


def test_using_data_before_setup_says_so(toy):
    with pytest.raises(RuntimeError, match=r"call setup\(\)"):
        toy().store  # noqa: B018


def test_images_can_move_to_another_device(toy):
    data = toy(Iid(2))
    data.setup()
    data.to("meta")
    assert data.store.device.type == "meta"
    assert data.clients == 2


def test_augmentation_pads_with_black(toy):
    plain, cropped = toy(Iid(2)), toy(Iid(2), augment=CropFlip(2, flip=False))
    plain.setup()
    cropped.setup()
    images, _ = plain.store.batch(torch.arange(20))
    assert plain.augmented(images, torch.Generator().manual_seed(0)) is images
    result = cropped.augmented(images, torch.Generator().manual_seed(0))
    inside = (result[:, :, 0, 0][:, None] - images.flatten(2).mT).abs().sum(-1).min(-1).values < 1e-6
    black = (result[:, :, 0, 0] - cropped.store.black).abs().sum(-1) < 1e-6
    assert (inside | black).all()
    assert black.any()
    assert inside.any()


def test_loaders_are_those_of_the_federation(toy):
    data = toy()
    federation = SimpleNamespace(round_loader=lambda: [[0, 1]], evaluation_loader=lambda: ["all"])
    data.trainer = SimpleNamespace(lightning_module=federation)
    assert data.train_dataloader() == [[0, 1]]
    assert data.val_dataloader() == ["all"]
