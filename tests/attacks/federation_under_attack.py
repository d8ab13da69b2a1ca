"""Small federations to attack: random labels, so that whatever is learnt of them is memorised."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from app.attacks.membership.catalogue import make_attack
from app.attacks.protocols.audit import Audit, AuditSettings
from app.attacks.shadows.book import ShadowSettings
from app.federation.transcript import Transcript, TranscriptSettings
from app.models import MLP
from callbacks.membership_inference import MembershipInference
from callbacks.transcript_recorder import TranscriptRecorder
from datamodules import FederatedDataModule, Holdout, Iid, RawData

sys.path.append(str(Path(__file__).parents[1] / "federation"))
from federation_kit import FederatedModule, LocalTraining, make_trainer, sgd

CLASSES = 5
FEW = ShadowSettings(count=4)


class RandomLabels(FederatedDataModule):
    """Gaussian pictures with random labels: there is nothing to learn but the samples themselves."""

    def __init__(self, clients=3, samples=300, holdout=None, seed=0):
        super().__init__(Iid(clients), holdout or Holdout(0.5, 0.25, 0.1), None, seed)
        self.samples = samples

    def load(self):
        """Pool and test set."""
        generator = np.random.default_rng(11)
        images = torch.from_numpy(generator.normal(size=(self.samples + 20, 4, 4, 1))).float()
        labels = torch.from_numpy(generator.integers(0, CLASSES, self.samples + 20))
        test = torch.arange(self.samples + 20) >= self.samples
        names = tuple(map(str, range(CLASSES)))
        return RawData.divided(images, labels, test, class_names=names, mean=(0.0,), std=(1.0,))


def trained(folder, rounds=2, lr=0.3, epochs=25, callbacks=(), data=None, keep=None, **settings):
    """A federation whose clients fit their samples, and its transcript."""
    settings.setdefault("local", LocalTraining(batch_size=10, epochs=epochs, optimizer=sgd(lr)))
    settings.setdefault("net", partial(MLP, hidden=(32,)))
    federation = FederatedModule(executor="sequence", **settings)
    recorder = TranscriptRecorder(folder, TranscriptSettings(*(keep or (2, []))), announce=False)
    trainer = make_trainer(rounds, "32-true", [*callbacks, recorder])
    trainer.fit(federation, datamodule=data or RandomLabels())
    return federation, Transcript(folder)


def world_of(federation, transcript, **changes):
    """The federation under attack."""
    rounds = federation.trainer.current_epoch
    return replace(MembershipInference().world(federation, transcript, rounds, final=True), **changes)


def audited(world, *names, attacks=None, **settings):
    """Findings by label; no controls unless asked for."""
    settings.setdefault("controls", "skip")
    settings.setdefault("shadows", FEW)
    chosen = attacks or [make_attack(name) for name in names]
    found = list(Audit(chosen, AuditSettings(**settings)).findings(world))
    return {finding.conditions.label: finding for finding in found}
