"""Small federations under a regulariser, at two widths."""

from federation_kit import LINEAR, TINY_MLP, Blobs, run, sgd, small_federation

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.models import DataShape
from datamodules import Holdout

HALVES = [1.0, 0.5, 0.5]
LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2), epochs=2)
ROOMY = DataShape(1, 16, 16, 4)


def trained(*defenses, net=TINY_MLP, rounds=2, data=None, local=LOCAL, precision="64-true", **settings):
    """Final vector of a federation of three clients, one of them wide."""
    settings.setdefault("capacities", HALVES)
    if data is None:
        data = Blobs((5, 8, 11)) if net in (TINY_MLP, LINEAR) else Blobs((5, 8, 11), ROOMY)
    federation = small_federation(net, local=local, **settings)
    return run(federation, data, rounds, defenses, precision=precision)


def with_reference(sizes=(8, 12, 16), fraction=0.25, **settings):
    """Data whose clients keep a part of their share as a reference set."""
    data = Blobs(sizes, **settings)
    data.holdout = Holdout(data.holdout.clients, 0.0, 0.0, fraction)
    return data


class Losses(FederatedCallback):
    """Keeps every batch, its logits and the loss so far."""

    vectorisable = True

    def __init__(self):
        self.seen = []

    def client_loss(self, federation, client, batch, logits, loss):
        """Kept."""
        self.seen.append((batch, logits.detach(), loss.detach()))
        return loss
