"""A server that does not follow the protocol of secure aggregation, and clients that hand out wrong shares."""

from dataclasses import replace

import numpy as np
import pytest
from masking_kit import NARROW, Federation, plain_sum, whole

from app.crypto.contributors import Contributors
from app.crypto.messages import SERVER, RejectedMessageError, SignedMessage, SigningKey
from app.crypto.secure_aggregation.agreement import KeyPair, PublicKeys, aead_encrypt, domain_label
from app.crypto.secure_aggregation.client import AggregationClient
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.rules import ClientRules
from app.crypto.secure_aggregation.secret_sharing import (
    AbortedRoundError,
    HeldShare,
    SecretKind,
    Share,
    pack,
    read,
    split,
)

CLIENTS = [0, 1, 2, 3, 4]
LAYOUT = whole(CLIENTS, 20, 4)
VALUES = {client: np.arange(20) * (client - 2) for client in CLIENTS}
PEOPLE = Federation(CLIENTS)


def invented(round_, client):
    """Keys of the server's own making in a client's name, signed with a key of its own making."""
    pairs = KeyPair(client), KeyPair(client)
    keys = PublicKeys(pairs[0].public, pairs[1].public, bytes(32))
    return pairs, SigningKey(client).sign(round_.session, round_.number, "keys", SERVER, keys.to_bytes())


def test_a_roster_of_invented_clients_is_refused():
    """With the private keys of all its peers, the server could open the victim's shares and subtract its masks."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES)
    victim = round_.clients[0]
    fake = [invented(round_, client)[1] for client in CLIENTS[1:]]
    with pytest.raises(RejectedMessageError, match=r"keys message of client 1 .* signature is not that of client 1"):
        victim.share_secrets([victim.advertise_keys(), *fake])
    unsigned = [SignedMessage(one.session, 1, "keys", one.sender, SERVER, one.body, b"no signature") for one in fake]
    with pytest.raises(RejectedMessageError, match="signature is not that of client 1"):
        victim.share_secrets([victim.advertise_keys(), *unsigned])


def test_one_invented_client_among_honest_ones_is_refused():
    """One is enough to learn a share of everybody's secrets."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES)
    honest = round_.keys()
    with pytest.raises(RejectedMessageError, match="keys message of client 3"):
        round_.clients[0].share_secrets([*honest[:3], invented(round_, 3)[1], honest[4]])


def test_keys_of_another_round_are_refused():
    """The server may know the masking keys of clients that dropped out of an earlier round."""
    earlier = PEOPLE.round(1, LAYOUT, VALUES).keys()
    round_ = PEOPLE.round(2, LAYOUT, VALUES)
    own = round_.keys()[0]
    with pytest.raises(RejectedMessageError, match=r"client 1 .* another round \(replayed\)"):
        round_.clients[0].share_secrets([own, *earlier[1:]])


def test_a_second_identity_key_of_a_client_is_refused():
    """The registry is fixed before the run: nobody replaces a key in it."""
    with pytest.raises(ValueError, match="client 3 is enrolled with another key"):
        PEOPLE.registry.enrol(3, SigningKey(3).public)


def test_shares_without_signature_are_refused():
    """By the server, on whose way to the clients they would be taken for those of client 1."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES)
    message = round_.clients[1].share_secrets(round_.keys())
    unsigned = replace(message, signature=b"no signature at all")
    with pytest.raises(RejectedMessageError, match=r"shares message of client 1 .* signature is not that of client 1"):
        round_.server.relay_shares([unsigned])
    elsewhere = PEOPLE.identities[1].sign(round_.session, 1, "shares", 0, message.body)
    with pytest.raises(RejectedMessageError, match=r"shares message of client 1 .* meant for another recipient"):
        round_.server.relay_shares([elsewhere])


THREE = whole(CLIENTS, 20, 3)


def fabricated(round_, mail):
    """Shares of the server's own making, encrypted with the victim's public key and a key of its own."""
    about = domain_label("shares", round_.session, round_.number, 1, 0)
    key = KeyPair(1).agree(round_.server.roster[0].encryption, about)
    shares = [HeldShare(1, secret, split(bytes(32), 5, 3)[THREE.points[0] - 1]) for secret in SecretKind]
    mail[0][1] = aead_encrypt(key, pack(shares), about)


def misdirected(_round, mail):
    """What client 1 encrypted for client 2."""
    mail[0][1] = mail[2][1]


def exchanged(_round, mail):
    """What client 2 encrypted for the victim as if it came from client 1, and the other way round."""
    mail[0][1], mail[0][2] = mail[0][2], mail[0][1]


def reflected(_round, mail):
    """What the victim itself encrypted for client 1."""
    mail[0][1] = mail[1][0]


def replayed(round_, mail):
    """What client 1 encrypted for the victim in a round before, with another session and the same number."""
    earlier = PEOPLE.round(round_.number, THREE, VALUES)
    advertised = earlier.keys()
    mail[0][1] = earlier.server.relay_shares([earlier.clients[1].share_secrets(advertised)])[0][1]


def emptied(_round, mail):
    """Nothing under the name of client 1."""
    mail[0][1] = b""


@pytest.mark.parametrize("lie", [fabricated, misdirected, exchanged, reflected, replayed, emptied])
def test_shares_that_the_server_changes_are_refused(lie):
    """The victim, client 0, names whose they should have been; the sum is exactly that of the others."""
    round_ = PEOPLE.round(1, THREE, VALUES)
    genuine = round_.server.relay_shares

    def lying(messages):
        """What client 0 gets is not what its peers sent."""
        lie(round_, mail := genuine(messages))
        return mail

    round_.server.relay_shares = lying
    total = round_.run()
    named = [1, 2] if lie is exchanged else [1]
    reason = "it does not open with the key that client 0 expects"
    assert sorted((error.client, error.step, error.reason) for error in round_.rejected) == [
        (client, "shares", reason) for client in named
    ]
    assert total.tolist() == plain_sum(THREE, VALUES, [one for one in CLIENTS if one not in named]).tolist()


def test_shares_that_the_server_keeps_are_missed():
    """The victim does not mask with clients of which it holds no shares."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES)
    advertised = round_.keys()
    mail = round_.server.relay_shares([one.share_secrets(advertised) for one in round_.clients.values()])
    del mail[0][1]
    assert round_.clients[0].receive_shares(mail[0]) == []
    with pytest.raises(AbortedRoundError, match="client 0 holds no shares of clients 1"):
        round_.clients[0].set_peers(CLIENTS)


@pytest.mark.parametrize("size", [95, 96])
def test_keys_that_are_no_keys_are_rejected(size):
    """A wrong length, and the point that gives everybody the same secret; the client is named."""
    round_ = (people := Federation(CLIENTS)).round(0, LAYOUT, VALUES)
    bad = people.identities[2].sign(round_.session, 0, "keys", SERVER, bytes(size))
    with pytest.raises(RejectedMessageError, match=r"keys message of client 2 .* not usable public keys"):
        round_.server.collect_keys([bad])


def advertised_by_two(round_, encryption=None, masking=None):
    """All `keys` messages, with client 2 signing other keys than its own."""
    keys = round_.server.roster[2]
    other = PublicKeys(encryption or keys.encryption, masking or keys.masking, keys.seed_digest)
    signed = round_.clients[2]._signed("keys", SERVER, other.to_bytes())
    return [signed if message.sender == 2 else message for message in round_.advertised]


def test_clients_reject_unusable_keys_themselves():
    """Where the server passes them on, each client names the one whose key it is."""
    round_ = Federation(CLIENTS).round(0, LAYOUT, VALUES)
    round_.keys()
    with pytest.raises(RejectedMessageError, match=r"keys message of client 2 .* encryption key"):
        round_.clients[0].share_secrets(advertised_by_two(round_, encryption=bytes(32)))
    others = Federation(CLIENTS).round(0, LAYOUT, VALUES)
    others.keys()
    others.advertised = advertised_by_two(others, masking=bytes(32))
    others.clients[2]._keys = PublicKeys.from_bytes(others.advertised[2].body)
    others.shares()
    with pytest.raises(RejectedMessageError, match=r"keys message of client 2 .* masking key"):
        others.masked_by(0)


SIX = [0, 1, 2, 3, 4, 5]
OUTER = VectorLayout(20, NARROW, {client: np.arange(20 if client < 4 else 10) for client in SIX}, 4)
"""Positions 10..19 are those of clients 0..3 only; 0 is the victim."""

LISTS = {0: (1, 2), 3: (1, 2), 2: (1, 3), 4: (1, 3), 1: (2, 3), 5: (2, 3)}
"""Who is reported to each client as dropped out: two of 1, 2 and 3, each of them to four clients."""


def test_different_lists_of_survivors_reveal_nothing():
    """Three lists, none of them suspicious, would uncover the masking keys of all who share the outer positions.

    Everybody is told that two contributors are left there, as k = 2 asks. Together, four clients each would reveal the
    masking keys of 1, 2 and 3 and the self mask of 0, whose values on the outer positions are then in the open.
    """
    people = Federation(SIX)
    values = {client: np.ones(OUTER.size(client), dtype=int) for client in SIX}
    round_ = people.round(1, OUTER, values, least=2).until_masked()
    told = {client: [one for one in SIX if one not in gone] for client, gone in LISTS.items()}
    signed = [round_.clients[client].sign_survivors(told[client]) for client in SIX]
    for client in SIX:
        with pytest.raises(AbortedRoundError, match=r"2 clients signed the list of survivors .* threshold 4"):
            round_.clients[client].reveal_shares(signed)
        with pytest.raises(AbortedRoundError, match="has signed another list of survivors; it signs one"):
            round_.clients[client].sign_survivors(SIX)


def test_signatures_on_a_list_count_once_and_from_survivors_only():
    """Repeated, of another round, or of a client that dropped out: they do not make up for a missing one."""
    round_ = PEOPLE.round(1, LAYOUT, VALUES, dies={4: "masked"}).until_masked()
    signed = round_.survivors()
    outsider = PEOPLE.identities[4].sign(round_.session, 1, "survivors", SERVER, signed[0].body)
    with pytest.raises(AbortedRoundError, match=r"3 clients signed the list .*, threshold 4; missing: 3"):
        round_.clients[0].reveal_shares([*signed[:3], *signed[:3], outsider])
    other = PEOPLE.identities[3].sign(round_.session, 2, "survivors", SERVER, signed[0].body)
    with pytest.raises(RejectedMessageError, match="replayed"):
        round_.clients[0].reveal_shares([*signed[:3], other])
    forged = SigningKey(3).sign(round_.session, 1, "survivors", SERVER, signed[0].body)
    with pytest.raises(RejectedMessageError, match="the signature is not that of client 3"):
        round_.clients[0].reveal_shares([*signed[:3], forged])
    assert len(read(0, "reveal", round_.clients[0].reveal_shares(signed).body)) == 5


def test_clients_count_contributors_themselves():
    """One of two contributors of the outer positions drops out: no client signs, whatever the server checks."""
    positions = {client: np.arange(20 if client < 2 else 10) for client in CLIENTS}
    layout = VectorLayout(20, NARROW, positions, 3)
    values = {client: np.ones(layout.size(client), dtype=int) for client in CLIENTS}
    round_ = PEOPLE.round(1, layout, values, dies={1: "masked"}, least=2).until_masked()
    for client in (0, 2, 3, 4):
        with pytest.raises(AbortedRoundError, match=r"fewer than 2 contributors, .* concerned \(0\) do not unmask"):
            round_.clients[client].sign_survivors([0, 2, 3, 4])
        with pytest.raises(AbortedRoundError, match="has not signed"):
            round_.clients[client].reveal_shares([])


@pytest.mark.parametrize(("clients", "threshold"), [(5, 1), (5, 2), (6, 3), (1, 1)])
def test_a_small_threshold_is_refused(clients, threshold):
    """One holder, or two disjoint groups of clients, could hand over both secrets of a third one."""
    layout = whole(range(clients), 3, threshold)
    rules = ClientRules(PEOPLE.registry, Contributors.of(3, layout.positions), 1)
    with pytest.raises(AbortedRoundError, match=f"threshold {threshold} of {clients} clients is refused"):
        AggregationClient(0, PEOPLE.identities[0], bytes(16), 1, layout, rules)


def lies_about(held, owner):
    """The shares that a client reveals, with one bit of the owner's turned over."""
    return [
        HeldShare(one.owner, one.secret, Share(one.share.point, one.share.threshold, one.share.value ^ 1))
        if one.owner == owner
        else one
        for one in held
    ]


@pytest.mark.parametrize(("owner", "dies"), [(0, {}), (4, {4: "masked"})], ids=["self mask", "masking key"])
def test_a_wrong_share_is_noticed(owner, dies):
    """One wrong share of five is passed over; where every share is needed, the round is given up, never a wrong sum."""
    layout = whole(CLIENTS, 20, 3)
    round_ = PEOPLE.round(1, layout, VALUES, dies=dies).until_masked()
    good, expected = round_.reveals(), plain_sum(layout, VALUES, round_.server.arrived)
    for liar in round_.server.arrived:
        body = pack(lies_about(read(liar, "reveal", good[liar].body), owner))
        reveals = [*good[:liar], round_.clients[liar]._signed("reveal", SERVER, body), *good[liar + 1 :]]
        assert round_.server.unmask(reveals).tolist() == expected.tolist()
        enough = [reveals[liar], *(one for one in reveals if one.sender != liar)][:3]
        with pytest.raises(AbortedRoundError, match=f"3 shares of client {owner} do not give the (self|masking)"):
            round_.server.unmask(enough)
