"""Attacked models, and shadow models whose training sets the attacker knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor

from app.attacks.responses import Ids
from app.metrics.membership import NO_CLIENT

if TYPE_CHECKING:
    from app.attacks.adaptive.base import ReadingStrategy

TargetKind = Literal["global", "uploads"]
"""The model of the whole federation, or each client's upload."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model after one round.

    Attributes:
        round: counted from 1.
        rate: width rate of its network, in (0, 1].
        vector: flat parameters and buffers.
    """

    round: int
    rate: float
    vector: Tensor


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """A model as one adversary has observed it, over one or several rounds.

    Attributes:
        key: unique among all models of the run, shadows included.
        client: whose upload it is, NO_CLIENT for the model of the whole federation.
        size: samples it was trained on; the server knows how many samples its clients have.
        snapshots: by round; the last one is the model itself.
        reading: how an attacker who knows the defense has adapted what it observed, None for as observed.
    """

    key: str
    client: int
    size: int
    snapshots: tuple[Snapshot, ...]
    reading: ReadingStrategy | None = None

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def rounds(self) -> tuple[int, ...]:
        """Rounds of the snapshots, counted from 1."""
        return tuple(snapshot.round for snapshot in self.snapshots)

    @property
    def is_global(self) -> bool:
        return self.client == NO_CLIENT

    def only_last(self) -> AttackedModel:
        """The same model with its last snapshot only."""
        return replace(self, snapshots=self.snapshots[-1:])


@dataclass(frozen=True, eq=False)
class Shadow:
    """A model like the attacked one whose training set the attacker knows.

    Attributes:
        model: with snapshots at the rounds of the attacked model.
        members: ids it was trained on, ascending.
        nonmembers: ids from the same source that it was not trained on, ascending.
    """

    model: AttackedModel
    members: Ids
    nonmembers: Ids

    @property
    def samples(self) -> Ids:
        """Members and non-members, ascending."""
        return np.sort(np.concatenate([self.members, self.nonmembers]))

    def trained_on(self, samples: Ids) -> np.ndarray:
        """Whether each of the samples is a member (bool)."""
        return np.isin(samples, self.members)
