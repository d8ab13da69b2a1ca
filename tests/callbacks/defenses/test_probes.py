"""Networks in which clients try the model they received leave no trace, and workers do not share them."""

from functools import partial
from threading import Thread

import torch
from federation_kit import Blobs, run, small_federation

from app.models import MLP
from callbacks.defenses.tripwire import Tripwire


class Probing(Tripwire):
    """Tries the model of every client twice, and from a thread of its own."""

    def __init__(self):
        super().__init__(probe_samples=4)
        self.ratios, self.states, self.nets = [], [], []

    def on_client_start(self, trainer, federation, client):
        """Before local training."""
        before = torch.get_rng_state()
        self.ratios.append([self._gradient_ratio(federation, client) for _ in range(2)])
        self.states.append(torch.equal(before, torch.get_rng_state()))
        own, rate = [], federation.plan.rate(client.client)
        worker = Thread(target=lambda: own.append(self._nets.of(rate)[0]))
        worker.start()
        worker.join()
        self.nets.append((self._nets.of(rate)[0], own[0], client.net))


def probed():
    """A round of clients whose network has dropout."""
    probing = Probing()
    net = partial(MLP, hidden=(8, 6), dropout=0.5)
    run(small_federation(net, capacities=[1.0, 0.5, 0.5]), Blobs((5, 8, 11)), 1, [probing])
    return probing


def test_nothing_is_drawn():
    """The same samples give the same number, dropout or not, and torch's own generator stays where it was."""
    probing = probed()
    assert all(one == other > 0 for one, other in probing.ratios)
    assert all(probing.states)


def test_every_worker_has_its_own_network():
    """One for each width; never the one that is trained."""
    probing = probed()
    assert all(len({id(net) for net in nets}) == 3 for nets in probing.nets)
    assert len({id(net) for net, _, _ in probing.nets}) == 2
    assert probing._nets is None
