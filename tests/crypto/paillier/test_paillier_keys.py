"""Keys meet the conditions of cheap noise, and the private one stays where it is."""

import copy
import hashlib
import io
import math
import pickle
import random
import subprocess
import sys

import gmpy2
import numpy as np
import pytest
import torch

from app.crypto.paillier.keys import PublicKey, generate, generates, security_bits, suitable


@pytest.fixture(scope="module")
def private():
    """A short key."""
    return generate(1024)


def test_primes_meet_the_conditions(private):
    """Both primes are 3 modulo 4, p - 1 and q - 1 share nothing but 2, and the modulus has all its bits."""
    p, q = private.phe.p, private.phe.q
    assert gmpy2.is_prime(p)
    assert gmpy2.is_prime(q)
    assert p % 4 == q % 4 == 3
    assert math.gcd(p - 1, q - 1) == 2
    assert p * q == private.public.n
    assert private.public.bits == 1024


@pytest.mark.parametrize(
    ("p", "q", "fine"), [(7, 11, True), (7, 13, False), (13, 7, False), (7, 19, False), (11, 31, False)]
)
def test_unsuitable_primes_are_told(p, q, fine):
    """1 modulo 4 is refused, and so is a common factor of p - 1 and q - 1 beyond 2."""
    assert suitable(p, q) is fine


@pytest.mark.parametrize("p", [7, 11, 23, 67])
def test_elements_that_generate_are_told(p):
    """An element generates exactly if its powers are all elements."""
    for h in range(1, p):
        assert generates(h, p) == (len({pow(h, power, p) for power in range(p)}) == p - 1)


def test_fixed_element_is_noise(private):
    """The public element encrypts 0, has Jacobi symbol 1, is no square, and generates what it should."""
    p, q, g = private.phe.p, private.phe.q, private.public.generator
    assert private.phe.raw_decrypt(g) == 0
    assert gmpy2.jacobi(g, private.public.n) == 1
    assert gmpy2.legendre(g, p) == gmpy2.legendre(g, q) == -1
    assert generates(g, p)
    assert generates(g, q)


def test_no_seed_makes_keys_repeat():
    """Keys come from the operating system, whatever the seeds of a run are."""
    made = set()
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        made.add(generate(1024).public)
    assert len({key.n for key in made}) == len({key.generator for key in made}) == 2


def test_strength_of_lengths():
    """The customary equivalents."""
    assert [security_bits(bits) for bits in (1024, 2048, 3072)] == [80, 112, 128]


def test_public_key_describes_itself(private):
    """Lengths, fingerprint and phe's view follow from the modulus."""
    small = PublicKey(0x0123_4567, 2)
    assert small.bits == 25
    assert small.square == 0x0123_4567**2
    assert small.ciphertext_bytes == 7, "a square of 49 bits"
    assert small.fingerprint == hashlib.sha256(bytes([0x01, 0x23, 0x45, 0x67])).hexdigest()[:16]
    assert private.public.ciphertext_bytes == 256
    assert private.public.phe.n == private.public.n


def test_public_key_travels(private):
    """Workers get the same key."""
    public = private.public
    assert public.square == public.n**2
    assert pickle.loads(pickle.dumps(public)) == public


def _saved(key):
    torch.save({"key": key}, io.BytesIO())


@pytest.mark.parametrize(
    "way", [pickle.dumps, copy.copy, copy.deepcopy, _saved, lambda key: pickle.dumps([key], protocol=0)]
)
def test_private_key_stays(private, way):
    """Neither pickled nor copied nor saved with a model, alone or inside of something."""
    with pytest.raises(TypeError, match="never written, sent or copied"):
        way(private)


def test_private_key_does_not_show(private):
    """Its text is the fingerprint of the public key."""
    assert repr(private) == str(private) == f"{private}" == f"PrivateKey({private.public.fingerprint})"


def test_torch_is_not_loaded():
    """Processes that encrypt start fast."""
    code = "import sys, app.crypto.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
