"""Sums of packed plaintexts are sums of the values, as long as slots are wide enough, and no longer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import UserError
from app.crypto.paillier.packing import CHECK_BITS, CorruptedError, Packing

CLIENTS = 20
LARGEST = 2**19 - 1
MODULUS = 1024


def by_definition(packing, values):
    """Plaintexts, written down as the sum they are."""
    filled = [int(value) for value in values] + [0] * (-len(values) % packing.slots)
    rows = [filled[start : start + packing.slots] for start in range(0, len(filled), packing.slots)]
    one = 2 ** (packing.slots * packing.width)
    return [one + sum(value * 2 ** (slot * packing.width) for slot, value in enumerate(row)) for row in rows]


def summed(packing, updates):
    """Plaintexts of several updates, added up."""
    return [sum(column) for column in zip(*(packing.pack(update) for update in updates), strict=True)]


def worst_cases(count):
    """Updates of extreme values: all high, all low, alternating."""
    high = np.full(count, LARGEST)
    return [high, -high, high * (-1) ** np.arange(count), -high * (-1) ** np.arange(count)]


@pytest.mark.parametrize("case", range(4))
def test_worst_case_of_twenty_clients_is_exact(case):
    """Twenty extreme updates of one sign, or of alternating signs, add up exactly."""
    packing = Packing.fit(MODULUS, CLIENTS * LARGEST)
    update = worst_cases(100)[case]
    found = packing.unpack(summed(packing, [update] * CLIENTS), 100)
    assert (found.values == CLIENTS * update).all()
    assert (found.contributors == CLIENTS).all()


@pytest.mark.parametrize("missing", [1, 2])
def test_fewer_bits_would_be_wrong(missing):
    """Every value fits into narrower slots, but no slot of the sum would be right: the bound is tight."""
    packing = Packing.fit(MODULUS, CLIENTS * LARGEST)
    narrow = Packing(packing.width - missing, 30)
    update = worst_cases(30)[0]
    found = narrow.unpack(summed(narrow, [update] * CLIENTS), 30)
    assert (found.values != CLIENTS * update).all()


@settings(deadline=None, max_examples=60)
@given(bits=st.integers(100, 4096), largest=st.integers(1, 2**62 - 1))
def test_fit_is_tight_in_both_directions(bits, largest):
    """Slots hold the sum and not one bit more; there are as many as fit, and not one more."""
    packing = Packing.fit(bits, largest)
    assert 2 ** (packing.width - 2) - 1 < largest <= 2 ** (packing.width - 1) - 1 == packing.largest
    used = packing.slots * packing.width + CHECK_BITS + 3
    assert used <= bits < used + packing.width


def test_plaintexts_stay_below_a_third_of_the_modulus():
    """phe would take larger ones for negative numbers, even at the largest count and the smallest modulus."""
    packing = Packing.fit(MODULUS, LARGEST)
    most = (2**CHECK_BITS) * 2 ** (packing.slots * packing.width)
    assert 3 * most < 2 ** (MODULUS - 1)


def test_slots_beyond_64_bits_or_the_key_are_refused():
    """With the options to change; one step less is accepted."""
    assert Packing.fit(2048, 2**62 - 1).width == 63
    assert Packing.fit(40, 2**16 - 1) == Packing(17, 1)
    for bits, largest in ((2048, 2**62), (40, 2**16)):
        with pytest.raises(UserError, match=r"overflow(.|\n)*--defenses\.NAME\.bits(.|\n)*key_length"):
            Packing.fit(bits, largest)


def test_values_that_do_not_fit_are_refused():
    """In both directions, the extreme of int64 included; the largest value is accepted."""
    packing = Packing(8, 3)
    assert packing.unpack(packing.pack(np.array([127, -127])), 2).values.tolist() == [127, -127]
    for value in (128, -128, np.iinfo(np.int64).min):
        with pytest.raises(ValueError, match="exceeds 127"):
            packing.pack(np.array([0, value]))


def test_plaintexts_are_what_they_are_defined_to_be():
    """Signed values side by side and a 1 above them; the last plaintext is filled up with zeros."""
    packing = Packing(4, 3)
    assert packing.pack(np.array([1, -2, 3, 7])) == [1 - 2 * 16 + 3 * 256 + 4096, 7 + 4096]
    assert [packing.plaintexts(count) for count in (0, 1, 3, 4)] == [0, 1, 1, 2]
    assert packing.pack(np.array([], dtype=np.int64)) == []
    assert packing.unpack([], 0).values.tolist() == []


@st.composite
def federations(draw):
    """A packing and the updates of some clients that it has room for."""
    width, slots, clients = draw(st.integers(8, 63)), draw(st.integers(1, 40)), draw(st.integers(1, 20))
    count, largest = draw(st.integers(1, 100)), (2 ** (width - 1) - 1) // clients
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    updates = rng.integers(-largest, largest, (clients, count), endpoint=True)
    extreme = rng.random((clients, count)) < 0.2
    return Packing(width, slots), np.where(extreme, np.sign(updates) * largest, updates)


@settings(deadline=None, max_examples=80)
@given(federations())
def test_sums_come_back(federation):
    """Packing follows its definition, and unpacking the sum gives the sum, for all widths, lengths and clients."""
    packing, updates = federation
    assert packing.pack(updates[0]) == by_definition(packing, updates[0])
    found = packing.unpack(summed(packing, updates), updates.shape[1])
    assert (found.values == updates.sum(0)).all()
    assert (found.contributors == len(updates)).all()


def test_long_vectors_come_back():
    """More values than are worked on at a time, with a last plaintext that is not full."""
    packing = Packing.fit(2048, CLIENTS * LARGEST)
    assert packing == Packing(25, 81)
    values = np.random.default_rng(0).integers(-LARGEST, LARGEST, 200_003, endpoint=True)
    plaintexts = packing.pack(values)
    assert len(plaintexts) == packing.plaintexts(len(values)) == 2470
    assert plaintexts == by_definition(packing, values)
    assert (packing.unpack(plaintexts, len(values)).values == values).all()


def test_what_is_no_sum_is_told():
    """Numbers below and above all sums are named; the largest count is accepted."""
    packing = Packing(8, 4)
    one = 2**32
    most = (2**CHECK_BITS - 1) * one
    assert packing.unpack([most, one], 8).contributors.tolist() == [2**CHECK_BITS - 1, 1]
    with pytest.raises(CorruptedError, match="2 plaintexts") as caught:
        packing.unpack([most + one, one, -one], 12)
    assert caught.value.positions == (0, 2)


def test_number_of_plaintexts_must_agree():
    """A plaintext too few or too many is not overlooked."""
    packing = Packing(8, 4)
    for count in (4, 9):
        with pytest.raises(ValueError, match="plaintexts"):
            packing.unpack([2**32] * 2, count)
