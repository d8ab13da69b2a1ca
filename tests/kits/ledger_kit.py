"""Small runs with a budget that are kept in a folder, interrupted and resumed in this process."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from federation_kit import TINY_MLP, Blobs, make_trainer, sgd, small_federation

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.results.run.checkpoints import RoundCheckpoint, VerifiedCheckpointIO, newest_usable
from app.results.run.folder import RunFolder
from callbacks.recorders.run_recorder import RunRecorder

SIZES = (20, 20, 20)
LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
"""Five steps at a rate of 1/5 in every round."""


class PowerCutError(Exception):
    """The run is over, at once."""


class Adversary(FederatedCallback):
    """Keeps what leaves: the uploads that the server receives and the means that it releases; may cut a round off.

    `noise` is that of NbAFL's uploads in every attempt at a round.
    """

    kind = "recorder"

    def __init__(self) -> None:
        self.uploads: dict[tuple[int, int], list[Any]] = {}
        self.means: dict[int, list[Any]] = {}
        self.metrics: list[dict[str, float]] = []
        self.noise: list[float] = []
        self.cut: int | None = None

    def on_message(self, trainer, federation, message):
        """A client's upload."""
        self.uploads.setdefault((message.round, message.client), []).append(message.payload.clone())

    def on_server_update(self, trainer, federation, aggregate):
        """After the defenses; every upload of the round has left by now."""
        self.means.setdefault(federation.plan.round, []).append(aggregate.mean.clone())
        self.noise.append(federation.hooks.measurements().get("nbafl/noise_up", 0.0))
        if self.cut == federation.plan.round:
            raise PowerCutError

    def on_round_end(self, trainer, federation, metrics, costs):
        """What the round measured."""
        self.metrics.append(dict(metrics))

    def seen(self, client: int) -> int:
        """Number of different uploads of a client."""
        of_client = [found for (_, one), found in self.uploads.items() if one == client]
        return sum(len({payload.numpy().tobytes() for payload in found}) for found in of_client)


def fitted(path: Path, rounds: int, defense: FederatedCallback, *others: Any, **settings: Any) -> Any:
    """The federation after a run in a folder, which goes on with what the folder holds."""
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    federation = small_federation(TINY_MLP, local=LOCAL, **settings)
    kept = [RunRecorder(folder), RoundCheckpoint(folder.checkpoints)]
    trainer = make_trainer(
        rounds, callbacks=[defense, *others, *kept], enable_checkpointing=True, plugins=[VerifiedCheckpointIO()]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint = newest_usable(folder.checkpoints)
        trainer.fit(federation, datamodule=Blobs(SIZES), ckpt_path=checkpoint, weights_only=True)
    return federation


def cut_off(
    path: Path, rounds: int, defense: FederatedCallback, adversary: Adversary, at: int, **settings: Any
) -> None:
    """A run that ends in the middle of round `at` (from 0), when its uploads have left."""
    adversary.cut = at
    with pytest.raises(PowerCutError):
        fitted(path, rounds, defense, adversary, **settings)
    adversary.cut = None


def budget(path: Path) -> dict[str, Any]:
    """The statement of a finished run's only defense."""
    [statement] = json.loads((path / "privacy.json").read_text())["budgets"]
    return statement
