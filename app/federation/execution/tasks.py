"""The task of training one client, and its result."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from app.federation.evaluation import Score


@dataclass(frozen=True)
class ClientTask:
    """One client's work in one round."""

    client: int
    round: int  # 0-based
    capacity: float  # width rate of the submodel, in (0, 1]
    received: Tensor  # the flat vector of the client's submodel, as received
    key: Hashable | None  # clients with equal keys received the same vector (None: unlike any other)
    lr: float
    train: Tensor  # sample ids of the training set
    test: Tensor  # sample ids of the client's own test set
    evaluate: bool  # whether to evaluate the received and the trained model
    # whether the client has samples of each class (bool, classes), where logits are masked; else None
    owned: Tensor | None = None
    anchor: Tensor | None = None  # what the proximal term pulls to; None for `received`
    correction: Tensor | None = None  # SCAFFOLD: what is added to the gradient of every step; None for nothing
    # coordinates of the server's vector that `received` holds; None for a model that belongs to no server
    index: Tensor | None = None
    seed: int | None = None  # key of the client's random choices; None for that of the run

    def kept(self, name: str) -> Tensor:
        """A vector that the local objective needs; by default, the received one is the anchor, nothing is corrected."""
        given: Tensor | None = getattr(self, name)
        if given is not None:
            return given
        return self.received if name == "anchor" else torch.zeros_like(self.received)


@dataclass(frozen=True)
class ClientScores:
    """Evaluation of one client: the model it received and the one it trained, on the common and its own test set."""

    received_common: Score = field(default_factory=Score)
    received_own: Score = field(default_factory=Score)
    trained_common: Score = field(default_factory=Score)
    trained_own: Score = field(default_factory=Score)


@dataclass(frozen=True)
class TrainedClient:
    """The result of a task."""

    task: ClientTask
    vector: Tensor  # flat vector after local training
    finite: bool  # whether the vector holds no NaN or infinity
    loss: float  # mean training loss over the local steps
    received_loss: float  # loss of the received model on the training set, NaN unless needed
    scores: ClientScores  # evaluation, empty unless requested
    train_seconds: float  # seconds spent in local training by this worker
    evaluate_seconds: float  # seconds spent in evaluation by this worker
    refusal: str = ""  # why the client did not train; empty where it did
