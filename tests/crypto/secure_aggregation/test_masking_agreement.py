"""Keys that two clients work out on their own, and what only they can read."""

import hashlib
import hmac

import pytest

from app.crypto.messages import RejectedMessageError
from app.crypto.secure_aggregation.agreement import KeyPair, aead_decrypt, aead_encrypt, domain_label
from app.crypto.secure_aggregation.masks import PairwiseKeys

SESSION = bytes(range(16))
ALICE, BOB, CAROL = KeyPair(1), KeyPair(2), KeyPair(3)
PUBLIC = {pair.client: pair.public for pair in (ALICE, BOB, CAROL)}


def mask_key(pair, peer, session=SESSION, round_=4, binding=None):
    """Key of the mask that a client shares with a peer."""
    bound = None if binding is None else lambda _peer: binding
    return PairwiseKeys(pair, session, round_, PUBLIC.__getitem__, bound).key(peer)


def test_both_sides_agree():
    """The same key for the same purpose at both ends, and another one for a third."""
    assert ALICE.agree(BOB.public, b"tea") == BOB.agree(ALICE.public, b"tea")
    assert ALICE.agree(BOB.public, b"tea") != ALICE.agree(BOB.public, b"coffee")
    assert ALICE.agree(BOB.public, b"tea") != CAROL.agree(BOB.public, b"tea")
    assert mask_key(ALICE, 2) == mask_key(BOB, 1)


def test_key_is_that_of_the_standards():
    """X25519 with the example of RFC 7748, section 6.1, then HKDF-SHA256 without salt (RFC 5869), written out."""
    alice = KeyPair(0, bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair(1, bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    extracted = hmac.digest(bytes(32), shared, hashlib.sha256)
    assert alice.agree(bob.public, b"tea") == hmac.digest(extracted, b"tea\1", hashlib.sha256)


@pytest.mark.parametrize(
    "change",
    [{"session": bytes(16)}, {"round_": 5}, {"binding": b"model"}, {"binding": b""}, {"peer": 3}],
    ids=str,
)
def test_masks_belong_to_one_run(change):
    """Another session, round, peer or model gives another mask."""
    assert mask_key(ALICE, **{"peer": 2, **change}) != mask_key(ALICE, peer=2)


def test_masks_of_different_models_differ():
    """The same model gives the same key at both ends, another model another one."""
    assert mask_key(ALICE, 2, binding=b"one") == mask_key(BOB, 1, binding=b"one")
    assert mask_key(ALICE, 2, binding=b"one") != mask_key(BOB, 1, binding=b"two")


def test_key_comes_back_from_its_secret():
    """What is put together from shares is the same pair."""
    again = KeyPair(1, ALICE.secret())
    assert again.public == ALICE.public
    assert again.agree(BOB.public, b"") == ALICE.agree(BOB.public, b"")


def test_parts_of_a_label_do_not_run_together():
    """Where a part ends is part of the label."""
    labels = [
        domain_label("a", b"bc"),
        domain_label("ab", b"c"),
        domain_label("a", b"b", b"c"),
        domain_label("a", b"bc", b""),
        domain_label("a", 1),
    ]
    assert len(set(labels)) == len(labels)


def test_sealed_text_opens_for_the_right_key_only():
    """Another key, another purpose, a flipped bit or a missing end: nothing opens."""
    key = bytes(range(32))
    sealed = aead_encrypt(key, b"secret", b"about")
    assert aead_decrypt(key, sealed, b"about") == b"secret"
    assert b"secret" not in sealed
    assert aead_encrypt(key, b"secret", b"about") != sealed
    assert aead_decrypt(key[::-1], sealed, b"about") is None
    assert aead_decrypt(key, sealed, b"else") is None
    assert aead_decrypt(key, sealed[:-1], b"about") is None
    assert aead_decrypt(key, sealed[:5], b"about") is None
    for place in range(len(sealed)):
        assert aead_decrypt(key, sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], b"about") is None


def test_unusable_key_names_its_owner():
    """A public key of zeros gives everybody the same secret."""
    keys = PairwiseKeys(ALICE, SESSION, 0, lambda _peer: bytes(32), None)
    with pytest.raises(RejectedMessageError, match="keys message of client 2"):
        keys.key(2)
