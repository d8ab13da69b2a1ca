"""`scripts/bench paillier`: cost of encrypted sums, against local training and against `phe` alone.

Whole updates are quantised, packed, encrypted, added and decrypted, and the sum is compared with the plain one. `phe`
with one value per ciphertext is measured on some values and scaled to the update, since all of it would take hours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import numpy as np

from app.benchmarks.competitors import flat, raw_sequence
from app.benchmarks.measurements import Table, measured_row, progress, seconds_of
from app.benchmarks.work import Work
from app.crypto.fixed_point import FixedPoint
from app.crypto.paillier.encryption import Encrypted, EncryptionPool, decrypt
from app.crypto.paillier.keys import KeyLength, PrivateKey, generate
from app.crypto.paillier.packing import Packing
from app.crypto.paillier.sums import EncryptedSum, to_bytes
from app.federation.execution.distributed import one_thread
from app.models.alexnet import AlexNet
from app.models.base import DataShape
from app.models.lenet import LeNet5

CLIENTS = 20
WORKERS = 2
POINT = FixedPoint(bits=20, range=1.0)
WARM_UP = 15.0
"""Seconds to wait for processes at most."""

FASTER = 3000
"""How many times faster than `phe` alone encryption should be."""


@dataclass(frozen=True)
class BenchmarkNet:
    """An update and the training it comes from."""

    name: str
    work: Work  # one client's training, an epoch per round
    epochs: int
    lengths: tuple[KeyLength, ...]  # bits of the keys
    paper: float  # total cost of encryption that MemDefense reports, as a multiple of the time without
    sampled: int  # values that `phe` encrypts one by one
    repeats: int  # encryptions of an update that are timed
    # by key length, largest multiples of local training for encrypting, for encrypting and decrypting everything, for
    # encrypting and decrypting a share
    client_goals: Mapping[KeyLength, tuple[float, float, float]] = field(default_factory=dict)
    # by key length, largest multiple of a plain round
    round_goals: Mapping[KeyLength, float] = field(default_factory=dict)


_LENET = Work(1, 3000, 128, net=LeNet5, shape=DataShape(1, 28, 28, 10), tests=1)
_ALEXNET = Work(1, 3000, 128, net=partial(AlexNet, variant="nasr"), tests=1)

FULL = (
    BenchmarkNet("LeNet-5", _LENET, 5, (1024, 2048, 3072), 43, 300, 5, client_goals={2048: (0.08, 0.8, 0.2)}),
    BenchmarkNet("AlexNet", _ALEXNET, 5, (1024, 2048), 2863, 300, 1, round_goals={1024: 1.7, 2048: 3.0}),
)
QUICK = (BenchmarkNet("LeNet-5", replace(_LENET, samples=128), 1, (1024,), 43, 10, 1),)


@dataclass(frozen=True)
class Measured:
    """Cost of one update with one key, in wall-clock seconds; of all repeats where there are several."""

    bits: KeyLength
    bytes: int  # size of the ciphertexts
    alone: Sequence[float]  # encrypting in this process, from real numbers to ciphertexts
    encrypt: Sequence[float]  # the same with `WORKERS` processes
    add: float  # adding all clients' updates
    decrypt: float  # decrypting the sum and unpacking it, with `WORKERS` threads
    decrypt_cpu: float  # the same in CPU seconds
    phe_encrypt: float  # encrypting by `phe` with one value per ciphertext, scaled to the update
    phe_decrypt: float  # decrypting by `phe`, likewise


def paillier_tables(quick: bool) -> Iterator[Table]:
    """Measure one network after the other."""
    for net in QUICK if quick else FULL:
        training, update = train(net)
        measured = [measure(bits, update, net) for bits in net.lengths]
        yield encryption_table(net, len(update), measured)
        yield bytes_table(net, len(update), measured)
        yield client_table(net, training, measured)
        yield round_table(net, training, measured)


def train(net: BenchmarkNet) -> tuple[float, np.ndarray]:
    """Seconds of one client's local training on one thread, and the change it makes."""
    progress(f"{net.name}: local training")
    with one_thread():
        run = raw_sequence(net.work, net.epochs + 1)  # a further epoch warms up
    return sum(run.seconds), (run.vector - flat(net.work.initial_net())).numpy()


def measure(bits: KeyLength, update: np.ndarray, net: BenchmarkNet) -> Measured:
    """Time one update, from real numbers to the decrypted sum of the updates of all clients."""
    progress(f"{net.name}: {len(update)} values, {bits} bits")
    private = generate(bits)
    packing = Packing.fit(bits, CLIENTS * POINT.largest)
    alone, _ = _encryptions(private, packing, update, net.repeats, workers=1)
    spread, ciphertexts = _encryptions(private, packing, update, net.repeats, workers=WORKERS)
    total = EncryptedSum(private.public)
    add = sum(seconds_of(partial(total.add, range(len(ciphertexts)), ciphertexts)) for _ in range(CLIENTS))
    started = time.perf_counter()
    opened = decrypt(private, total.ciphertexts, WORKERS, progress=True)
    sums = packing.unpack(opened.plaintexts, len(update))
    seconds = time.perf_counter() - started
    expected = CLIENTS * POINT.quantise(update, "clip")
    if not ((sums.values == expected).all() and (sums.contributors == CLIENTS).all()):
        raise RuntimeError(f"the encrypted sum is wrong with {bits} bits")
    one_by_one = _phe(private, expected[: net.sampled].tolist(), len(update))
    size = len(to_bytes(private.public, ciphertexts))
    return Measured(bits, size, alone, spread, add, seconds, opened.seconds, *one_by_one)


def encryption_table(net: BenchmarkNet, values: int, measured: Sequence[Measured]) -> Table:
    """Time of encrypting one update, against `phe` with one value per ciphertext."""
    rows = []
    for one in measured:
        base = one.phe_encrypt / FASTER
        scaled = f"{one.bits} bits, phe one by one ({net.sampled} values, scaled)"
        rows.append(measured_row(scaled, one.phe_encrypt, base))
        for name, seconds in (("1 process", one.alone), (f"{WORKERS} processes", one.encrypt)):
            row = measured_row(f"{one.bits} bits, {name}", seconds, base, 1.0 if one.bits == 2048 else None)
            rows.append(replace(row, remark=f"{one.phe_encrypt / row.value:.0f} times as fast as phe"))
    title = f"encrypting an update of {net.name}, {values} values: quantise, pack, encrypt"
    return Table(title, "s", f"phe / {FASTER}", tuple(rows), ("Starting processes and tables are not included.",))


def bytes_table(net: BenchmarkNet, values: int, measured: Sequence[Measured]) -> Table:
    """Size of one encrypted update."""
    plain = 4 * values / 1e6
    rows = [measured_row("plain float32", plain, plain)]
    for one in measured:
        rows.append(measured_row(f"{one.bits} bits", one.bytes / 1e6, plain, 1.6 if one.bits == 2048 else None))
        unpacked = values * one.bits // 4 / 1e6
        rows.append(measured_row(f"{one.bits} bits, one value per ciphertext", unpacked, plain))
    return Table(f"bytes of an update of {net.name}", "MB", "plain float32", tuple(rows))


def client_table(net: BenchmarkNet, training: float, measured: Sequence[Measured]) -> Table:
    """Time that a client spends on encryption in a round, against its training."""
    rows = [measured_row("local training, one thread", training, training)]
    for one in measured:
        goals = net.client_goals.get(one.bits, (None, None, None))
        encrypt = median(one.encrypt)
        parts: list[tuple[str, float, float | None]] = [
            ("encrypt, 1 process", median(one.alone), None),
            (f"encrypt, {WORKERS} processes", encrypt, goals[0]),
            (f"and decrypt everything, {WORKERS} threads", encrypt + one.decrypt, goals[1]),
            (f"and decrypt 1/{CLIENTS}, {WORKERS} threads", encrypt + one.decrypt / CLIENTS, goals[2]),
            ("decrypt everything, by itself", one.decrypt, None),
            (f"server: add {CLIENTS} updates (one, {CLIENTS} times)", one.add, None),
            (f"phe one by one ({net.sampled} values, scaled)", one.phe_encrypt + one.phe_decrypt, None),
        ]
        timed = [measured_row(f"{one.bits} bits, {name}", seconds, training, goal) for name, seconds, goal in parts]
        timed[4] = replace(timed[4], cpu=one.decrypt_cpu)
        rows += timed
    title = f"a client's round, {net.name}: {net.work.samples} samples, epochs: {net.epochs}"
    return Table(title, "s", "local training", tuple(rows))


def round_table(net: BenchmarkNet, training: float, measured: Sequence[Measured]) -> Table:
    """A round of all clients on `WORKERS` cores, computed from the measured parts."""
    plain = CLIENTS * training / WORKERS
    rows = [measured_row("plain", plain, plain)]
    for one in measured:
        encrypted = plain + CLIENTS * median(one.encrypt) + one.add
        goal = net.round_goals.get(one.bits)
        rows.append(measured_row(f"{one.bits} bits, decrypted once", encrypted + one.decrypt, plain, goal))
    title = f"a round of {CLIENTS} clients on {WORKERS} cores, {net.name}, computed from the parts above"
    remark = f"MemDefense reports {net.paper:g}x for encryption in all, with its own code on its own machine."
    return Table(title, "s", "plain", tuple(rows), (remark,))


def _encryptions(
    private: PrivateKey, packing: Packing, update: np.ndarray, repeats: int, workers: int
) -> tuple[list[float], list[int]]:
    """Seconds of the repeats, and the ciphertexts of the last one."""
    with closing(EncryptionPool(private.public, "short", workers, progress=True)) as pool:
        _warm_up(pool, workers)
        updates: list[Encrypted] = []

        def encrypt() -> None:
            updates.append(pool.encrypt(packing.pack(POINT.quantise(update, "clip"))))

        seconds = [seconds_of(encrypt) for _ in range(repeats)]
    return seconds, updates[-1].ciphertexts


def _warm_up(pool: EncryptionPool, workers: int) -> None:
    """Encrypt until all processes take part, for at most `WARM_UP` seconds; the first to start would work alone."""
    deadline = time.perf_counter() + WARM_UP
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        done = pool.encrypt([0] * 1024)
        if done.seconds > 0.7 * workers * (time.perf_counter() - started):
            return


def _phe(private: PrivateKey, values: Sequence[int], count: int) -> tuple[float, float]:
    """Seconds of encrypting and of decrypting one by one, scaled to `count` values."""
    public, key = private.public.phe, private.phe
    encrypted: list = []
    encrypt = seconds_of(lambda: encrypted.extend(public.encrypt(value) for value in values))
    decrypted = seconds_of(lambda: [key.decrypt(number) for number in encrypted])
    return encrypt * count / len(values), decrypted * count / len(values)
