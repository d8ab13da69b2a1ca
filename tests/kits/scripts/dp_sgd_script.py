"""Runs a private federation on one process or two and writes its budgets: `dp_sgd_script.py devices folder`."""

import json
import os
import sys
from pathlib import Path

import torch
from federation_kit import TINY_MLP, Blobs, make_trainer, sgd, small_federation

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.results.run.folder import RunFolder
from app.results.run.ledger import LEDGER, read_spends
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.recorders.run_recorder import RunRecorder

SIZES = (6, 11, 8, 5, 9, 7, 10)
SETTINGS = {
    "local": LocalTraining(batch_size=4, optimizer=sgd(0.2)),
    "capacities": [1.0, 0.5, 0.5, 1.0, 0.25, 1.0, 0.5],
    "participation": 0.5,
}


class Auditor(FederatedCallback):
    """Finds every upload of its process in the ledger's file, before the server has the update."""

    kind = "recorder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_message(self, trainer, federation, message):
        """Whoever writes the file, the entry is there."""
        spends = [spend for spend in read_spends(self.folder) if spend.round == message.round]
        assert any(message.client in spend.steps for spend in spends)


def outcome(devices: int, folder: Path) -> dict:
    """Final vector, epsilon of every client, and the measurements of the last round."""
    defense, federation = DPSGD(noise=2.0, target_epsilon=4.0), small_federation(TINY_MLP, **SETTINGS)
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    folder.mkdir(exist_ok=True)
    trainer = make_trainer(8, callbacks=[defense, Auditor(folder), RunRecorder(RunFolder(folder))], **strategy)
    trainer.fit(federation, datamodule=Blobs(SIZES))
    return {
        "world": trainer.world_size,
        "rounds": trainer.current_epoch,
        "vector": federation.space.read(federation.net).tolist(),
        "clients": [list(pair) for pair in defense.statement(federation).clients],
        "numbers": defense.measurements(),
        "ledger": (folder / LEDGER).read_text(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = outcome(int(sys.argv[1]), Path(sys.argv[2]) / "run")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        (Path(sys.argv[2]) / "outcome.json").write_text(json.dumps(result))
