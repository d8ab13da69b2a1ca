"""Clients that die, messages that are damaged, repeated or under the wrong key: noticed, named, and nothing is lost."""

from functools import cache

import pytest
import torch
from channel_kit import (
    ENCRYPTED,
    MASKED,
    MIXED,
    NET,
    SIZES,
    Damaging,
    Dying,
    Replaying,
    over,
    trained,
)
from federation_kit import Blobs, Recorder, initial, small_federation

from app.crypto.messages import SERVER, SigningKey
from app.crypto.paillier.encryption import EncryptionPool
from app.crypto.paillier.keys import generate
from app.crypto.paillier.sums import from_bytes
from app.crypto.secure_aggregation.server import AggregationServer
from app.federation.channels.integer_code import IntegerCode
from app.federation.channels.paillier import PaillierChannel
from app.federation.hooks import FederatedCallback
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation

LOST = (1, 4)
ROUNDING = 2.0**-18


class Absent(FederatedCallback):
    """Keeps clients out of the first round, with the plain channel: what the others' sum should be."""

    def __init__(self, clients):
        self.clients = clients

    def withdraws(self, federation, client):
        """Only in the first round."""
        return federation.plan.round == 0 and client in self.clients


@cache
def start():
    """The server's vector before the first round."""
    return initial(small_federation(net=NET, capacities=MIXED), Blobs(SIZES))


@cache
def without(*clients, rounds=1):
    """The end of a run with the plain channel whose first round these clients miss."""
    return trained(Absent(clients), rounds=rounds)


@pytest.mark.parametrize("step", ["keys", "shares", "masked"])
@pytest.mark.parametrize("bound", [True, False])
def test_clients_that_die_before_their_update_arrives(step, bound):
    """The sum is exactly that of the others, whichever step they die at, and the next round has them again."""
    with pytest.warns(UserWarning, match=f"{step} message of client 1: it did not arrive"):
        hidden = trained(over(Dying(LOST, step), MASKED, model_bound=bound), rounds=2)
    assert (hidden - without(*LOST, rounds=2)).abs().max() < 10 * ROUNDING


def test_clients_that_die_after_their_update_arrived():
    """Their updates are in the sum; the others' shares suffice to unmask it."""
    with pytest.warns(UserWarning, match="reveal message of client 4"):
        hidden = trained(over(Dying(LOST, "reveal"), MASKED))
    assert (hidden - without()).abs().max() <= ROUNDING


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "survivors", "reveal"])
def test_too_many_die(step):
    """Four of eight, where six are needed: the round is given up, the model stays, and the next round goes on."""
    given_up = []

    class Watching(Recorder):
        def on_server_update(self, trainer, federation, aggregate):
            """What the defense tells of the round."""
            given_up.append(defense.measurements()["secagg/given_up"])

    defense, watching = over(Dying((0, 1, 2, 3), step), MASKED), Watching()
    with pytest.warns(UserWarning, match="secure aggregation is given up") as caught:
        after_two = trained(defense, watching, rounds=2)
    assert given_up == [1, 0]
    assert any("threshold 6" in str(warning.message) for warning in caught)
    assert torch.equal(watching.started[1], start())
    assert not torch.equal(after_two, start())


def test_survivors_do_not_unmask_a_single_one():
    """One of the two clients behind the outer coordinates dies: the other one would be in the open."""
    settings = {"capacities": [1.0, 1.0, *[0.5] * 6]}
    with pytest.warns(UserWarning, match=r"fewer than 2 contributors.*\(1\) do not unmask"):
        hidden = trained(over(Dying([0], "masked"), SecureAggregation), **settings)
    assert torch.equal(hidden, start())
    allowed = over(Dying([0], "masked"), SecureAggregation, allow_singletons=True)
    with pytest.warns(UserWarning, match="did not arrive"):
        assert (trained(allowed, **settings) - trained(Absent([0]), **settings)).abs().max() <= ROUNDING


def test_a_server_cannot_put_itself_in_a_clients_place(monkeypatch):
    """It passes on keys in the name of client 1: nobody shares secrets with it, and the round is given up."""
    genuine = AggregationServer.collect_keys

    def swapped(self, messages):
        """Another identity signs the keys of client 1."""
        first, second, *others = genuine(self, messages)
        return [first, SigningKey(1).sign(self.session, self.round, "keys", SERVER, second.body), *others]

    monkeypatch.setattr(AggregationServer, "collect_keys", swapped)
    with pytest.warns(UserWarning, match="given up: the keys message of client 1 is rejected: the signature is not"):
        hidden = trained(MASKED())
    assert torch.equal(hidden, start())


def test_shares_that_the_server_exchanges_leave_their_senders_out(monkeypatch):
    """Client 0 gets what client 1 encrypted for client 2: named, and the sum is exactly that of the others."""
    genuine = AggregationServer.relay_shares

    def misdirected(self, messages):
        """Opened by nobody but client 2."""
        mail = genuine(self, messages)
        return mail | {0: mail[0] | {1: mail[2][1]}}

    monkeypatch.setattr(AggregationServer, "relay_shares", misdirected)
    with pytest.warns(UserWarning, match="shares message of client 1 is rejected: it does not open with the key that"):
        hidden = trained(MASKED())
    assert (hidden - without(1)).abs().max() <= ROUNDING


def test_sums_that_cannot_be_are_given_up(monkeypatch):
    """Client 2 masks values a thousand times as large as the range allows: the model is not spoiled."""
    genuine = IntegerCode.encode

    def large(self, update):
        return genuine(self, update) * (1000 if update.client == 2 else 1) + (2**30 if update.client == 2 else 0)

    monkeypatch.setattr(IntegerCode, "encode", large)
    with pytest.warns(UserWarning, match="sums are larger than their contributors' values can be"):
        hidden = trained(MASKED())
    assert torch.equal(hidden, start())


@pytest.mark.parametrize(("make", "step"), [(ENCRYPTED, "ciphertext"), (MASKED, "masked"), (MASKED, "shares")])
def test_a_damaged_message_is_asked_for_again(make, step):
    """One flipped bit: the signature does not fit, the client sends it once more, and nothing is lost."""
    with pytest.warns(UserWarning, match=f"{step} message of client 2: the signature.*asked for again"):
        hidden = trained(over(Damaging(2, step, times=1), make))
    assert (hidden - without()).abs().max() <= ROUNDING


@pytest.mark.parametrize(("make", "step"), [(ENCRYPTED, "ciphertext"), (MASKED, "masked")])
def test_a_message_that_stays_damaged_leaves_its_client_out(make, step):
    """Named; the sum is that of the others."""
    recorder = Recorder()
    with pytest.warns(UserWarning, match=f"{step} message of client 2: .*never arrived intact"):
        hidden = trained(over(Damaging(2, step, times=99), make), recorder)
    assert (hidden - without(2)).abs().max() <= ROUNDING
    assert 2 not in {message.client for message in recorder.messages}


@pytest.mark.parametrize(("make", "step"), [(ENCRYPTED, "ciphertext"), (MASKED, "masked"), (MASKED, "keys")])
def test_a_replayed_message_is_noticed(make, step):
    """Last round's ciphertext or mask is not taken for this one's."""
    with pytest.warns(UserWarning, match=f"{step} message of client 3: it belongs to another round"):
        hidden = trained(over(Replaying(3, step), make), rounds=2)
    assert torch.isfinite(hidden).all()
    assert (hidden - without(rounds=2)).abs().max() < 1, "a repeated mask would have left noise of any size"


class Tampering(FederatedCallback):
    """Does something to the channel when the last update has been sent."""

    kind = "attack"

    def __init__(self, act):
        self.act, self.messages = act, 0

    def on_message(self, trainer, federation, message):
        """After the last one."""
        self.messages += 1
        if self.messages == len(SIZES):
            self.act(federation.channel)


def test_an_update_under_another_key_is_left_out(monkeypatch):
    """Client 5 encrypts for somebody else, and signs that: the sum is that of the others."""
    other, genuine = generate(1024).public, PaillierChannel._sealed

    def sealed(self, client, dense):
        """Client 5 takes another key for the federation's."""
        if client != 5:
            return genuine(self, client, dense)
        known = (self._known, self._pool)
        self._known, self._pool = other, EncryptionPool(other, "short", 1, False)
        try:
            return genuine(self, client, dense)
        finally:
            self._known, self._pool = known

    monkeypatch.setattr(PaillierChannel, "_sealed", sealed)
    with pytest.warns(UserWarning, match="update of client 5 is left out: it is encrypted under another key"):
        hidden = trained(ENCRYPTED())
    assert (hidden - without(5)).abs().max() <= ROUNDING


def swap_key(channel):
    """Clients decrypt with the key of another federation."""
    channel._private = generate(1024)


def multiply(channel):
    """A ciphertext of the sum is hit."""
    number = channel._sum.positions[0]
    channel._sum._sums[number] = channel._sum._sums[number] * 3 % channel._public.square


def count_twice(channel):
    """The server adds a ciphertext once more."""
    channel._sum.add(channel._sum.positions[-1:], channel._sum.ciphertexts[-1:])


@pytest.mark.parametrize("act", [swap_key, multiply, count_twice])
def test_a_damaged_sum_is_given_up(act):
    """Every ciphertext counts its contributors: what is no sum of the updates is noticed, and the model stays."""
    with pytest.warns(UserWarning, match="encrypted sums are damaged, or belong to another key; the round is given up"):
        hidden = trained(ENCRYPTED(), Tampering(act))
    assert torch.equal(hidden, start())


def test_one_upload_in_place_of_the_sum_is_not_noticed(monkeypatch):
    """A limit of Paillier: raised to the number of clients, one client's upload counts as many contributors."""
    uploads, genuine = [], PaillierChannel._accept

    def kept(self, body, numbers):
        """The server keeps what arrives."""
        uploads.append((numbers.tolist(), from_bytes(self._public, body[len(self._public.fingerprint) // 2 :])))
        return genuine(self, body, numbers)

    def substitute(channel):
        """The sum of as many equal uploads."""
        for number, ciphertext in zip(*uploads[3], strict=True):
            channel._sum._sums[number] = pow(ciphertext, len(SIZES), channel._public.square)

    monkeypatch.setattr(PaillierChannel, "_accept", kept)
    recorder = Recorder()
    released = trained(ENCRYPTED(), Tampering(substitute), recorder, capacities=[1.0], weighting="uniform")
    _, victim, _ = recorder.updates[3]
    assert (released - victim).abs().max() <= ROUNDING, "the next model is one client's upload"


def test_paillier_states_whom_it_trusts():
    """The statement of every run names both limits: the key that every client has, and the substituted upload."""
    honest, colluding = Paillier().channel_statement(None), Paillier(colluding=True).channel_statement(None)
    notes = " ".join(honest.notes)
    assert "with the help of a single client, the server opens every single upload" in notes
    assert "hands clients one upload as the sum" in notes
    assert "server that follows the protocol" in honest.hides
    assert "all clients" in honest.trusts
    assert "it adds up what it received" in honest.trusts
    assert colluding.hides.startswith("nothing")
