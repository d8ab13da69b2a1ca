"""Keys of Paillier's cryptosystem, and the only door to the library `phe`.

The keys are `phe`'s, so that `phe` reads what is encrypted here and the other way round. The choice of primes and the
element that makes noise cheap are our own: `phe` provides neither.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NoReturn, SupportsIndex

import phe

KeyLength = Literal[1024, 2048, 3072]
"""Bits of the modulus."""

_SECURITY_BITS: dict[int, int] = {1024: 80, 2048: 112, 3072: 128}
_SMALL = 2**16


@dataclass(frozen=True)
class PublicKey:
    """What everybody may know: enough to encrypt and to add ciphertexts."""

    n: int  # the modulus, a product of two primes; plaintexts are integers in [0, n)
    # h^n mod n^2 with h = -y^2 mod n for a secret random y (Damgard, Jurik and Nielsen). Its powers are ciphertexts of
    # 0, which hide a plaintext they are multiplied with
    generator: int

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    @cached_property
    def square(self) -> int:
        """n^2, the modulus of ciphertexts."""
        return self.n * self.n

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of one ciphertext when sent; all have the same length."""
        return (self.square.bit_length() + 7) // 8

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell keys apart."""
        return hashlib.sha256(self.n.to_bytes((self.bits + 7) // 8, "big")).hexdigest()[:16]

    @property
    def phe(self) -> phe.PaillierPublicKey:
        return phe.PaillierPublicKey(self.n)


class PrivateKey:
    """The private key, which only clients may know. It stays in the process that made it: no pickles, no copies."""

    def __init__(self, public: PublicKey, p: int, q: int) -> None:
        self.public = public
        self.phe = phe.PaillierPrivateKey(public.phe, p, q)

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.fingerprint})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a private key is never written, sent or copied: it stays in the process that made it")


def generate(bits: KeyLength) -> PrivateKey:
    """Make a new pair of keys, from the randomness of the operating system alone.

    OpenSSL draws the primes; pairs are drawn until p = q = 3 (mod 4) and gcd(p - 1, q - 1) = 2. Then -1 is no square
    but has Jacobi symbol 1, and all elements modulo n with Jacobi symbol 1 form one cyclic group, which h = -y^2 can
    generate. This is what lets powers of one fixed h stand for random elements (Damgard, Jurik and Nielsen), and
    `phe`'s own generator does not ensure it. About one pair in six will do. y is drawn until no factor of p - 1 or
    q - 1 below 2^16 shows that h generates less than the group; a larger one does so with a probability below 10^-5.
    """
    p, q = _primes(bits)
    n = p * q
    h = _generator(p, q)
    return PrivateKey(PublicKey(n, pow(h, n, n * n)), p, q)


def security_bits(bits: int) -> int:
    """Symmetric strength that a modulus is commonly held equal to: 80, 112 or 128 bits; 80 is too little today."""
    return _SECURITY_BITS[bits]


def suitable(p: int, q: int) -> bool:
    """Whether two primes meet the conditions that noise from a fixed element needs; see `generate`."""
    return p % 4 == 3 and q % 4 == 3 and math.gcd(p - 1, q - 1) == 2


def generates(h: int, p: int) -> bool:
    """Whether no small factor of p - 1 shows that the powers of h miss elements modulo the prime p."""
    factors = (factor for factor in range(2, _SMALL) if (p - 1) % factor == 0)
    return all(pow(h, (p - 1) // factor, p) != 1 for factor in factors)


def _primes(bits: int) -> tuple[int, int]:
    from cryptography.hazmat.primitives.asymmetric import rsa  # workers that only encrypt do without it

    while True:
        numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
        if suitable(numbers.p, numbers.q):
            return numbers.p, numbers.q


def _generator(p: int, q: int) -> int:
    """h = -y^2 mod n for a random y coprime to n."""
    n = p * q
    while True:
        y = 2 + secrets.randbelow(n - 2)
        h = -y * y % n
        if math.gcd(y, n) == 1 and generates(h, p) and generates(h, q):
            return h
