"""Partitions: who owns which sample of the pool, one way per file."""

from datamodules.partitions.base import Partition
from datamodules.partitions.dirichlet_labels import DirichletLabels
from datamodules.partitions.dirichlet_sizes import DirichletSizes
from datamodules.partitions.iid import Centralised, Iid
from datamodules.partitions.multimodal import Multimodal
from datamodules.partitions.natural import Natural, Staircase
from datamodules.partitions.shards import Shards

__all__ = [
    "Partition",
    "Iid",
    "Centralised",
    "DirichletSizes",
    "DirichletLabels",
    "Shards",
    "Multimodal",
    "Natural",
    "Staircase",
]
