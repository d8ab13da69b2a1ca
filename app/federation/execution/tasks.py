"""What a worker is asked to do, and what comes of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from app.federation.evaluation import Score


@dataclass(frozen=True)
class ClientTask:
    """One client's work in one round.

    Attributes:
        round: 0-based round.
        capacity: width rate of the submodel, in (0, 1].
        received: the flat vector of the client's submodel, as received.
        key: clients with equal keys received the same vector (None: unlike any other).
        lr: learning rate of the round.
        train: sample ids of the training set.
        test: sample ids of the client's own test set.
        evaluate: whether to evaluate the received and the trained model.
        owned: whether the client has samples of each class (bool, classes), where logits are masked; else None.
        index: coordinates of the server's vector that `received` holds; None for a model that belongs to no server.
    """

    client: int
    round: int
    capacity: float
    received: Tensor
    key: Hashable | None
    lr: float
    train: Tensor
    test: Tensor
    evaluate: bool
    owned: Tensor | None = None
    index: Tensor | None = None


@dataclass(frozen=True)
class ClientScores:
    """Evaluation of one client: the model it received and the one it trained, on the common and its own test set."""

    received_common: Score = field(default_factory=Score)
    received_own: Score = field(default_factory=Score)
    trained_common: Score = field(default_factory=Score)
    trained_own: Score = field(default_factory=Score)


@dataclass(frozen=True)
class TrainedClient:
    """The result of a task.

    Attributes:
        vector: flat vector after local training.
        loss: mean training loss over the local steps.
        received_loss: loss of the received model on the training set, NaN unless needed.
        scores: evaluation, empty unless requested.
        train_seconds: seconds spent in local training by this worker.
        evaluate_seconds: seconds spent in evaluation by this worker.
        refusal: why the client did not train; empty where it did.
    """

    task: ClientTask
    vector: Tensor
    loss: float
    received_loss: float
    scores: ClientScores
    train_seconds: float
    evaluate_seconds: float
    refusal: str = ""
