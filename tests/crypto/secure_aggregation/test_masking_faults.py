"""What goes wrong on the way, or is asked for dishonestly: it is noticed, and the one concerned is named."""

from dataclasses import replace

import numpy as np
import pytest
from masking_kit import Federation, plain_sum, whole

from app.crypto.messages import SERVER, RejectedMessageError, SigningKey, Transport
from app.crypto.secure_aggregation.client import AbortedRoundError
from app.crypto.secure_aggregation.secret_sharing import HeldShare, SecretKind, Share, pack, read

CLIENTS = [0, 1, 2, 3, 4]
LAYOUT = whole(CLIENTS, 20, 3)
VALUES = {client: np.arange(20) * (client - 2) for client in CLIENTS}


class Faulty(Transport):
    """A transport that spoils the messages of client 2 in one step, always or the first time only."""

    def __init__(self, step, spoil, always=True):
        self.step, self.spoil, self.always, self.done = step, spoil, always, False

    def carry(self, message):
        """The message, spoiled where it is one of those."""
        if (message.step, message.sender) != (self.step, 2) or (self.done and not self.always):
            return message
        self.done = True
        return self.spoil(message)


def bit_flip(message):
    """One bit of the body turned over."""
    return replace(message, body=bytes([message.body[0] ^ 1]) + message.body[1:])


def lost(_signed):
    """Nothing arrives."""
    return


def forged(message):
    """The same message signed by somebody else in the client's name."""
    return SigningKey(2).sign(message.session, message.round, message.step, message.recipient, message.body)


REASONS = {
    bit_flip: "the signature is not that of client 2",
    forged: "the signature is not that of client 2",
    lost: "it did not arrive",
}
STEPS = ["keys", "shares", "masked", "survivors", "reveal"]


def begun(people=None, dies=None):
    """A round in which secrets are shared."""
    round_ = (people or Federation(CLIENTS)).round(0, LAYOUT, VALUES, dies=dies)
    round_.keys()
    round_.shares()
    return round_


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spoil", REASONS, ids=lambda spoil: spoil.__name__)
def test_faulty_client_is_left_out_and_named(step, spoil):
    """Whatever happens to the messages of client 2 in any step, the others get their exact sum."""
    people = Federation(CLIENTS, Faulty(step, spoil))
    total = people.round(4, LAYOUT, VALUES).run()
    others = CLIENTS if step in ("survivors", "reveal") else [0, 1, 3, 4]
    assert total.tolist() == plain_sum(LAYOUT, VALUES, others).tolist()
    failures = people.delivery.take_failures()
    assert {(one.round, one.client, one.step, one.reason, one.repaired) for one in failures} == {
        (4, 2, step, REASONS[spoil], False)
    }
    assert len(failures) == 2


@pytest.mark.parametrize("step", STEPS)
def test_fault_that_passes_is_repaired(step):
    """Asked again, the message arrives: nobody is left out."""
    people = Federation(CLIENTS, Faulty(step, bit_flip, always=False))
    total = people.round(0, LAYOUT, VALUES).run()
    assert total.tolist() == plain_sum(LAYOUT, VALUES, CLIENTS).tolist()
    assert {(one.client, one.step, one.repaired) for one in people.delivery.failures} == {(2, step, True)}


def test_replayed_masked_vector_is_noticed():
    """The masked vector of the round before, sent again instead of the new one."""
    old = {}

    def replay(message):
        return old.setdefault("masked", message)

    people = Federation(CLIENTS, Faulty("masked", replay))
    assert people.round(0, LAYOUT, VALUES).run().tolist() == plain_sum(LAYOUT, VALUES, CLIENTS).tolist()
    assert people.delivery.take_failures() == []
    assert people.round(1, LAYOUT, VALUES).run().tolist() == plain_sum(LAYOUT, VALUES, [0, 1, 3, 4]).tolist()
    assert {(one.client, one.reason) for one in people.delivery.take_failures()} == {
        (2, "it belongs to another round (replayed)")
    }


def test_share_that_was_tampered_with_is_named():
    """The server turns one bit of the shares of client 2 over: client 4 notices, client 2 is left out."""
    round_ = Federation(CLIENTS).round(0, LAYOUT, VALUES)
    roster = round_.keys()
    mail = round_.server.relay_shares([one.share_secrets(roster) for one in round_.clients.values()])
    mail[4][2] = mail[4][2][:-1] + bytes([mail[4][2][-1] ^ 1])
    rejected = [error for client, one in round_.clients.items() for error in one.receive_shares(mail[client])]
    assert [(error.client, error.step) for error in rejected] == [(2, "shares")]
    assert rejected[0].reason == "it does not open with the key that client 4 expects"
    with pytest.raises(AbortedRoundError, match="client 4 holds no shares of clients 2"):
        round_.clients[4].set_peers(round_.server.masking_clients)
    round_.server.exclude(error.client for error in rejected)
    with pytest.raises(AbortedRoundError, match="client 2 is not among the 4 clients that go on"):
        round_.clients[2].set_peers(round_.server.masking_clients)
    for client in round_.server.masking_clients:
        round_.clients[client].set_peers(round_.server.masking_clients)
    round_.masked()
    total = round_.server.unmask(round_.reveals())
    assert total.tolist() == plain_sum(LAYOUT, VALUES, [0, 1, 3, 4]).tolist()


def test_shares_are_for_one_recipient_and_come_once():
    """Shares for client 1 do not open at client 4, nor as those of client 3; a stranger's are not looked at."""
    round_ = Federation([*CLIENTS, 9]).round(0, LAYOUT, VALUES)
    roster = round_.keys()
    for one in round_.clients.values():
        one.share_secrets(roster)
    share = round_.clients[2]._sealed(1, pack([HeldShare(2, secret, Share(2, 3, 7)) for secret in SecretKind]))
    for reader, sender in ((4, 2), (1, 3)):
        (error,) = round_.clients[reader].receive_shares({sender: share})
        assert (error.client, error.reason) == (sender, f"it does not open with the key that client {reader} expects")
    (error,) = round_.clients[1].receive_shares({9: share})
    assert (error.client, "not in the roster" in error.reason) == (9, True)
    assert round_.clients[1].receive_shares({2: share}) == []
    (error,) = round_.clients[1].receive_shares({2: share})
    assert "came before" in error.reason


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + bytes(4), lambda _: b""])
def test_shares_of_a_wrong_length_leave_their_client_out(change):
    """They come apart at the wrong places: the others name client 2, and get their exact sum."""

    def resized(message):
        return signer.sign(message.session, message.round, message.step, message.recipient, change(message.body))

    people = Federation(CLIENTS, Faulty("shares", resized))
    signer, round_ = people.identities[2], people.round(0, LAYOUT, VALUES)
    assert round_.run().tolist() == plain_sum(LAYOUT, VALUES, [0, 1, 3, 4]).tolist()
    assert {(error.client, error.step) for error in round_.rejected} == {(2, "shares")}


def test_shares_that_are_not_the_recipients_are_rejected():
    """Client 2 encrypts honestly, but the shares it sends are of another client or for another point."""
    round_ = Federation(CLIENTS).round(0, LAYOUT, VALUES)
    roster = round_.keys()
    for one in round_.clients.values():
        one.share_secrets(roster)
    good = [HeldShare(2, secret, Share(2, 3, 7)) for secret in SecretKind]
    for shares in (
        good[:1],
        good[::-1],
        [good[0], HeldShare(2, SecretKind.SELF_MASK, Share(3, 3, 7))],
        [good[0], HeldShare(2, SecretKind.SELF_MASK, Share(2, 2, 7))],
        [good[0], HeldShare(3, SecretKind.SELF_MASK, Share(2, 3, 7))],
    ):
        (error,) = round_.clients[1].receive_shares({2: round_.clients[2]._sealed(1, pack(shares))})
        assert (error.client, error.step) == (2, "shares")
    (error,) = round_.clients[1].receive_shares({2: round_.clients[2]._sealed(1, b"no shares")})
    assert "not those of shares" in error.reason
    assert round_.clients[1].receive_shares({2: round_.clients[2]._sealed(1, pack(good))}) == []


def test_never_both_secrets_of_a_client():
    """Survivors' self masks and lost clients' keys; a second list of survivors is not signed, either way round."""
    round_ = begun()
    round_.masked()
    everybody = [one.sign_survivors(CLIENTS) for one in round_.clients.values()]
    with pytest.raises(AbortedRoundError, match="client 0 has signed another list of survivors"):
        round_.clients[0].sign_survivors([0, 1, 2, 4])
    assert round_.clients[0].sign_survivors(CLIENTS) == everybody[0]
    shares = read(0, "reveal", round_.clients[0].reveal_shares(everybody).body)
    assert [(held.owner, held.secret) for held in shares] == [(client, SecretKind.SELF_MASK) for client in CLIENTS]


def test_refused_list_does_not_count_as_signed():
    """The client signs an honest list afterwards, and reveals the other secret of the client that is gone."""
    round_ = begun(dies={4: "masked"})
    round_.masked()
    zero = round_.clients[0]
    with pytest.raises(AbortedRoundError):
        zero.sign_survivors([0, 1])
    with pytest.raises(AbortedRoundError, match="client 0 has not signed a list of survivors"):
        zero.reveal_shares([])
    shares = read(0, "reveal", round_.reveals()[0].body)
    assert [(held.owner, held.secret) for held in shares] == [
        *((client, SecretKind.SELF_MASK) for client in (0, 1, 2, 3)),
        (4, SecretKind.MASKING_KEY),
    ]


def test_requests_that_cannot_be_honest_are_refused():
    """Too few survivors, the client itself not among them, a client outside the peers, a client that sent nothing."""
    round_ = begun(dies={4: "shares", 3: "masked"})
    round_.masked()
    with pytest.raises(AbortedRoundError, match="2 clients survived, threshold 3; missing: 2, 3"):
        round_.clients[0].sign_survivors([0, 1])
    with pytest.raises(AbortedRoundError, match="client 0 sent no masked values or is not counted"):
        round_.clients[0].sign_survivors([1, 2, 3])
    with pytest.raises(AbortedRoundError, match="clients 4 are not among the masking clients"):
        round_.clients[0].sign_survivors([0, 1, 2, 4])
    with pytest.raises(AbortedRoundError, match="client 3 sent no masked values"):
        round_.clients[3].sign_survivors([0, 1, 2, 3])


def test_a_mask_is_used_once():
    """A second vector under the same mask would give the difference away."""
    round_ = begun()
    round_.masked_by(0)
    with pytest.raises(AbortedRoundError, match="a mask is used once"):
        round_.masked_by(0)


def test_floats_are_refused_and_cost_no_mask():
    """Nothing was sent, so that the integers may still be masked; other lengths are refused as well."""
    round_ = begun()
    with pytest.raises(TypeError, match="masks on floats do not cancel exactly"):
        round_.clients[0].mask(np.zeros(20))
    with pytest.raises(ValueError, match="for 20 positions"):
        round_.clients[0].mask(np.zeros(19, dtype=int))
    round_.masked()
    assert round_.server.unmask(round_.reveals()).tolist() == plain_sum(LAYOUT, VALUES, CLIENTS).tolist()


def test_steps_have_an_order():
    """No masks before the peers are known, no second set of shares, no second agreement."""
    round_ = Federation(CLIENTS).round(0, LAYOUT, VALUES)
    roster = round_.keys()
    with pytest.raises(AbortedRoundError, match="does not know yet whom it masks with"):
        round_.masked_by(0)
    round_.shares()
    with pytest.raises(AbortedRoundError, match="shared once"):
        round_.clients[0].share_secrets(roster)
    with pytest.raises(AbortedRoundError, match="has its peers already"):
        round_.clients[0].set_peers(CLIENTS)


def test_small_or_foreign_rosters_are_refused():
    """Fewer clients than the threshold, a roster without the client, one with strangers; nobody goes on with few."""
    people = Federation([*CLIENTS, 9])
    round_ = people.round(0, LAYOUT, VALUES)
    roster = round_.keys()
    with pytest.raises(AbortedRoundError, match="2 clients advertised their keys, threshold 3"):
        round_.clients[0].share_secrets(roster[:2])
    with pytest.raises(AbortedRoundError, match="the roster that client 0 got"):
        round_.clients[0].share_secrets(roster[1:4])
    stranger = people.identities[9].sign(round_.session, 0, "keys", SERVER, roster[1].body)
    with pytest.raises(AbortedRoundError, match="the roster that client 0 got"):
        round_.clients[0].share_secrets([*roster, stranger])
    round_.server.relay_shares([round_.clients[0].share_secrets(roster)])
    round_.server.relay_shares([round_.clients[1].share_secrets(roster)])
    assert round_.server.masking_clients == []
    with pytest.raises(AbortedRoundError, match="2 clients shared their secrets, threshold 3"):
        round_.clients[0].set_peers([0, 1])


def test_server_takes_each_vector_once_and_whole():
    """Twice, too short, of a client that did not settle, for another step, of another round, or without signature."""
    people = Federation([*CLIENTS, 9])
    round_ = begun(people, dies={4: "shares"})
    masked, session = round_.masked_by(0), round_.session
    round_.server.add_masked(masked)
    before = round_.server.sum.copy()

    def signed(client, session=session, number=0, step="masked", recipient=SERVER, body=masked.body):
        return people.identities[client].sign(session, number, step, recipient, body)

    for message, reason in [
        (masked, "arrived before"),
        (signed(1, body=masked.body[:-4]), "76 bytes, not the 80 of 20 positions"),
        (signed(4), "client 4 is not among the masking clients"),
        (signed(1, step="reveal"), "another step"),
        (signed(1, recipient=3), "another recipient"),
        (signed(1, session=bytes(16)), "replayed"),
        (signed(1, number=1), "replayed"),
        (signed(9), "client 9 is not in this round"),
        (replace(masked, sender=1), "the signature is not that of client 1"),
    ]:
        with pytest.raises(RejectedMessageError, match=reason) as caught:
            round_.server.add_masked(message)
        assert caught.value.client == message.sender
    assert (round_.server.sum == before).all()
    assert round_.server.arrived == [0]


def test_reveals_that_do_not_fit_are_noticed():
    """Garbage, shares of another point, too few shares, and a client whose vector did not arrive."""
    round_ = begun(dies={4: "masked"})
    round_.masked()
    good = round_.reveals()

    def instead(shares):
        body = shares if isinstance(shares, bytes) else pack(shares)
        return [round_.clients[0]._signed("reveal", SERVER, body), *good[1:]]

    first = read(0, "reveal", good[0].body)
    with pytest.raises(RejectedMessageError, match=r"reveal message of client 0 .* not those of shares"):
        round_.server.unmask(instead(b"abc"))
    with pytest.raises(RejectedMessageError, match=r"reveal message of client 0 .* another client"):
        round_.server.unmask(instead(read(1, "reveal", good[1].body)))
    with pytest.raises(AbortedRoundError, match="self mask of client 3 cannot be put together: 2 shares of at least 3"):
        round_.server.unmask([*instead([held for held in first if held.owner != 3])[:1], *good[1:3]])
    with pytest.raises(RejectedMessageError, match="the signature is not that of client 1"):
        round_.server.unmask([replace(good[0], sender=1), *good[1:]])
    outsider = round_.clients[4]._signed("reveal", SERVER, b"")
    with pytest.raises(RejectedMessageError, match="its masked vector did not arrive"):
        round_.server.unmask([*good, outsider])
    assert round_.server.unmask(good).tolist() == plain_sum(LAYOUT, VALUES, [0, 1, 2, 3]).tolist()


def test_messages_show_no_secrets():
    """Neither the repr of a reveal nor that of its shares holds a share's value."""
    round_ = begun()
    round_.masked()
    reveal = round_.reveals()[0]
    held = read(0, "reveal", reveal.body)[0]
    assert str(held.share.value) not in repr(held)
    assert "body" not in repr(reveal)
