"""A commitment to one model: clients with unequal submodels notice any coordinate of theirs that is not from it."""

from dataclasses import replace

import numpy as np
import pytest

from app.crypto.commitment import Commitment, root_of
from app.crypto.contributors import Contributors

CELLS = 12
INDICES = {3: np.arange(12), 5: np.arange(6), 7: np.array([0, 2, 4, 7, 9]), 8: np.arange(6)}
HOLDERS = Contributors.of(CELLS, INDICES)
MODEL = np.random.default_rng(4).normal(size=CELLS).astype(np.float32)
MADE = Commitment.to(6, HOLDERS, MODEL)


def test_everybody_finds_own_coordinates_in_it():
    """Whatever the submodel."""
    assert all(MADE.holds(HOLDERS, client, MODEL[index]) for client, index in INDICES.items())
    assert MADE.shown(MADE.root, 6)


@pytest.mark.parametrize("client", INDICES)
def test_any_other_value_is_noticed_by_its_holders_alone(client):
    """One bit of any coordinate, for every client that has it."""
    for coordinate in range(CELLS):
        bent = MODEL.copy()
        bent.view(np.uint32)[coordinate] ^= 1
        index = INDICES[client]
        assert MADE.holds(HOLDERS, client, bent[index]) == (coordinate not in index)


def test_swapped_or_missing_coordinates_are_noticed():
    """The same values at other places, and vectors of another length."""
    index = INDICES[7]
    assert not MADE.holds(HOLDERS, 7, MODEL[index[[1, 0, 2, 3, 4]]])
    assert not MADE.holds(HOLDERS, 7, MODEL[index[:-1]])
    assert not MADE.holds(HOLDERS, 7, MODEL)


def test_digests_shown_to_one_client_only_do_not_fit_the_root():
    """A server that commits to another model before one client is found out when roots are compared."""
    other = MODEL + 1
    apart = Commitment.to(6, HOLDERS, other)
    assert apart.holds(HOLDERS, 5, other[INDICES[5]])
    assert not apart.shown(MADE.root, 6)
    forged = replace(apart, root=MADE.root)
    assert not forged.shown(MADE.root, 6)


def test_a_root_is_of_one_round():
    """An old commitment cannot be shown again."""
    assert not MADE.shown(MADE.root, 7)
    assert not replace(MADE, round=7).shown(MADE.root, 7)
    assert root_of(6, MADE.digests) != root_of(7, MADE.digests)


def test_blocks_and_bytes():
    """One digest for each set of holders, and the root."""
    sets = {tuple(client for client, index in INDICES.items() if coordinate in index) for coordinate in range(CELLS)}
    assert len(MADE.digests) == len(sets) == 4
    assert MADE.size == 32 * (len(sets) + 1)


def test_clients_without_coordinates_find_nothing_wrong():
    """Where everything is personal, there is nothing to commit to."""
    holders = Contributors.of(4, {0: np.array([], dtype=np.int64)})
    assert Commitment.to(0, holders, np.ones(4)).holds(holders, 0, np.array([]))
