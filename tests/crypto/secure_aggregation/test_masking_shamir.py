"""Shares of secrets: any threshold of them restores the secret, fewer do not."""

import random
import struct
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.crypto.messages import RejectedMessageError
from app.crypto.secure_aggregation import secret_sharing as shamir
from app.crypto.secure_aggregation.secret_sharing import PRIME, HeldShare, SecretKind, Share, join, pack, read, split

SECRETS = st.binary(min_size=32, max_size=32)


def by_point(shares):
    """Shares as `join` takes them."""
    return {share.point: share for share in shares}


def test_field_is_prime_and_holds_every_secret():
    """Miller and Rabin's test with the first primes as bases; 2^256 - 1 is smaller."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        powers = [pow(base, odd * 2**place, PRIME) for place in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert PRIME > 2**256 - 1


def test_shares_are_points_of_the_polynomial(monkeypatch):
    """With the coefficients 7 and 11 the shares of 5 are 7 x^2 + 11 x + 5."""
    drawn = iter([7, 11])
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda limit: next(drawn) if limit == PRIME else None)
    shares = split((5).to_bytes(32, "big"), 4, 3)
    assert [(share.point, share.threshold, share.value) for share in shares] == [
        (1, 3, 23),
        (2, 3, 55),
        (3, 3, 101),
        (4, 3, 161),
    ]
    assert join(by_point(shares[1:])) == (5).to_bytes(32, "big")


@settings(max_examples=60, deadline=None)
@given(SECRETS, st.integers(1, 12), st.data())
def test_any_threshold_of_shares_restores_the_secret(secret, count, data):
    """Whichever shares are left, and in whatever order."""
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, count, threshold)
    left = data.draw(st.permutations(shares))[: data.draw(st.integers(threshold, count))]
    assert join(by_point(left)) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, b"\0" * 31 + b"\1", b"\x80" + bytes(31)])
def test_extreme_secrets_survive(secret):
    """Leading zeros are kept, and the largest secret is smaller than the field."""
    for left in combinations(split(secret, 5, 3), 3):
        assert join(by_point(left)) == secret


def test_large_federation():
    """100 shares, any 67 of them."""
    secret = bytes(range(32))
    shares = split(secret, 100, 67)
    assert join(by_point(random.Random(0).sample(shares, 67))) == secret
    assert join(by_point(shares)) == secret


def test_fewer_than_the_threshold_are_refused():
    """One share too few, and none at all."""
    shares = by_point(split(bytes(32), 5, 3)[:2])
    with pytest.raises(ValueError, match="2 shares of at least 3"):
        join(shares)
    with pytest.raises(ValueError, match="0 shares"):
        join({})


def test_fewer_shares_do_not_give_the_secret_away():
    """Whoever pretends that two of three are enough gets something else, and another thing for every split."""
    secret, guesses = bytes(31) + b"\7", set()
    for _ in range(20):
        pretended = [Share(share.point, 2, share.value) for share in split(secret, 3, 3)[:2]]
        guesses.add(join(by_point(pretended)))
    assert secret not in guesses
    assert len(guesses) == 20


def test_mixed_up_shares_are_refused():
    """Shares under another point, twice under two points, and of secrets with another threshold."""
    one, two, *_ = split(bytes(32), 4, 2)
    with pytest.raises(ValueError, match="under another point"):
        join({1: two, 2: one})
    with pytest.raises(ValueError, match="under another point"):
        join({1: one, 2: one})
    with pytest.raises(ValueError, match="different secrets"):
        join({1: one, 2: split(bytes(32), 4, 3)[1]})


def test_values_that_are_no_secret_are_refused():
    """Only 297 of the field's numbers are above every secret; a forged share can hit them."""
    with pytest.raises(ValueError, match="not of one secret"):
        join({1: Share(1, 1, PRIME - 1)})


@pytest.mark.parametrize(("shares", "threshold"), [(3, 0), (3, 4), (0, 0), (70000, 2)])
def test_impossible_numbers_are_refused(shares, threshold):
    """Thresholds outside [1, shares] and more shares than there are points."""
    with pytest.raises(ValueError, match="needs 1 <= threshold <= shares"):
        split(bytes(32), shares, threshold)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_secrets_of_another_length_are_refused(length):
    """All secrets have 32 bytes."""
    with pytest.raises(ValueError, match=f"32 bytes, not {length}"):
        split(bytes(length), 3, 2)


def test_shares_travel_as_bytes():
    """Written and read back; other lengths and impossible numbers are refused; the value is not shown."""
    share = split(b"\xff" * 32, 300, 270)[299]
    held = [HeldShare(7, SecretKind.SELF_MASK, share), HeldShare(-1, SecretKind.MASKING_KEY, Share(1, 65535, 0))]
    data = pack(held)
    assert data[:13] == struct.pack(">qBHH", 7, 2, 300, 270)
    assert data[13:46] == share.value.to_bytes(33, "big")
    assert len(data) == 92
    assert read(3, "reveal", data) == held
    assert read(3, "reveal", b"") == []
    assert repr(share) == "Share(point=300, threshold=270)"
    nobody, nothing = data[:9] + bytes(37), data[:13] + b"\xff" * 33
    for wrong in (data[:-1], data + b"\0", bytes(46), nobody, nothing, data[:8] + b"\3" + data[9:]):
        with pytest.raises(RejectedMessageError, match="not those of shares") as caught:
            read(3, "reveal", wrong)
        assert (caught.value.client, caught.value.step) == (3, "reveal")
