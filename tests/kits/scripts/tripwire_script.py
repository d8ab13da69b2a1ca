"""Runs a federation under a malicious server on one process or two: `tripwire_script.py devices folder`."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from federation_kit import TINY_MLP, Blobs, Reports, make_trainer, sgd, small_federation
from tripwire_kit import Diary, Freezing

from app.federation.local_training import LocalTraining
from app.federation.submodels import FedRolex
from callbacks.defenses.tripwire import Tripwire

SETTINGS = {
    "local": LocalTraining(batch_size=4, optimizer=sgd(0.2)),
    "capacities": [1.0, 0.5, 0.5, 1.0, 0.5, 1.0, 0.5],
    "participation": 0.6,
    "method": FedRolex(),
}


def outcome(devices: int) -> dict:
    """Who refused, what the tripwire told, and the final vector."""
    warnings.filterwarnings("ignore", "round")
    tripwire, reports = Tripwire(commitment=False, gradient_suppression=None), Reports()
    diary, federation = Diary(tripwire), small_federation(TINY_MLP, **SETTINGS)
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    trainer = make_trainer(6, callbacks=[tripwire, Freezing((0, 2, 5), range(1, 6)), diary, reports], **strategy)
    trainer.fit(federation, datamodule=Blobs((6, 11, 8, 5, 9, 7, 10)))
    return {
        "world": trainer.world_size,
        "refusals": [[client.client for client in report.clients if client.refusal] for report in reports.rounds],
        "told": diary.rounds,
        "vector": federation.space.read(federation.net).tolist(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = outcome(int(sys.argv[1]))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        (Path(sys.argv[2]) / "outcome.json").write_text(json.dumps(result))
