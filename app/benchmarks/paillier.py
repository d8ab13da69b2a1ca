"""The scenarios of `scripts/bench paillier`: what encrypted sums cost beside local training and beside `phe` alone.

Whole updates are quantised, packed, encrypted, added and decrypted, and the sum is compared with the plain one. Only
`phe` with one value per ciphertext is measured on some values and scaled to the update: it would take hours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from app.benchmarks.raw import flat, raw_sequence
from app.benchmarks.table import BenchmarkRow, Table, seconds_row
from app.benchmarks.timing import progress
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
"""Most seconds to wait for processes."""

FASTER = 3000
"""How many times faster than `phe` alone encryption should be."""


@dataclass(frozen=True)
class BenchmarkNet:
    """An update and the training it comes from.

    Attributes:
        name: of the network.
        work: one client's training, an epoch per round.
        epochs: of local training.
        lengths: of keys.
        paper: what MemDefense reports as the cost of encryption in all, as a multiple of the time without.
        sampled: values that `phe` encrypts one by one.
        repeats: how often an update is encrypted.
        client_goals: by key length, largest multiples of local training for encrypting, for encrypting and decrypting
            everything, for encrypting and decrypting a share.
        round_goals: by key length, largest multiple of a plain round.
    """

    name: str
    work: Work
    epochs: int
    lengths: tuple[KeyLength, ...]
    paper: float
    sampled: int
    repeats: int
    client_goals: tuple[tuple[KeyLength, tuple[float, float, float]], ...] = ()
    round_goals: tuple[tuple[KeyLength, float], ...] = ()


_LENET = Work(1, 3000, 128, net=LeNet5, shape=DataShape(1, 28, 28, 10), tests=1)
_ALEXNET = Work(1, 3000, 128, net=partial(AlexNet, variant="nasr"), tests=1)
_QUICK = Work(1, 128, 128, net=LeNet5, shape=DataShape(1, 28, 28, 10), tests=1)

FULL = (
    BenchmarkNet("LeNet-5", _LENET, 5, (1024, 2048, 3072), 43, 300, 5, client_goals=((2048, (0.08, 0.8, 0.2)),)),
    BenchmarkNet("AlexNet", _ALEXNET, 5, (1024, 2048), 2863, 300, 1, round_goals=((1024, 1.7), (2048, 3.0))),
)
QUICK = (BenchmarkNet("LeNet-5", _QUICK, 1, (1024,), 43, 10, 1),)


@dataclass(frozen=True)
class Measured:
    """What one update costs with one key. Seconds on the wall, of the repeats where there are some.

    Attributes:
        bits: of the key.
        bytes: of the ciphertexts.
        alone: encrypting in this process, from real numbers to ciphertexts.
        encrypt: the same with `WORKERS` processes.
        add: adding all clients' updates.
        decrypt: decrypting the sum and unpacking it, with `WORKERS` threads.
        decrypt_cpu: the same in CPU seconds.
        phe_encrypt: `phe` with one value per ciphertext, scaled to the update.
        phe_decrypt: the same for decrypting.
    """

    bits: KeyLength
    bytes: int
    alone: Sequence[float]
    encrypt: Sequence[float]
    add: float
    decrypt: float
    decrypt_cpu: float
    phe_encrypt: float
    phe_decrypt: float


def paillier_tables(quick: bool) -> Iterator[Table]:
    """Measure one network after the other."""
    for subject in QUICK if quick else FULL:
        training, update = train(subject)
        found = []
        for bits in subject.lengths:
            progress(f"{subject.name}: {len(update)} values, {bits} bits")
            found.append(measure(bits, update, subject))
        yield encryption_table(subject, len(update), found)
        yield bytes_table(subject, len(update), found)
        yield client_table(subject, training, found)
        yield round_table(subject, training, found)


def train(subject: BenchmarkNet) -> tuple[float, np.ndarray]:
    """Seconds of one client's local training on one thread, and the change it makes."""
    progress(f"{subject.name}: local training")
    with one_thread():
        run = raw_sequence(subject.work, subject.epochs + 1)  # a further epoch warms up
    return sum(run.seconds), (run.vector - flat(subject.work.initial_net())).numpy()


def measure(bits: KeyLength, update: np.ndarray, subject: BenchmarkNet) -> Measured:
    """One update from real numbers to the decrypted sum of as many as there are clients."""
    private = generate(bits)
    packing = Packing.fit(bits, CLIENTS * POINT.largest)
    alone, _ = _encryptions(private, packing, update, subject.repeats, workers=1)
    spread, ciphertexts = _encryptions(private, packing, update, subject.repeats, workers=WORKERS)
    total = EncryptedSum(private.public)
    add = sum(_seconds(partial(total.add, range(len(ciphertexts)), ciphertexts)) for _ in range(CLIENTS))
    started = time.perf_counter()
    opened = decrypt(private, total.ciphertexts, WORKERS, progress=True)
    sums = packing.unpack(opened.plaintexts, len(update))
    seconds = time.perf_counter() - started
    expected = CLIENTS * POINT.quantise(update, "clip")
    if not ((sums.values == expected).all() and (sums.contributors == CLIENTS).all()):
        raise RuntimeError(f"the encrypted sum is wrong with {bits} bits")
    one_by_one = _phe(private, expected[: subject.sampled].tolist(), len(update))
    size = len(to_bytes(private.public, ciphertexts))
    return Measured(bits, size, alone, spread, add, seconds, opened.seconds, *one_by_one)


def encryption_table(subject: BenchmarkNet, values: int, found: Sequence[Measured]) -> Table:
    """Encrypting one update, beside `phe` with one value per ciphertext."""
    rows = []
    for one in found:
        base = one.phe_encrypt / FASTER
        scaled = f"{one.bits} bits, phe one by one ({subject.sampled} values, scaled)"
        rows.append(seconds_row(scaled, [one.phe_encrypt], [], base))
        for name, seconds in (("1 process", one.alone), (f"{WORKERS} processes", one.encrypt)):
            row = seconds_row(f"{one.bits} bits, {name}", seconds, [], base, 1.0 if one.bits == 2048 else None)
            rows.append(replace(row, remark=f"{one.phe_encrypt / row.value:.0f} times as fast as phe"))
    title = f"encrypting an update of {subject.name}, {values} values: quantise, pack, encrypt"
    return Table(title, "s", f"phe / {FASTER}", tuple(rows), ("Starting processes and tables are not included.",))


def bytes_table(subject: BenchmarkNet, values: int, found: Sequence[Measured]) -> Table:
    """Size of one encrypted update."""
    plain = 4 * values
    rows = [_bytes_row("plain float32", plain, plain)]
    for one in found:
        rows.append(_bytes_row(f"{one.bits} bits", one.bytes, plain, 1.6 if one.bits == 2048 else None))
        rows.append(_bytes_row(f"{one.bits} bits, one value per ciphertext", values * one.bits // 4, plain))
    return Table(f"bytes of an update of {subject.name}", "MB", "plain float32", tuple(rows))


def client_table(subject: BenchmarkNet, training: float, found: Sequence[Measured]) -> Table:
    """What a client spends on encryption in a round, beside its training."""
    rows = [seconds_row("local training, one thread", [training], [], training)]
    for one in found:
        goals = dict(subject.client_goals).get(one.bits, (None, None, None))
        encrypt = median(one.encrypt)
        parts: list[tuple[str, float, float, float | None]] = [
            ("encrypt, 1 process", median(one.alone), math.nan, None),
            (f"encrypt, {WORKERS} processes", encrypt, math.nan, goals[0]),
            (f"and decrypt everything, {WORKERS} threads", encrypt + one.decrypt, math.nan, goals[1]),
            (f"and decrypt 1/{CLIENTS}, {WORKERS} threads", encrypt + one.decrypt / CLIENTS, math.nan, goals[2]),
            ("decrypt everything, by itself", one.decrypt, one.decrypt_cpu, None),
            (f"server: add {CLIENTS} updates (one, {CLIENTS} times)", one.add, math.nan, None),
            (f"phe one by one ({subject.sampled} values, scaled)", one.phe_encrypt + one.phe_decrypt, math.nan, None),
        ]
        rows += [
            BenchmarkRow(f"{one.bits} bits, {name}", s, s, cpu, s / training, goal) for name, s, cpu, goal in parts
        ]
    title = f"a client's round, {subject.name}: {subject.work.samples} samples, epochs: {subject.epochs}"
    return Table(title, "s", "local training", tuple(rows))


def round_table(subject: BenchmarkNet, training: float, found: Sequence[Measured]) -> Table:
    """A round of all clients on `WORKERS` cores, put together from the measured parts."""
    plain = CLIENTS * training / WORKERS
    rows = [seconds_row("plain", [plain], [], plain)]
    for one in found:
        encrypted = plain + CLIENTS * median(one.encrypt) + one.add
        goal = dict(subject.round_goals).get(one.bits)
        rows.append(seconds_row(f"{one.bits} bits, decrypted once", [encrypted + one.decrypt], [], plain, goal))
    title = f"a round of {CLIENTS} clients on {WORKERS} cores, {subject.name}, put together from the parts above"
    remark = f"MemDefense reports {subject.paper:g}x for encryption in all, with its own code on its own machine."
    return Table(title, "s", "plain", tuple(rows), (remark,))


def _encryptions(
    private: PrivateKey, packing: Packing, update: np.ndarray, repeats: int, workers: int
) -> tuple[list[float], list[int]]:
    """Seconds of the repeats, and the ciphertexts of the last one."""
    with closing(EncryptionPool(private.public, "short", workers, progress=True)) as pool:

        def whole() -> Encrypted:
            return pool.encrypt(packing.pack(POINT.quantise(update, "clip")))

        _warm_up(pool, workers)
        made: list[Encrypted] = []
        seconds = [_seconds(lambda: made.append(whole())) for _ in range(repeats)]
    return seconds, made[-1].ciphertexts


def _warm_up(pool: EncryptionPool, workers: int) -> None:
    """Give jobs until all processes work on them, for at most some seconds: the first to start would do them alone."""
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
    encrypt = _seconds(lambda: encrypted.extend(public.encrypt(value) for value in values))
    decrypted = _seconds(lambda: [key.decrypt(number) for number in encrypted])
    return encrypt * count / len(values), decrypted * count / len(values)


def _bytes_row(name: str, size: int, plain: int, goal: float | None = None) -> BenchmarkRow:
    return BenchmarkRow(name, size / 1e6, size / 1e6, math.nan, size / plain, goal)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
