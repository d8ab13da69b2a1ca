"""Tiny federations whose members are memorised, or never learnt, for the papers' protocols."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from federation_kit import Shares, run, sgd, small_federation

from app.attacks.audit_context import AuditContext
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.models import MLP
from callbacks.attacks.membership_inference import public_knowledge
from datamodules import FederatedDataModule, Holdout, RawData

PIXELS, CLASSES = (4, 8), 4
SMALL_MLP = partial(MLP, hidden=(64,))


class Noise(FederatedDataModule):
    """Gaussian pixels with random labels: all that can be learnt are the samples themselves."""

    def __init__(self, sizes: Sequence[int], tests: int, shadow: float = 0.0, pixels: Sequence[int] = PIXELS) -> None:
        super().__init__(Shares(sizes), Holdout(0.0, shadow, 0.0), None)
        self.pool, self.tests = round(sum(sizes) / (1 - shadow)), tests
        self.pixels = (*pixels, 1)

    def load(self) -> RawData:
        """Pool and test set from one distribution."""
        generator, count = np.random.default_rng(5), self.pool + self.tests
        images = torch.from_numpy(generator.normal(size=(count, *self.pixels))).float()
        labels = torch.from_numpy(generator.integers(0, CLASSES, count))
        names = tuple(map(str, range(CLASSES)))
        cut = self.pool
        return RawData(images[:cut], labels[:cut], images[cut:], labels[cut:], names, (0.0,), (1.0,))


def make_audit(
    folder: Path,
    sizes: Sequence[int],
    tests: int,
    *,
    rounds: int = 2,
    epochs: int = 12,
    lr: float = 0.2,
    shadow: float = 0.0,
    net=SMALL_MLP,
    pixels: Sequence[int] = PIXELS,
    defenses: Sequence[FederatedCallback] = (),
    keep: int | None = None,
    **settings,
) -> AuditContext:
    """Train a federation and keep all its rounds or the last few; `lr=0` leaves it untrained."""
    data = Noise(sizes, tests, shadow, pixels)
    local = LocalTraining(epochs=epochs, batch_size=16, optimizer=sgd(lr, momentum=0.9))
    federation = small_federation(net, local=local, **settings)
    recorder = TranscriptRecorder(folder, TranscriptSettings(last=keep or rounds), announce=False)
    run(federation, data, rounds, [*defenses, recorder], precision="32-true")
    return AuditContext(public_knowledge(federation, rounds), Transcript(folder), federation.data.membership)


def figure(finding, name):
    """A number of a finding by name."""
    return next(each for each in finding.figures if each.name == name)


def found(protocol, audit):
    """Findings by target and attack; none of them may have broken down."""
    results = {(each.conditions.attack, each.conditions.target): each for each in protocol.findings(audit)}
    for each in results.values():
        assert not each.failed, each.leakage
    return results
