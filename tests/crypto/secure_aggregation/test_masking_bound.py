"""Masks bound to the model: they cancel only among clients that were given the same values."""

import hashlib

import numpy as np
import pytest
from masking_kit import NARROW, Federation, plain_sum

from app.crypto.secure_aggregation.layout import VectorLayout

CLIENTS = [0, 1, 2, 3, 4, 5]
PEOPLE = Federation(CLIENTS)
LENGTH = 300
WIDE_PART, NARROW_PART, APART = np.arange(200), np.arange(50, 150), np.arange(200, 300)
POSITIONS = {0: WIDE_PART, 1: WIDE_PART, 2: NARROW_PART, 3: NARROW_PART, 4: APART, 5: APART}
"""Two cohorts that overlap in 50..149, and one for itself."""

LAYOUT = VectorLayout(LENGTH, NARROW, POSITIONS, 4)
MODEL = np.random.default_rng(0).normal(size=LENGTH).astype(np.float32)
TRAP = np.ones(LENGTH, dtype=np.float32)


def values():
    """Updates of all clients."""
    rng = np.random.default_rng(1)
    return {client: rng.integers(-1000, 1000, LAYOUT.size(client)) for client in CLIENTS}


def digests(models):
    """What a client hashes: of the values it received, those that the other one holds as well."""

    def digest(client, peer):
        common = np.intersect1d(POSITIONS[client], POSITIONS[peer])
        return hashlib.sha256(models.get(client, MODEL)[common].tobytes()).digest()

    return digest


def run(bindings, sent, dies=None):
    """Sums, and what they should be."""
    given = values()
    round_ = PEOPLE.round(0, LAYOUT, given, bindings, dies)
    total = round_.run(sent)
    return total, plain_sum(LAYOUT, given, round_.server.arrived)


@pytest.mark.parametrize("dies", [{}, {1: "masked"}, {1: "masked", 3: "masked"}, {2: "shares", 4: "masked"}])
def test_honest_sum_over_unequal_submodels_is_exact(dies):
    """Everybody got the same model: masks cancel, also those of clients that dropped out."""
    total, expected = run(digests({}), digests({}), dies)
    assert total.tolist() == expected.tolist()


def test_inconsistent_model_makes_the_shared_coordinates_garbage():
    """One cohort got other values: nothing is learned where it overlaps with others, the other weights are exact."""
    total, expected = run(digests({2: TRAP, 3: TRAP}), digests({}))
    wrong = total != expected
    assert wrong[50:150].all()
    assert not wrong[:50].any()
    assert not wrong[150:].any()


def test_one_deceived_client_of_a_cohort():
    """Its cohort shares all its weights with it: all of them are lost, the other cohort's own weights are not."""
    total, expected = run(digests({0: TRAP}), digests({}))
    wrong = total != expected
    assert wrong[:200].all()
    assert not wrong[200:].any()


def test_ordinary_masks_hand_the_sum_over():
    """Without binding the same attack succeeds: the server gets every sum."""
    total, expected = run(None, None)
    assert total.tolist() == expected.tolist()


def test_recovery_needs_the_right_digest():
    """A server that removes the masks of a lost client as if they were not bound, or for another model, gets noise."""
    honest = digests({})
    for sent in (None, digests(dict.fromkeys(CLIENTS, TRAP))):
        total, expected = run(honest, sent, {1: "masked"})
        wrong = total != expected
        assert wrong[:200].all()
        assert not wrong[200:].any()


def test_only_clients_with_common_coordinates_are_asked():
    """A digest of nothing is never needed."""
    asked = set()

    def watched(client, peer):
        asked.add((client, peer))
        return b""

    run(watched, watched)
    assert all(np.intersect1d(POSITIONS[client], POSITIONS[peer]).size for client, peer in asked)
    assert len(asked) == 4 * 3 + 2
