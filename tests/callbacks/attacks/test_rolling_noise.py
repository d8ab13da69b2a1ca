"""The Rolling-Model attack's cover noise: one draw per client, and what it leaves of the attacker's subtraction."""

import pytest
import torch
from malicious_kit import HIDDEN, attacked

from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.federation.hooks import FederatedCallback
from app.federation.submodels import ChannelSubset

NOISE, FILL = 0.3, 0.25
FIRST = HIDDEN * 64
"""Coordinates of the first layer's weights, in the server's order."""

FORGOTTEN = RollingModel(noise=NOISE, noised="first-layer", own_noise="forgotten")


class Received(FederatedCallback):
    """Keeps what every client received and returned in the second round, in vectors of the server's size."""

    kind = "recorder"

    def __init__(self):
        self.models, self.returned, self.held = {}, {}, {}

    def on_client_update(self, trainer, federation, update):
        """Coordinates that the client does not have stay 0."""
        if update.round == 1:
            for vectors, own in ((self.models, update.received), (self.returned, update.vector)):
                vectors[update.client] = torch.zeros(federation.space.size, dtype=torch.float64)
                vectors[update.client][update.index] = own.double()
            self.held[update.client] = torch.zeros(federation.space.size, dtype=torch.bool)
            self.held[update.client][update.index] = True


def noise_of(attack, sizes=(4, 4, 4), capacities=(1.0, 0.5, 0.25), **settings):
    """The recorder, the noise of every other client in the second round, and the server."""
    recorder = Received()
    server, _, _ = attacked(attack, sizes, list(capacities), callbacks=(recorder,), **settings)
    others = set(recorder.models) - set(server._isolated.clients)
    return recorder, {client: recorder.models[client] - FILL for client in sorted(others)}, server


def test_every_other_client_has_noise_of_its_own():
    """Uniform within 30 % of the constant and uncorrelated where two clients hold the same weights."""
    recorder, noise, _ = noise_of(RollingModel(noise=NOISE))
    shared = recorder.held[0] & recorder.held[1]
    wide, narrow = noise[0][shared], noise[1][shared]
    assert wide.abs().max() <= NOISE * FILL
    assert wide.std() == pytest.approx(NOISE * FILL / 3**0.5, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([wide, narrow]))[0, 1])) < 0.03


def test_clients_of_one_width_differ_too():
    """The draw is keyed by the client, not by its submodel."""
    _, noise, _ = noise_of(RollingModel(noise=NOISE), (2, 2, 2), (1.0, 1.0, 0.25))
    assert float(torch.corrcoef(torch.stack([noise[0], noise[1]]))[0, 1]) < 0.03


@pytest.mark.parametrize("method", [None, ChannelSubset.preset("USR")], ids=["moved-window", "random-submodels"])
def test_forgotten_noise_is_the_error_of_the_public_algebra(method):
    """n avg2 - (n - m) avg1 less the traps: the target's change plus the others' own noise, no more and no less.

    In the first layer nothing else moves: behind a constant output layer no gradient reaches it.
    """
    scope = RollingModel(noise=NOISE, noised="first-layer", own_noise="forgotten", scope="node" if method else "update")
    recorder, noise, server = noise_of(scope, method=method)
    update = server._isolated
    first = update.index < FIRST
    index, [target] = update.index[first], update.clients
    change = (recorder.returned[target] - recorder.models[target])[index]
    left = sum((noise[client] * recorder.held[client])[index] for client in noise)
    torch.testing.assert_close(update.change[first], change + left, rtol=0, atol=1e-9)
    both = recorder.held[0][index] & recorder.held[1][index]
    assert left[both].std() == pytest.approx(2**0.5 * NOISE * FILL / 3**0.5, rel=0.05), "not twice one draw's"


def test_remembered_noise_is_subtracted_for_every_client():
    """What each client was sent goes out again, also where their submodels differ."""
    for settings in ({}, {"sizes": (2,) * 5, "capacities": (1.0, 1.0, 0.5, 0.25, 0.25)}):
        _, _, server = noise_of(RollingModel(noise=NOISE, noised="first-layer"), **settings)
        assert server._isolation_error <= 1e-10


def test_noise_is_the_same_however_clients_are_trained():
    """One by one or in blocks: keyed by seed, round and client."""
    one, blocks = (noise_of(FORGOTTEN, block_size=size)[1] for size in (1, 3))
    assert all(torch.equal(one[client], blocks[client]) for client in one)
