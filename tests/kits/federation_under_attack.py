"""Small federations to attack: random labels, so that whatever is learnt of them is memorised."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from federation_kit import FederatedModule, LocalTraining, make_trainer, sgd

from app.attacks.audit_context import AuditContext
from app.attacks.membership.catalogue import make_attack
from app.attacks.protocols.audit import Audit, AuditSettings
from app.attacks.shadows.shadow_store import ShadowSettings
from app.common.seeding import torch_generator
from app.federation.hooks import FederatedCallback
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.models import MLP
from callbacks.attacks.membership_inference import public_knowledge
from datamodules import FederatedDataModule, Holdout, Iid, RawData
from datamodules.split import Membership

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


def trained(folder, rounds=2, lr=0.5, epochs=15, callbacks=(), data=None, keep=None, **settings):
    """A federation whose clients fit their samples, and its transcript."""
    settings.setdefault("local", LocalTraining(batch_size=20, epochs=epochs, optimizer=sgd(lr)))
    settings.setdefault("net", partial(MLP, hidden=(32,)))
    federation = FederatedModule(executor="sequence", **settings)
    recorder = TranscriptRecorder(folder, TranscriptSettings(*(keep or (2, []))), announce=False)
    trainer = make_trainer(rounds, "32-true", [*callbacks, recorder])
    trainer.fit(federation, datamodule=data or RandomLabels())
    return federation, Transcript(folder)


def audit_of(federation, transcript, **changes):
    """The federation under attack."""
    knowledge = public_knowledge(federation, federation.trainer.current_epoch)
    return replace(AuditContext(knowledge, transcript, federation.data.membership), **changes)


def audited(audit, *names, attacks=None, **settings):
    """Findings by label; no controls unless asked for."""
    settings.setdefault("controls", "skip")
    settings.setdefault("shadows", FEW)
    chosen = attacks or [make_attack(name) for name in names]
    found = list(Audit(chosen, AuditSettings(**settings)).findings(audit))
    by_label = {finding.conditions.label: finding for finding in found}
    assert len(by_label) == len(found), "no two results have one label"
    return by_label


class Guarded(Transcript):
    """A transcript that gives out the allowed views only."""

    def __init__(self, inner, allowed):
        super().__init__(inner._folder)
        self._allowed = allowed

    def __getattribute__(self, name):
        if name.endswith("_view") and name not in object.__getattribute__(self, "_allowed"):
            raise AssertionError(f"{name} is out of reach")
        return super().__getattribute__(name)


class Again:
    """Repeats a small federation with other members, in memory; `defend` makes its defenses."""

    fingerprint = "again"

    def __init__(self, attacked, defend=tuple):
        self.attacked, self.defend, self.runs = attacked, defend, []

    def run(self, repetitions):
        """Train them and keep their transcripts."""
        for one in repetitions:
            self.train(one.number, one.members, one.rounds, one.folder)
            one.finish()

    def train(self, number, members, rounds, folder):
        """Train one."""
        self.runs.append((number, [set(own.tolist()) for own in members]))
        data = RandomLabels()
        empty = np.empty(0, dtype=np.int64)
        sets = Membership(tuple(members), (empty,) * 3, empty, empty, self.attacked.data.membership.test)
        data.redealt(self.attacked.data, sets)
        settings = {"data": data, "seed": 100 + number, "keep": (0, list(rounds)), "callbacks": self.defend()}
        trained(folder, rounds=rounds[-1], **settings)


class Zeroing(FederatedCallback):
    """Zeroes the share of an upload's parameters that moved least; or sends what was received, without saying so."""

    def __init__(self, share=0.7, value="zero"):
        self.share, self.value = share, value

    def traits(self):
        """What an attacker may adapt to."""
        return frozenset({"pruned-uploads"}) if self.value == "zero" else frozenset()

    def on_client_update(self, trainer, federation, update):
        """Give up what moved least."""
        moves = (update.vector - update.received)[: update.trainable].abs()
        coordinates = moves.argsort()[: int(self.share * len(moves))]
        update.vector[coordinates] = 0.0 if self.value == "zero" else update.received[coordinates]


class Noising(FederatedCallback):
    """Adds noise to what clients send, or to what the server makes of it."""

    def __init__(self, deviation=0.3, where="own-noise"):
        self.deviation, self.where = deviation, where

    def traits(self):
        """What an attacker may adapt to."""
        return frozenset({self.where})

    def on_client_update(self, trainer, federation, update):
        """Fresh noise for every upload."""
        if self.where == "own-noise":
            self._add(federation, update.vector[: update.trainable], update.round, update.client)

    def on_server_update(self, trainer, federation, aggregate):
        """Fresh noise for every round."""
        if self.where == "server-noise":
            self._add(federation, aggregate.mean[: federation.space.trainable], federation.plan.round)

    def _add(self, federation, vector, *key):
        generator = torch_generator(federation.seed, "test-noise", *key)
        vector += self.deviation * torch.randn(len(vector), generator=generator)


class Different(FederatedCallback):
    """Says that clients train differently, and does nothing."""

    def traits(self):
        """What an attacker may adapt to."""
        return frozenset({"trains-differently"})
