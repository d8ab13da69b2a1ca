"""Attacks a federation with shadow models on one process or two: `shadows_script.py devices folder`.

A script of its own, because Lightning starts the second process by running the script again.
"""

import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path

from federation_kit import FederatedModule, LocalTraining, make_trainer, sgd

import callbacks.attacks.shared_shadows as shared_shadows
from app.attacks.protocols.taxonomy import Taxonomy
from app.attacks.shadows.shadow_store import ShadowSettings
from app.federation.hooks import FederatedCallback
from app.models import MLP
from callbacks.attacks.membership_inference import MembershipInference
from callbacks.attacks.shadow_federations import ShadowFederations
from datamodules import Digits, Holdout, Iid

RANK = int(os.environ.get("LOCAL_RANK", "0"))
CASES = {
    "central": MembershipInference(
        ["lira-online"], ["global", "uploads"], shadows=ShadowSettings("central", 4), controls="skip", calibrate=False
    ),
    "federated": MembershipInference(
        ["lira-online"], ["global"], shadows=ShadowSettings("federated", 4), controls="skip", calibrate=False
    ),
    "taxonomy": MembershipInference(protocol=Taxonomy(["lira"], shadows=4, shadow_size=100, shadow_epochs=1)),
}


class Troubled(FederatedCallback):
    """Shares work that fails on the second process, then work that does not, and fails itself in the end."""

    kind = "attack"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_transcript(self, federation, transcript):
        """On the first process only."""
        try:
            federation.helpers.share(squares, [1, 2, 3], [1.0, 5.0, 1.0])
        except RuntimeError as error:
            (self.folder / "second.txt").write_text(str(error))
        made = federation.helpers.share(squares, [3, 5, 4, 7], [1.0, 1.0, 1.0, 9.0])
        (self.folder / "squares.json").write_text(json.dumps(made))
        raise ValueError("the attack is wrong")


def squares(federation, numbers):
    """Squares of some numbers; nobody knows that of 1, which the second process is asked for."""
    if 1 in numbers:
        raise ZeroDivisionError(f"no square on process {federation.global_rank}")
    return [number**2 for number in numbers]


def watched(made: list[int]) -> None:
    """Note the numbers of the shadows that this process trains."""
    train, repeat = shared_shadows.train_centrally, ShadowFederations.train

    def noted(knowledge, jobs, *settings):
        made.extend(job.number for job in jobs)
        return train(knowledge, jobs, *settings)

    def noted_too(self, repetition):
        made.append(repetition.number)
        repeat(self, repetition)

    shared_shadows.train_centrally, ShadowFederations.train = noted, noted_too


def fitted(devices: int, attack: FederatedCallback) -> FederatedModule:
    """A small federation after two rounds, under attack."""
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    federation = FederatedModule(
        partial(MLP, hidden=(8,)),
        local=LocalTraining(batch_size=32, optimizer=sgd(0.3)),
        executor="sequence",
        capacities=[1.0, 0.5],
    )
    data = Digits(partition=Iid(2), holdout=Holdout(0.5, 0.3, 0.1))
    make_trainer(2, "32-true", [attack], **strategy).fit(federation, datamodule=data)
    return federation


def outcome(name: str, devices: int) -> dict[str, list[float]]:
    """Scores of every attack, by its label."""
    federation = fitted(devices, CASES[name])
    return {record.conditions.label: record.new_scores.scores.tolist() for record in federation.results}


def main(devices: int, folder: Path) -> None:
    """All cases, one after the other."""
    warnings.filterwarnings("ignore")
    made: list[int] = []
    watched(made)
    for name in CASES:
        scores = outcome(name, devices)
        (folder / f"{name}-{RANK}.json").write_text(json.dumps({"scores": scores, "trained": made}))
        made.clear()
    try:
        fitted(devices, Troubled(folder))
    except Exception as error:
        (folder / f"failed-{RANK}.txt").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
