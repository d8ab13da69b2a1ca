"""The data modules as a command line or a configuration file names them."""

import pytest
from jsonargparse import ArgumentParser

import datamodules
from datamodules import CIFAR10, CropFlip, Digits, DirichletSizes, FederatedDataModule, Holdout, Multimodal, Natural


def parse(line: str) -> FederatedDataModule:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    return parser.instantiate(parser.parse_args(line.split())).data


def test_options_reach_the_parts_they_name():
    data = parse(
        "--data CIFAR10 --data.root x --data.partition DirichletSizes --data.partition.alpha 0.5 "
        "--data.holdout.shadow 0.1 --data.augment CropFlip --data.augment.padding 2 --data.seed 7"
    )
    assert isinstance(data, CIFAR10)
    assert data.root == "x"
    assert isinstance(data.partition, DirichletSizes)
    assert data.partition.alpha == 0.5
    assert data.holdout == Holdout(0.25, 0.1, 0.1)
    assert isinstance(data.augment, CropFlip)
    assert (data.augment.padding, data.seed) == (2, 7)


def test_lists_and_numbers_for_the_same_option():
    listed = parse("--data Digits --data.partition Natural --data.partition.owners_per_client [3,4]").partition
    single = parse("--data Digits --data.partition Natural --data.partition.owners_per_client 3").partition
    assert isinstance(listed, Natural)
    assert (listed.owners_per_client, single.owners_per_client) == ([3, 4], 3)
    modes = parse("--data Digits --data.partition Multimodal --data.partition.minority_classes [0,1]").partition
    assert isinstance(modes, Multimodal)
    assert modes.minority_classes == [0, 1]


def test_defaults():
    data = parse("--data Digits")
    assert isinstance(data, Digits)
    assert data.partition.clients == 10
    assert data.augment is None


@pytest.mark.parametrize("name", [name for name in datamodules.__all__ if name != "split_pool"])
def test_every_public_class_introduces_itself_in_one_line(name):
    first = (getattr(datamodules, name).__doc__ or "").splitlines()[0]
    assert 20 < len(first) <= 120
    assert first.endswith(".")
