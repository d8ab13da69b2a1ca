"""Blocks of weights with the same contributors, and what is made of them: against sets written out weight by weight."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.crypto.commitment import BlockDigests
from app.crypto.contributors import Contributors
from app.crypto.paillier.packing import SlotLayout

CELLS = 17


@st.composite
def rounds(draw, most=9):
    """Clients with random coordinates, some of whom share a submodel."""
    sets = draw(st.lists(st.sets(st.integers(0, CELLS - 1)), min_size=1, max_size=5))
    arrays = [np.array(sorted(coordinates), dtype=np.int64) for coordinates in sets]
    chosen = draw(st.lists(st.integers(0, len(arrays) - 1), min_size=1, max_size=most))
    return {10 + 3 * client: arrays[which] for client, which in enumerate(chosen)}


def clients_of(indices, coordinate):
    """Who holds a coordinate."""
    return frozenset(client for client, index in indices.items() if coordinate in index)


@given(rounds())
def test_blocks_are_the_sets_of_contributors(indices):
    """Two coordinates are in one block exactly where the same clients hold them."""
    found = Contributors.of(CELLS, indices)
    sets = [clients_of(indices, coordinate) for coordinate in range(CELLS)]
    for one in range(CELLS):
        for other in range(CELLS):
            assert (found.block_of[one] == found.block_of[other]) == (sets[one] == sets[other])
    for client, index in indices.items():
        assert set(found.blocks_of(client)) == set(found.block_of[index])
        assert found.index(client) is index
    assert found.blocks == len(set(sets))
    assert found.clients == tuple(sorted(indices))


@given(rounds(), st.data())
def test_weights_add_up_coordinate_by_coordinate(indices, data):
    """Also where clients are missing."""
    found = Contributors.of(CELLS, indices)
    present = {client: data.draw(st.integers(0, 50)) for client in indices if data.draw(st.booleans())}
    sums = found.sum_over(present)[found.block_of]
    expected = [
        sum(weight for client, weight in present.items() if coordinate in indices[client])
        for coordinate in range(CELLS)
    ]
    assert sums.tolist() == expected


@given(rounds(), st.integers(1, 4), st.data())
def test_clients_of_thin_coordinates(indices, k, data):
    """Exactly those that share a coordinate with fewer than k - 1 others who are present."""
    present = [client for client in indices if data.draw(st.booleans())]
    thin = [clients_of(indices, coordinate) & set(present) for coordinate in range(CELLS)]
    expected = sorted(set().union(*(clients for clients in thin if len(clients) < k)))
    assert list(Contributors.of(CELLS, indices).few(present, k)) == expected


def test_more_submodels_than_a_word_has_bits():
    """150 clients with a coordinate of their own and one in common."""
    indices = {client: np.array([client, 150]) for client in range(150)}
    found = Contributors.of(152, indices)
    assert found.blocks == 152
    assert found.sum_over(dict.fromkeys(indices, 1.0))[found.block_of].tolist() == [1.0] * 150 + [150.0, 0.0]


@given(rounds(), st.integers(1, 6), st.data())
def test_ciphertexts_can_be_added_place_by_place(indices, slots, data):
    """What clients spread adds up to the sum of each weight; every ciphertext holds weights of its sender."""
    found = Contributors.of(CELLS, indices)
    arrangement = SlotLayout.of(found.block_of, slots)
    total, expected = np.zeros(CELLS, dtype=np.int64), np.zeros(CELLS, dtype=np.int64)
    for index in indices.values():
        values = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=len(index), max_size=len(index))), dtype=int)
        numbers, dense = arrangement.spread(index, values)
        assert numbers.tolist() == arrangement.ciphertexts(index).tolist()
        assert len(numbers) <= len(index)
        total += arrangement.collect(numbers, dense)
        expected[index] += values
    assert total.tolist() == expected.tolist()
    assert sorted(arrangement.place) == list(range(CELLS))


def test_small_submodels_pay_for_small_submodels():
    """Every other coordinate of 1000 fills half as many ciphertexts as all of them, not as many."""
    half = np.arange(0, 1000, 2)
    arrangement = SlotLayout.of(Contributors.of(1000, {0: half, 1: np.arange(1000)}).block_of, 50)
    assert len(arrangement.ciphertexts(half)) == 10
    assert len(arrangement.ciphertexts(np.arange(1000))) == 20


@settings(max_examples=50)
@given(rounds(most=4), st.data())
def test_bindings_agree_exactly_where_common_values_do(indices, data):
    """Two clients derive the same binding if and only if they received the same values where both hold coordinates."""
    found = Contributors.of(CELLS, indices)
    theta = np.arange(CELLS, dtype=np.float32)
    bent = theta.copy()
    bent[data.draw(st.integers(0, CELLS - 1))] += 1
    one, *others = indices
    mine = BlockDigests(found, indices[one], theta[indices[one]])
    for other in others:
        theirs = BlockDigests(found, indices[other], bent[indices[other]])
        common = np.intersect1d(indices[one], indices[other])
        assert (mine.binding(one, other) == theirs.binding(other, one)) == bool((theta == bent)[common].all())
        server = BlockDigests(found, np.arange(CELLS), theta)
        assert server.binding(other, one) == mine.binding(one, other)


def test_very_many_blocks_are_hashed_pair_by_pair(monkeypatch):
    """With the same outcome: equal bindings exactly where common values are equal, on the server's side, too."""
    monkeypatch.setattr("app.crypto.commitment.MANY", 0)
    indices = {0: np.array([0, 1, 3]), 1: np.array([1, 2, 3])}
    found, theta = Contributors.of(4, indices), np.arange(4.0)
    mine, theirs = (BlockDigests(found, index, theta[index]) for index in indices.values())
    assert mine.binding(0, 1) == theirs.binding(1, 0) == BlockDigests(found, np.arange(4), theta).binding(0, 1)
    theta[2] += 1
    assert BlockDigests(found, indices[1], theta[indices[1]]).binding(1, 0) == mine.binding(0, 1)
    theta[3] += 1
    assert BlockDigests(found, indices[1], theta[indices[1]]).binding(1, 0) != mine.binding(0, 1)


def test_binding_is_a_digest_of_digests():
    """So that a client hashes its values once, however many others there are."""
    found = Contributors.of(3, {0: np.array([0, 1]), 1: np.array([1, 2])})
    digests = BlockDigests(found, np.array([0, 1]), np.array([5.0, 6.0]))
    common = hashlib.sha256(np.array([6.0]).tobytes()).digest()
    assert digests.binding(0, 1) == hashlib.sha256(common).digest()


def test_nobody_holds_anything():
    """As where every parameter stays on the clients."""
    nothing = np.zeros(0, dtype=np.int64)
    found = Contributors.of(4, {0: nothing, 1: nothing})
    assert found.blocks_of(0).tolist() == []
    assert found.few([0, 1], 2) == ()
    numbers, dense = SlotLayout.of(found.block_of, 3).spread(nothing, nothing)
    assert (numbers.tolist(), dense.tolist()) == ([], [])
    with pytest.raises(KeyError):
        found.index(7)
    assert len(BlockDigests(found, nothing, np.zeros(0)).binding(0, 1)) == 32
