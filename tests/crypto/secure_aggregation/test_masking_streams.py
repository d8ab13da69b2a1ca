"""Pseudo-random words and sums modulo their width."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from masking_kit import NARROW, WIDE

from app.common.errors import UserError
from app.crypto.secure_aggregation.streams import add_stream, add_streams, from_words, to_words, word_for

KEY = bytes(range(32))


def stream(key, length, word):
    """The words of a stream by themselves."""
    numbers = np.zeros(length, dtype=word)
    add_stream(numbers, key)
    return numbers


def test_stream_is_aes_in_counter_mode():
    """AES-256 of a block of zeros under a key of zeros is dc95c078..., read as little endian words."""
    known = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    assert stream(bytes(32), 4, NARROW).tolist() == [0x78C095DC, 0x898940A2, 0x14A248AD, 0x87208492]
    assert stream(bytes(32), 2, WIDE).astype("<u8").tobytes() == known


@pytest.mark.parametrize("word", [NARROW, WIDE])
@pytest.mark.parametrize("length", [0, 1, 5, 8191, 8192, 8193, 16384, 16385, 50_001])
def test_pieces_make_up_one_stream(length, word):
    """The stream is the same as one made in a single piece, wherever pieces end."""
    whole = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(length * word.itemsize))
    assert stream(KEY, length, word).tobytes() == whole


def test_streams_of_different_keys_differ():
    """Two keys share no more words than chance allows (none, of 1000)."""
    assert not (stream(KEY, 1000, NARROW) == stream(KEY[::-1], 1000, NARROW)).any()


@pytest.mark.parametrize("word", [NARROW, WIDE])
def test_adding_and_subtracting_cancel(word):
    """Modulo the width nothing is lost, whatever is in the vector."""
    before = np.full(20_000, -3).astype(word)
    total = before.copy()
    add_stream(total, KEY)
    assert (total == before + stream(KEY, 20_000, word)).all()
    add_stream(total, KEY, negative=True)
    assert (total == before).all()


@pytest.mark.parametrize("word", [NARROW, WIDE])
@pytest.mark.parametrize("length", [0, 5, 16384, 50_001])
def test_several_streams_at_once_are_those_one_by_one(length, word):
    """Wherever pieces end, whichever are subtracted."""
    keys = [(bytes([number]) * 32, number % 3 == 0) for number in range(5)]
    total, expected = np.full(length, 7, dtype=word), np.full(length, 7, dtype=word)
    add_streams(total, keys)
    for key, negative in keys:
        expected += -stream(key, length, word) if negative else stream(key, length, word)
    assert (total == expected).all()


@pytest.mark.parametrize(
    ("largest", "word"), [(0, NARROW), (2**31 - 1, NARROW), (2**31, WIDE), (2**32, WIDE), (2**63 - 1, WIDE)]
)
def test_narrowest_word_that_holds_the_sum(largest, word):
    """32 bits up to 2^31 - 1, then 64; both signs of the largest sum come back."""
    assert word_for(largest) == word
    assert from_words(to_words(np.array([largest, -largest]), word), word).tolist() == [largest, -largest]


def test_sums_beyond_64_bits_are_an_error():
    """It names the option that makes them smaller."""
    with pytest.raises(UserError, match=r"--defenses\.NAME\.bits"):
        word_for(2**63)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30))
def test_words_give_the_numbers_back(numbers):
    """Two's complement in both widths."""
    values = np.array(numbers, dtype=np.int64)
    for word in (NARROW, WIDE):
        words = to_words(values, word)
        assert words.dtype == word
        assert words.tolist() == [number % 2 ** (8 * word.itemsize) for number in numbers]
        back = from_words(words, word)
        assert back.dtype == np.int64
        assert back.tolist() == numbers


def test_values_stay_as_they_were():
    """Words never share memory with the values: masks are added in place."""
    values = np.zeros(4, dtype=np.int64)
    words = to_words(values, WIDE)
    words += np.uint64(1)
    assert values.tolist() == [0] * 4


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.bool_])
def test_floats_are_refused(kind):
    """Masks on floats would not cancel."""
    with pytest.raises(TypeError, match="masks on floats do not cancel exactly"):
        to_words(np.zeros(3, dtype=kind), NARROW)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_values_that_do_not_fit_are_refused(number):
    """One is enough; 64 bits hold them."""
    values = np.array([0, number, 0])
    with pytest.raises(ValueError, match="more than 32 bits hold"):
        to_words(values, NARROW)
    assert from_words(to_words(values, WIDE), WIDE).tolist() == values.tolist()


def test_unsigned_values_beyond_the_sign_are_refused():
    """2^63 has no place among signed 64 bits."""
    with pytest.raises(ValueError, match="more than 64 bits hold"):
        to_words(np.array([2**63], dtype=np.uint64), WIDE)
