"""Ciphertexts are Paillier's, whatever makes their noise and wherever they are made."""

import multiprocessing
import secrets

import numpy as np
import phe
import pytest

from app.common.errors import UserError
from app.crypto.cost import measure_paillier
from app.crypto.paillier.encryption import EncryptionPool, Encryptor, decrypt, exponent_bits
from app.crypto.paillier.keys import generate
from app.crypto.paillier.packing import Packing
from app.crypto.paillier.sums import EncryptedSum

EXPONENTS = ("short", "half", "full")
CLIENTS = 20
LARGEST = 2**19 - 1


@pytest.fixture(scope="module")
def private():
    """A short key."""
    return generate(1024)


def opened(private, ciphertexts):
    """Plaintexts, decrypted on two threads."""
    return decrypt(private, ciphertexts, workers=2, progress=False).plaintexts


def round_of(private, exponent):
    """Twenty clients with extreme values of both signs, from packing to unpacking; returns expected and found."""
    packing = Packing.fit(private.public.bits, CLIENTS * LARGEST)
    update = np.tile([LARGEST, -LARGEST, 0, 1, -1], packing.slots // 4)
    encryptor, total = Encryptor(private.public, exponent), EncryptedSum(private.public)
    for _ in range(CLIENTS):
        plaintexts = packing.pack(update)
        total.add(range(len(plaintexts)), encryptor.encrypt(plaintexts))
    return CLIENTS * update, packing.unpack(opened(private, total.ciphertexts), len(update))


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_encrypted_sum_is_the_sum(private, exponent):
    """Twenty clients at the worst case, with noise of every kind."""
    expected, found = round_of(private, exponent)
    assert (found.values == expected).all()
    assert (found.contributors == CLIENTS).all()


@pytest.mark.parametrize("bits", [2048, 3072])
def test_longer_keys(bits):
    """Keys as one would use them: the same sum, and ciphertexts of twice the length."""
    private = generate(bits)
    expected, found = round_of(private, "short")
    assert (found.values == expected).all()
    assert private.public.bits == bits
    assert private.public.ciphertext_bytes == 2 * bits // 8


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_phe_reads_our_ciphertexts(private, exponent):
    """As integers with exponent 0, which tells nothing about their size."""
    plaintexts = Packing.fit(1024, LARGEST).pack(np.array([5, -7, LARGEST, -LARGEST] * 40))
    for plaintext, ciphertext in zip(plaintexts, Encryptor(private.public, exponent).encrypt(plaintexts), strict=True):
        assert private.phe.decrypt(phe.EncryptedNumber(private.public.phe, ciphertext, 0)) == plaintext


def test_we_read_ciphertexts_of_phe(private):
    """Also the largest plaintext there is."""
    numbers = [0, 1, 12345678901234567890]
    ciphertexts = [private.public.phe.encrypt(number).ciphertext() for number in numbers]
    ciphertexts.append(private.public.phe.raw_encrypt(private.public.n - 1))
    assert opened(private, ciphertexts) == [*numbers, private.public.n - 1]


def test_sums_of_both_are_sums(private):
    """A ciphertext of phe and one of ours add up, by our sum and by phe's."""
    mine, other = Encryptor(private.public, "short").encrypt([40])[0], private.public.phe.encrypt(2)
    total = EncryptedSum(private.public)
    total.add([0], [mine])
    total.add([0], [other.ciphertext()])
    assert opened(private, total.ciphertexts) == [42]
    assert private.phe.decrypt(phe.EncryptedNumber(private.public.phe, mine, 0) + other) == 42


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_equal_plaintexts_look_different(private, exponent):
    """All ciphertexts of one number differ, and none is the number without noise."""
    ciphertexts = Encryptor(private.public, exponent).encrypt([7] * 50)
    assert len({*ciphertexts, 1 + 7 * private.public.n}) == 51


@pytest.mark.parametrize(("exponent", "length"), [("short", 20), ("half", 64)])
def test_noise_is_a_power_of_the_fixed_element(private, exponent, length, monkeypatch):
    """With known random bytes, the ciphertext is the formula's; exactly the stated bits are drawn."""
    drawn = bytes((37 * place + 200) % 256 for place in range(length))
    asked = []
    monkeypatch.setattr(secrets, "token_bytes", lambda number: asked.append(number) or drawn)
    n, square = private.public.n, private.public.square
    noise = pow(private.public.generator, int.from_bytes(drawn, "little"), square)
    assert Encryptor(private.public, exponent).encrypt([3, 4]) == [
        (1 + 3 * n) * noise % square,
        (1 + 4 * n) * noise % square,
    ]
    assert asked == [length, length]


def test_full_noise_is_the_power_of_a_random_unit(private, monkeypatch):
    """With a known random number, the ciphertext is Paillier's formula; what is not coprime is drawn again."""
    draws = iter([private.phe.p - 1, 41])
    monkeypatch.setattr(secrets, "randbelow", lambda bound: next(draws))
    n, square = private.public.n, private.public.square
    assert Encryptor(private.public, "full").encrypt([9]) == [(1 + 9 * n) * pow(42, n, square) % square]


def test_lengths_of_exponents():
    """Twice the security, half the modulus, the modulus."""
    assert [exponent_bits(bits, "short") for bits in (1024, 2048, 3072)] == [160, 224, 256]
    assert [exponent_bits(bits, "half") for bits in (1024, 2048, 3072)] == [512, 1024, 1536]
    assert exponent_bits(2048, "full") == 2048


@pytest.mark.parametrize("wrong", [-1, "n"])
def test_plaintexts_outside_are_refused(private, wrong):
    """By the encryptor and by the pool, with the position."""
    plaintexts = [0, private.public.n - 1, private.public.n if wrong == "n" else wrong]
    for encryptor in (Encryptor(private.public, "short"), EncryptionPool(private.public, "short", 1, progress=False)):
        with pytest.raises(ValueError, match="position 2"):
            encryptor.encrypt(plaintexts)


@pytest.fixture
def pool(private):
    """Two processes."""
    pool = EncryptionPool(private.public, "short", workers=2, progress=False)
    yield pool
    pool.close()


def test_processes_give_the_same(private, pool):
    """In the same order as one process; they start with the first large job and end when told."""
    before = set(multiprocessing.active_children())
    few, many = list(range(63)), list(range(301))
    assert opened(private, pool.encrypt(few).ciphertexts) == few
    assert set(multiprocessing.active_children()) == before, "a small job is done here"
    made = pool.encrypt(many)
    assert len(set(multiprocessing.active_children()) - before) == 2
    alone = EncryptionPool(private.public, "short", workers=1, progress=False).encrypt(many)
    assert opened(private, made.ciphertexts) == opened(private, alone.ciphertexts) == many
    assert len({*made.ciphertexts, *alone.ciphertexts}) == 602, "workers do not share their randomness"
    assert made.seconds > 0.2 * alone.seconds > 0
    pool.close()
    assert set(multiprocessing.active_children()) == before
    assert pool.encrypt([]).ciphertexts == []


def test_death_of_a_process_is_told(private, pool):
    """With the option that does without processes; the pool can be used again."""
    before = set(multiprocessing.active_children())
    pool.encrypt(list(range(100)))
    for child in set(multiprocessing.active_children()) - before:
        child.kill()
        child.join()
    with pytest.raises(UserError, match=r"--defenses\.NAME\.workers 1"):
        pool.encrypt(list(range(100)))
    assert opened(private, pool.encrypt(list(range(100))).ciphertexts) == list(range(100))


def test_costs_are_those_of_the_operations(private):
    """Adding is cheaper than encrypting with a table, that than decrypting, that than encrypting without."""
    short, full = measure_paillier(private, "short", sample=20), measure_paillier(private, "full", sample=4)
    assert 0 < short.add < short.encrypt < short.decrypt < full.encrypt


def test_cost_of_adding_is_that_of_multiplying(private, monkeypatch):
    """A first ciphertext is only stored, so the sums that are measured exist before."""
    known = []

    class Recorded(EncryptedSum):
        def add(self, positions, ciphertexts):
            known.append(self.positions)
            super().add(positions, ciphertexts)

    monkeypatch.setattr("app.crypto.cost.EncryptedSum", Recorded)
    measure_paillier(private, "short", sample=3)
    assert known == [[], [0, 1, 2]]
