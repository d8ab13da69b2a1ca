"""Runs the same federations on one process or two: `federation_script.py devices folder [accelerator]`.

A script of its own, because Lightning starts the second process by running the script again.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from federation_kit import TINY_MLP, Blobs, Reports, make_trainer, sgd, small_federation

from app.federation.aggregation import QFFL, FedAvgM
from app.federation.capacities import Capacities
from app.federation.evaluation import Evaluation
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset, FjORD
from app.models import CNN, DataShape
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation

PICTURES = DataShape(1, 16, 16, 4)
SEVEN = (6, 11, 8, 5, 9, 7, 10)
HALVES = [1.0, 0.5, 0.5, 1.0, 0.25, 1.0, 0.5]
CASES = {
    "three": ((5, 8, 11), {}),
    "seven": (SEVEN, {"capacities": HALVES, "weighting": "samples", "block_size": 2, "server": FedAvgM}),
    "one participant": (SEVEN, {"participation": 0.15}),
    "personal": (SEVEN, {"personal": ["layers.classifier.*"], "participation": 0.5, "capacities": HALVES}),
    "resampled": (
        SEVEN,
        {"method": ChannelSubset.preset("fdropout"), "capacities": Capacities(large=3, widest="draw", redraw=True)},
    ),
    "fjord": (SEVEN, {"method": FjORD([0.25, 0.5], distillation=0.5), "capacities": HALVES}),
    "label masks": (
        (6, 3, 4),
        {"local": LocalTraining(batch_size=4, optimizer=sgd(0.2), mask_labels=True), "capacities": [1.0, 0.5, 0.5]},
    ),
    "threads": (SEVEN, {"net": partial(CNN, u=4, statistics="running"), "executor": "threads", "workers": 2}),
    "posthoc": ((5, 8, 11), {"net": partial(CNN, u=4, statistics="posthoc")}),
    "q-ffl": (SEVEN, {"capacities": HALVES, "server": partial(QFFL, q=1.0), "participation": 0.7}),
    "memdefense": (SEVEN, {"capacities": HALVES}),
    "nbafl": (SEVEN, {"capacities": HALVES}),
    "dp-fedavg": (SEVEN, {"capacities": HALVES, "participation": 0.6, "sampling": "poisson", "block_size": 2}),
    "paillier": (SEVEN, {"capacities": HALVES, "server": QFFL, "participation": 0.7}),
    "simulated": (SEVEN, {"capacities": HALVES, "weighting": "samples"}),
    "masked": (SEVEN, {"capacities": HALVES, "server": QFFL, "participation": 0.7}),
    "masked for some": (SEVEN, {"participation": 0.4, "sampling": "poisson"}),
}
DEFENSES = {
    "memdefense": partial(MemDefense, 0.7),
    "nbafl": partial(NbAFL, 2.0, 1e-3, exposures=1),
    "dp-fedavg": partial(DPFedAvg, noise=0.5, clip=0.1),
    "paillier": partial(Paillier, 1024, workers=1),
    "simulated": partial(Paillier, 1024, simulate=True),
    "masked": partial(SecureAggregation, allow_singletons=True),
    "masked for some": partial(SecureAggregation, allow_singletons=True, threshold=0.9),
}
FIGURES = ("client", "loss", "dropped", "received_common", "trained_common", "received_own", "trained_own", "bytes_up")


def outcome(name: str, devices: int, accelerator: str = "cpu") -> dict:
    """Final vector, personal coordinates and the reports of every round."""
    sizes, settings = CASES[name]
    reports = Reports()
    defenses = [DEFENSES[name]()] if name in DEFENSES else []
    federation = small_federation(
        **{"net": TINY_MLP, "local": LocalTraining(batch_size=4, optimizer=sgd(0.2)), **settings},
        evaluation=Evaluation(batch_size=8),
    )
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    strategy["accelerator"] = accelerator
    trainer = make_trainer(3, callbacks=[*defenses, reports], **strategy)
    trainer.fit(federation, datamodule=Blobs(sizes, PICTURES, tests=29, nonmembers=0.3))
    return {
        "world": trainer.world_size,
        "vector": federation.space.read(federation.net).cpu(),
        "personal": federation.personal.state_dict(),
        "told": [_repeatable(defense.measurements()) for defense in defenses],
        "reports": [
            {
                "clients": [[getattr(client, figure) for figure in FIGURES] for client in report.clients],
                "server": [report.server.correct, report.server.total, report.server.loss],
            }
            for report in reports.rounds
        ],
    }


def _repeatable(measured: Mapping[str, float]) -> dict[str, float]:
    """Numbers that do not depend on how fast the machine is."""
    return {name: value for name, value in measured.items() if not name.endswith("seconds")}


def main(devices: int, folder: Path, accelerator: str = "cpu") -> None:
    """All cases, one after the other; the first process writes."""
    torch.set_num_threads(1)
    for name in CASES:
        result = outcome(name, devices, accelerator)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            report = {key: result.pop(key) for key in ("world", "reports", "told")}
            (folder / f"{name}.json").write_text(json.dumps(report))
            torch.save(result, folder / f"{name}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
