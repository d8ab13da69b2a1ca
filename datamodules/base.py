"""The federated data module: loads a dataset once, deals it to clients once, and provides index sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor

from app.common.described import Described
from app.common.errors import Problem, raise_all
from app.common.files import write_figure
from app.common.ranges import Decay, Seed, range_problems
from app.models.base import DataShape
from datamodules.augmentation import CropFlip
from datamodules.partitions import Iid, Partition
from datamodules.split import Holdout, Membership, split_pool, wrong_labels
from datamodules.store import ImageStore
from datamodules.table import PartitionTable

DEFAULT_HOLDOUT = Holdout()


@dataclass(frozen=True, eq=False)
class RawData:
    """The samples of a dataset before they are dealt to clients."""

    # (n, height, width, channels), uint8 in 0..255 or float32 in 0..1; the pool that is dealt to clients
    images: Tensor
    labels: Tensor  # (n,) int64 classes
    test_images: Tensor  # (m, height, width, channels); the common test set
    test_labels: Tensor  # (m,) int64
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, on the 0..1 scale
    std: tuple[float, ...]  # per channel, on the 0..1 scale
    owners: Tensor | None = None  # (n,) int64 number of each sample's owner (writer, site), None where unknown
    owner_names: tuple[str, ...] = ()  # name of each owner, empty where they have none
    right_labels: Tensor | None = None  # (n,) int64, where some of `labels` were made wrong

    def mislabelled(self, share: float, seed: int) -> RawData:
        """The same samples, a share in [0, 1) of the pool with wrong labels."""
        return replace(
            self, labels=wrong_labels(self.labels, share, len(self.class_names), seed), right_labels=self.labels
        )

    @classmethod
    def divided(
        cls, images: Tensor, labels: Tensor, test: Tensor, owners: Tensor | None = None, **described: Any
    ) -> RawData:
        """Pool and test set out of one set of n samples; `test` (n,) bool is True for the common test set."""
        return cls(
            images=images[~test],
            labels=labels[~test],
            test_images=images[test],
            test_labels=labels[test],
            owners=None if owners is None else owners[~test],
            **described,
        )

    def store(self) -> ImageStore:
        """Pool and test set in one store, in that order."""
        images = torch.cat([self.images, self.test_images])
        labels = torch.cat([self.labels, self.test_labels])
        right = None if self.right_labels is None else torch.cat([self.right_labels, self.test_labels])
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return ImageStore(images, labels, mean, std, len(self.class_names), right)

    def problems(self) -> Iterator[Problem]:
        """Labels without a class name, and sets that are empty."""
        labels = torch.cat([self.labels, self.test_labels])
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.class_names):
            cause = f"labels run from {labels.min()} to {labels.max()}, the dataset has {len(self.class_names)} classes"
            remedy = "correct the labels in the data"
            yield Problem(cause, "the network has no output for some labels", remedy)
        for name, part in (("training", self.labels), ("test", self.test_labels)):
            if len(part) == 0:
                remedy = "check --data.root or --data.source, or the test fraction"
                yield Problem(f"the {name} set is empty", "nothing can be trained or evaluated", remedy)


class FederatedDataModule(Described, LightningDataModule, ABC):
    """A dataset dealt to clients.

    A subclass overrides `load`, and `prepare_data` if there is something to download.

    Args:
        partition: who owns which sample; None takes the dataset's usual one (Iid with 10 clients for most).
        holdout: what is kept out of training, for tests and for attacks.
        augment: random crops and flips of training images; None for none.
        seed: seed of the partition and of membership, at least 0.
        label_noise: share of the pool, in [0, 1), whose labels are replaced by random wrong ones. They can only be
            memorised, which makes differences between attacks larger. Accuracy is measured by the right ones, and
            the common test set has no others.
    """

    own_statistics: ClassVar[bool] = False
    """Whether the mean and standard deviation that normalise images are computed of the training images."""

    def __init__(
        self,
        partition: Partition | None = None,
        holdout: Holdout = DEFAULT_HOLDOUT,
        augment: CropFlip | None = None,
        seed: Seed = 0,
        label_noise: Decay = 0.0,
    ) -> None:
        super().__init__()
        self.label_noise = label_noise
        self.partition = self.usual_partition() if partition is None else partition
        self.holdout = holdout
        self.augment = augment
        self.seed = seed
        self._ready: _Ready | None = None

    @abstractmethod
    def load(self) -> RawData:
        """Read the dataset; no download here."""

    def usual_partition(self) -> Partition:
        """The partition where the user names none."""
        return Iid(10)

    def problems(self) -> list[Problem]:
        """Problems of the settings that show without reading the data."""
        return list(range_problems(self, "data")) or self.partition.problems() + self.holdout.problems()

    def setup(self, stage: str | None = None) -> None:
        """Load and deal once; later calls do nothing. One error names all that is wrong with settings or data."""
        if self._ready is not None:
            return
        raise_all(self.problems())
        raw = self.load()
        raise_all(raw.problems())
        if self.label_noise:
            raw = raw.mislabelled(self.label_noise, self.seed)
        owners = None if raw.owners is None else raw.owners.numpy()
        tests = len(raw.test_labels)
        membership = split_pool(raw.labels.numpy(), owners, tests, self.partition, self.holdout, self.seed)
        names = _client_names(membership, owners, raw.owner_names)
        self._dealt = self._ready = _Ready(raw.store(), membership, raw.class_names, names)

    def redealt(self, other: FederatedDataModule, membership: Membership) -> None:
        """Take over the samples of a module that is set up, with other sets, for a shadow federation."""
        self._dealt = self._ready = replace(other._set_up, membership=membership)

    def insert(self, images: Tensor, labels: Tensor, owned: Sequence[np.ndarray]) -> None:
        """Put canaries beside the samples that were dealt, in place of those of an earlier call.

        They follow all other samples, and belong to no set that is tested or audited.

        Args:
            images: (n, height, width, channels), of the type of the store's images.
            labels: (n,) int64 classes.
            owned: for every client, which of them (0 to n - 1, ascending) it trains on beside its members.
        """
        dealt, first = self._dealt, len(self._dealt.store)
        canaries = tuple(first + np.asarray(own, dtype=np.int64) for own in owned)
        membership = replace(dealt.membership, canaries=canaries)
        self._ready = replace(dealt, store=dealt.store.extended(images, labels), membership=membership)

    def remove_canaries(self) -> None:
        """Back to the samples that were dealt."""
        if self.membership.canaries:
            self._ready = self._dealt

    def to(self, device: torch.device | str) -> None:
        self._ready = replace(self._set_up, store=self.store.to(device))

    @property
    def store(self) -> ImageStore:
        return self._set_up.store

    @property
    def membership(self) -> Membership:
        return self._set_up.membership

    @property
    def shape(self) -> DataShape:
        return self.store.shape

    @property
    def clients(self) -> int:
        return len(self.membership.members)

    @property
    def sizes(self) -> list[int]:
        """Training samples of each client."""
        return [len(self.membership.trained_on(client)) for client in range(self.clients)]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._set_up.class_names

    @property
    def client_names(self) -> tuple[str, ...]:
        """Name of each client: its owner where it has a single named one, else its number."""
        return self._set_up.client_names

    @property
    def groups(self) -> list[str]:
        """Subpopulation of each client, for fairness reports."""
        return self.partition.groups(self.clients)

    @property
    def common_test(self) -> Tensor:
        """Sample ids of the common test set."""
        return torch.from_numpy(self.membership.test)

    def train_indices(self, client: int) -> Tensor:
        """Sample ids that `client` trains on."""
        return torch.from_numpy(self.membership.trained_on(client))

    def owned_classes(self, client: int) -> Tensor:
        """Whether `client` owns each class, by its training samples or by the partition: (classes) bool."""
        labels = self.store.labels[self.train_indices(client).to(self.store.device)]
        owned = torch.bincount(labels, minlength=self.store.classes).cpu() > 0
        owned[list(self.partition.further_classes(client))] = True
        return owned

    def test_indices(self, client: int) -> Tensor:
        """Sample ids of the client's own test set: its non-members."""
        return torch.from_numpy(self.membership.nonmembers[client])

    def reference_indices(self, client: int) -> Tensor:
        """Sample ids that `client` keeps out of training and of every audit, for defenses; empty where it has none."""
        reference = self.membership.reference
        return torch.from_numpy(reference[client]) if reference else torch.empty(0, dtype=torch.long)

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Normalised training images after the configured augmentation, if any."""
        return images if self.augment is None else self.augment(images, generator, self.store.black)

    def client_class_table(self) -> np.ndarray:
        """(clients, classes) numbers of training samples."""
        labels = self.store.labels.cpu().numpy()
        classes = len(self.class_names)
        return np.stack([np.bincount(labels[own], minlength=classes) for own in self.membership.members])

    def write_table(self, folder: Path, figure: bool = True) -> None:
        """Save `partition.csv`, and its figure `partition.png`, in `folder`, which is made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        table = PartitionTable(self.client_class_table(), self.class_names, self.client_names, tuple(self.groups))
        table.write_csv(folder / "partition.csv")
        if figure:
            write_figure(folder / "partition.png", table.draw())

    def train_dataloader(self) -> Any:
        return self._federation.round_loader()

    def val_dataloader(self) -> Any:
        return self._federation.evaluation_loader()

    @property
    def _federation(self) -> Any:
        assert self.trainer is not None, "loaders exist only while a Trainer runs"
        return self.trainer.lightning_module

    @property
    def _set_up(self) -> _Ready:
        if self._ready is None:
            raise RuntimeError(f"call setup() before using the data of {type(self).__name__}")
        return self._ready


@dataclass(frozen=True, eq=False)
class _Ready:
    """The data after setup."""

    store: ImageStore
    membership: Membership
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]


def _client_names(membership: Membership, owners: np.ndarray | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """The owner's name for clients with one owner, the client's number for all others."""
    if owners is None or not names:
        return tuple(str(client) for client in range(len(membership.members)))
    of_clients = [np.unique(owners[own]) for own in membership.members]
    return tuple(names[own[0]] if len(own) == 1 else str(client) for client, own in enumerate(of_clients))
