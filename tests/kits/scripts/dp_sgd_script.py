"""Runs a private federation on one process or two and writes its budgets: `dp_sgd_script.py devices folder`."""

import json
import os
import sys
from pathlib import Path

import torch
from federation_kit import TINY_MLP, Blobs, make_trainer, sgd, small_federation

from app.federation.local_training import LocalTraining
from callbacks.defenses.dp_sgd import DPSGD

SIZES = (6, 11, 8, 5, 9, 7, 10)
SETTINGS = {
    "local": LocalTraining(batch_size=4, optimizer=sgd(0.2)),
    "capacities": [1.0, 0.5, 0.5, 1.0, 0.25, 1.0, 0.5],
    "participation": 0.5,
}


def outcome(devices: int) -> dict:
    """Final vector, epsilon of every client, and the measurements of the last round."""
    defense, federation = DPSGD(noise=2.0, target_epsilon=4.0), small_federation(TINY_MLP, **SETTINGS)
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    trainer = make_trainer(8, callbacks=[defense], **strategy)
    trainer.fit(federation, datamodule=Blobs(SIZES))
    return {
        "world": trainer.world_size,
        "rounds": trainer.current_epoch,
        "vector": federation.space.read(federation.net).tolist(),
        "clients": [list(pair) for pair in defense.statement(federation).clients],
        "numbers": defense.measurements(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = outcome(int(sys.argv[1]))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        (Path(sys.argv[2]) / "outcome.json").write_text(json.dumps(result))
