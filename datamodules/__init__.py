"""Datasets dealt to clients: the owner of each sample, members and non-members, shadow data of attackers."""

from datamodules.augmentation import CropFlip, Crops
from datamodules.base import FederatedDataModule, RawData
from datamodules.digits import Digits, MNIST5k
from datamodules.femnist import FEMNIST
from datamodules.folder import ImageFolder
from datamodules.partitions import (
    Centralised,
    DirichletLabels,
    DirichletSizes,
    Iid,
    Multimodal,
    Natural,
    Partition,
    Shards,
    Staircase,
)
from datamodules.split import Holdout, Membership, split_pool
from datamodules.store import ImageStore
from datamodules.torchvision_sets import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = [
    "FederatedDataModule",
    "RawData",
    "Digits",
    "MNIST5k",
    "MNIST",
    "FashionMNIST",
    "CIFAR10",
    "CIFAR100",
    "FEMNIST",
    "ImageFolder",
    "Partition",
    "Iid",
    "Centralised",
    "DirichletSizes",
    "DirichletLabels",
    "Shards",
    "Multimodal",
    "Natural",
    "Staircase",
    "Holdout",
    "Membership",
    "split_pool",
    "ImageStore",
    "CropFlip",
    "Crops",
]
