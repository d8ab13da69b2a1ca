"""What Paillier encryption does not hide: attacks that succeed, and that the statement of a run names."""

import numpy as np
import pytest

from app.crypto.paillier.encryption import Encryptor, decrypt
from app.crypto.paillier.keys import generate
from app.crypto.paillier.packing import Packing
from app.crypto.paillier.sums import EncryptedSum

CLIENTS = 20
PACKING = Packing.fit(1024, 1000 * CLIENTS)
VALUES = [np.random.default_rng(client).integers(-1000, 1001, 2 * PACKING.slots) for client in range(CLIENTS)]


@pytest.fixture(scope="module")
def private():
    """The key that all clients share."""
    return generate(1024)


@pytest.fixture(scope="module")
def uploads(private):
    """Ciphertexts of every client."""
    encryptor = Encryptor(private.public, "short")
    return [encryptor.encrypt(PACKING.pack(values)) for values in VALUES]


def read(private, ciphertexts):
    """What a client with the key reads."""
    return PACKING.unpack(decrypt(private, ciphertexts, workers=1, progress=False).plaintexts, len(VALUES[0]))


def shifted(public, ciphertext, by):
    """A ciphertext of the plaintext plus a number, made without the private key."""
    return ciphertext * (1 + by % public.n * public.n) % public.square


def test_one_key_opens_every_single_upload(private, uploads):
    """A client that helps the server needs nothing but the key it has."""
    for ciphertexts, values in zip(uploads, VALUES, strict=True):
        assert (read(private, ciphertexts).values == values).all()


def test_one_upload_passes_for_the_sum(private, uploads):
    """The server adds the missing contributors to the count, or takes the upload as often as there are clients."""
    adjusted = [shifted(private.public, one, (CLIENTS - 1) * PACKING._one) for one in uploads[3]]
    multiple = [pow(one, CLIENTS, private.public.square) for one in uploads[3]]
    for ciphertexts, times in ((adjusted, 1), (multiple, CLIENTS)):
        found = read(private, ciphertexts)
        assert set(found.contributors.tolist()) == {CLIENTS}, "what clients check"
        assert (found.values == times * VALUES[3]).all()


def test_a_changed_sum_keeps_its_count(private, uploads):
    """The server adds 7 to the first value of the sum."""
    total = EncryptedSum(private.public)
    for ciphertexts in uploads:
        total.add(range(2), ciphertexts)
    first, second = total.ciphertexts
    found, expected = read(private, [shifted(private.public, first, 7), second]), np.sum(VALUES, axis=0)
    assert set(found.contributors.tolist()) == {CLIENTS}
    assert np.flatnonzero(found.values != expected).tolist() == [0]
    assert found.values[0] - expected[0] == 7
