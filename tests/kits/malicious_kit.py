"""Federations small enough that a malicious server's arithmetic can be checked to the last digits."""

from functools import partial

import numpy as np
import torch
from federation_kit import Shares, make_trainer, sgd, small_federation

from app.federation.local_training import LocalTraining
from app.federation.submodels import FedRolex, Prefix
from app.metrics.reconstruction import Reconstruction
from app.models import MLP
from callbacks.attacks.malicious_server import MaliciousServer
from datamodules import FederatedDataModule, Holdout, RawData

HIDDEN = 400
SIDE = 8
CLASSES = 10
COHORTS = [1.0, 0.5, 0.25]


class Noise(FederatedDataModule):
    """Images of uniform noise, of which no two are alike."""

    def __init__(self, sizes=(4, 4, 4), augment=None, own=0):
        """`own` further images belong to the attacker."""
        self.pool = sum(sizes) + own
        super().__init__(Shares(sizes), Holdout(0.0, own / self.pool, 0.0), augment)

    def load(self) -> RawData:
        """Pixels in 0..1, so that rows of trap weights see no negative values."""
        draw = np.random.default_rng(3)
        count = self.pool + 30
        images = torch.from_numpy(draw.random((count, SIDE, SIDE, 1))).float()
        labels = torch.from_numpy(draw.integers(0, CLASSES, count))
        names = tuple(map(str, range(CLASSES)))
        pool, tests = (images[: self.pool], labels[: self.pool]), (images[self.pool :], labels[self.pool :])
        return RawData(*pool, *tests, names, (0.0,), (1.0,))


def attacked(
    attack,
    sizes=(4, 4, 4),
    capacities=COHORTS,
    method=None,
    rounds=2,
    optimizer=None,
    callbacks=(),
    server=None,
    precision="64-true",
    hidden=HIDDEN,
    local=None,
    data=None,
    trainer=None,
    checkpoint=None,
    server_optimizer=None,
    net=None,
    **settings,
):
    """Train under a malicious server; returns it, its results and the federation."""
    local = local or LocalTraining(batch_size=1000, optimizer=optimizer or sgd(0.05))
    method = method if method is not None else (FedRolex() if attack.rounds == 2 else Prefix())
    if server_optimizer is not None:
        settings["server"] = server_optimizer
    federation = small_federation(
        net or partial(MLP, hidden=(hidden,)), capacities=capacities, method=method, local=local, **settings
    )
    server = server or MaliciousServer(attack)
    options = {"limit_val_batches": 0, **(trainer or {})}
    given = callbacks if server in callbacks else [*callbacks, server]
    make_trainer(rounds, precision, callbacks=given, **options).fit(
        federation, datamodule=data or Noise(sizes), ckpt_path=checkpoint, weights_only=True
    )
    found = federation.results if federation.trainer.is_global_zero else list(server.run(federation))
    return server, found, federation


def only(found) -> Reconstruction:
    """The scores of the only result."""
    assert len(found) == 1
    assert isinstance(found[0].result, Reconstruction)
    return found[0].result
