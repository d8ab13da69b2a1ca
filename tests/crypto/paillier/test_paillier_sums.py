"""The server's sums, ciphertexts as bytes, decryption, and how damage shows."""

import itertools

import numpy as np
import pytest

from app.crypto.paillier.encryption import Encryptor, decrypt
from app.crypto.paillier.keys import generate
from app.crypto.paillier.packing import CorruptedError, Packing
from app.crypto.paillier.sums import EncryptedSum, from_bytes, to_bytes

PACKING = Packing.fit(1024, 2000)


@pytest.fixture(scope="module")
def private():
    """A short key."""
    return generate(1024)


@pytest.fixture(scope="module")
def encryptor(private):
    """Encrypts for the key."""
    return Encryptor(private.public, "short")


def opened(private, ciphertexts):
    """Plaintexts."""
    return decrypt(private, ciphertexts, workers=1, progress=False).plaintexts


def test_positions_are_summed_apart(private, encryptor):
    """Each position has its own sum, whatever the order and grouping of what arrives; positions may be an array."""
    parts = [(np.array([5, 0]), [1, 10]), ([0, 9], [20, 300]), ([5], [4])]
    encrypted = [(positions, encryptor.encrypt(values)) for positions, values in parts]
    made = []
    for order in itertools.permutations(encrypted):
        first, second = EncryptedSum(private.public), EncryptedSum(private.public)
        first.add(*order[0])
        for part in order[1:]:
            second.add(*part)
        first.add(second.positions, second.ciphertexts)
        made.append(first)
    assert all(one.positions == [0, 5, 9] for one in made)
    assert len({tuple(one.ciphertexts) for one in made}) == 1
    assert opened(private, made[0].ciphertexts) == [30, 5, 300]


def test_what_is_no_ciphertext_is_refused(private, encryptor):
    """By the server, which then adds nothing of it, and by who decrypts; with the position."""
    total = EncryptedSum(private.public)
    fine = encryptor.encrypt([1])[0]
    for wrong in (0, -fine, private.public.square, private.public.square + fine):
        with pytest.raises(ValueError, match="position 8 is no ciphertext"):
            total.add([3, 8], [fine, wrong])
        with pytest.raises(ValueError, match="position 1 is no ciphertext"):
            decrypt(private, [fine, wrong], workers=1, progress=False)
    with pytest.raises(ValueError, match="2 ciphertexts came with 1 positions"):
        total.add([3], [fine, fine])
    assert total.positions == []
    total.add([3, 4], [1, private.public.square - 1])
    assert total.positions == [3, 4]


def test_bytes_have_a_fixed_length(private, encryptor):
    """Small numbers take as many bytes as large ones, and come back in order."""
    ciphertexts = [1, *encryptor.encrypt([0, 5]), private.public.square - 1]
    data = to_bytes(private.public, ciphertexts)
    assert len(data) == 4 * 256
    assert data[:256] == bytes(255) + b"\x01"
    assert from_bytes(private.public, data) == ciphertexts
    assert from_bytes(private.public, b"") == []
    with pytest.raises(ValueError, match="1023 bytes"):
        from_bytes(private.public, data[1:])


def test_decryption_is_that_of_phe(private, encryptor):
    """For any number of ciphertexts and threads, in order; every number below n^2 is accepted."""
    ciphertexts = encryptor.encrypt([(7**number) % private.public.n for number in range(75)])
    ciphertexts += [1, 2, private.public.square - 1]
    expected = [private.phe.raw_decrypt(ciphertext) for ciphertext in ciphertexts]
    assert expected[:3] == [1, 7, 49]
    for workers in (1, 3):
        found = decrypt(private, ciphertexts, workers, progress=False)
        assert found.plaintexts == expected
        assert found.seconds > 0
    assert opened(private, []) == []


def looks_right(private, ciphertexts, expected):
    """Whether sums look as if `expected` clients had contributed to each."""
    try:
        found = PACKING.unpack(opened(private, ciphertexts), len(ciphertexts) * PACKING.slots)
    except CorruptedError:
        return False
    return bool((found.contributors == expected).all())


def test_damage_shows(private, encryptor):
    """A flipped bit, a ciphertext left out, one twice and one of another key are all noticed; what is whole is not."""
    plaintexts = PACKING.pack(np.arange(-100, 100))
    first, second = encryptor.encrypt(plaintexts), encryptor.encrypt(plaintexts)
    other = Encryptor(generate(1024).public, "short").encrypt(plaintexts)
    flipped = [ciphertext ^ (1 << 500) for ciphertext in second]
    cases = {"whole": [second], "flipped": [flipped], "left out": [], "twice": [second, second]}
    cases["another key"] = [[ciphertext % private.public.square for ciphertext in other]]
    seen = {}
    for name, further in cases.items():
        total = EncryptedSum(private.public)
        for ciphertexts in (first, *further):
            total.add(range(len(ciphertexts)), ciphertexts)
        seen[name] = looks_right(private, total.ciphertexts, expected=2)
    assert seen == {"whole": True, "flipped": False, "left out": False, "twice": False, "another key": False}


def test_wrong_key_shows(private, encryptor):
    """Decrypting with another key gives no sums, plaintext by plaintext."""
    wrong = generate(1024)
    ciphertexts = [ciphertext % wrong.public.square for ciphertext in encryptor.encrypt(PACKING.pack(np.arange(400)))]
    assert not any(looks_right(wrong, [ciphertext], expected=1) for ciphertext in ciphertexts)
