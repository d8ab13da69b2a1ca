"""Degree, threshold and gap of neighbour graphs against exact counts, and the public randomness that orders them."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from app.crypto.secure_aggregation import parameters
from app.crypto.secure_aggregation.beacon import RandomnessBeacon, commitment
from app.crypto.secure_aggregation.graph import Ring
from app.crypto.secure_aggregation.parameters import GraphParameters, GraphSettings, smallest, sufficient


def at_least(total, marked, drawn, count):
    """The chance of at least `count` marked ones among `drawn` of `total`, exactly."""
    ways = sum(comb(marked, hit) * comb(total - marked, drawn - hit) for hit in range(max(0, count), drawn + 1))
    return Fraction(ways, comb(total, drawn))


def holds(clients, lost, against, graph):
    """The paper's conditions, in whole numbers: the chances over all clients."""
    degree, threshold, half = graph.degree, graph.threshold, graph.degree // 2
    secure, works = Fraction(1, 2**40), Fraction(1, 2**20)
    return (
        clients * at_least(clients - 1, against, degree, 2 * threshold - degree - 1) <= secure
        and clients * at_least(clients - 1, lost, degree, degree - threshold + 1) <= works
        and clients * at_least(clients, against, half, half - graph.gap) <= secure
        and clients * at_least(clients, lost, half, graph.gap + 1) <= works
    )


@pytest.mark.parametrize(("clients", "dropouts", "colluders"), [(24, 0.1, 0.1), (130, 0.05, 0.1)])
def test_smallest_graph_meets_the_conditions_exactly(clients, dropouts, colluders):
    """No threshold and gap of the next smaller degree do, nor does a threshold one higher."""
    lost, against = -(-clients // round(1 / dropouts)), -(-clients // round(1 / colluders))
    found = smallest(clients, dropouts, colluders)
    assert holds(clients, lost, against, found)
    assert not holds(clients, lost, against, GraphParameters(found.degree, found.threshold + 1, found.gap))
    less = found.degree - 2
    options = [
        GraphParameters(less, threshold, gap) for threshold in range(less // 2, less + 1) for gap in range(less // 2)
    ]
    assert not any(holds(clients, lost, against, one) for one in options)


def test_degree_grows_with_the_logarithm():
    """From 250 clients on, twice as many need a few neighbours more; a client's messages grow as little."""
    degrees = [smallest(clients, 0.05, 0.1).degree for clients in (250, 500, 1000, 2000)]
    assert degrees == sorted(degrees)
    assert max(np.diff(degrees)) <= 10


def test_automatic_choice():
    """All pairs in small rounds, and wherever nothing less withstands what it should."""
    assert GraphSettings().sparse(127) is None
    assert GraphSettings().sparse(128) == GraphSettings(2).sparse(128) == smallest(128, 0.05, 0.1)
    assert GraphSettings("all").sparse(1000) is None
    assert GraphSettings("auto", 0.4, 0.3).sparse(200) is None
    assert GraphSettings(60).sparse(128) == sufficient(128, 60, 0.05, 0.1)
    assert [smallest(clients, 0.05, 0.1) for clients in (1, 2, 3)] == [None] * 3


def honest_parts(ring, present):
    """Number of connected parts among the clients present."""
    place = {client: number for number, client in enumerate(ring.clients)}
    pairs = np.array([(place[one], place[other]) for one, other in ring.edges()])
    kept = np.array([client in present for client in ring.clients])
    pairs = pairs[kept[pairs].all(axis=1)]
    size = len(ring.clients)
    found = coo_array((np.ones(len(pairs)), tuple(pairs.T)), (size, size)).tocsr()[kept][:, kept]
    return connected_components(found)[0]


def test_honest_graph_is_connected_with_the_stated_chance(monkeypatch):
    """At chances of 1/8, which can be simulated; lists of drop-outs that clients accept are as frequent."""
    monkeypatch.setattr(parameters, "SECURITY_BITS", 3)
    monkeypatch.setattr(parameters, "FAILURE_BITS", 3)
    ring = Ring.of(tuple(range(60)), sufficient.__wrapped__(60, 14, 0.1, 0.2))
    rng, cut, refused = np.random.default_rng(0), 0, 0
    for _ in range(120):
        drawn = rng.permutation(60).tolist()
        present = set(drawn[6:])
        crowded = ring.crowded(present)
        refused, cut = refused + crowded, cut + (honest_parts(ring, present - set(drawn[-12:])) > 1 and not crowded)
    assert cut / 120 <= 1 / 8
    assert refused / 120 <= 1 / 8


def test_server_that_drops_a_neighbourhood_is_noticed():
    """It knows the ring, and names just those drop-outs that leave one honest client alone beside its colluders."""
    ring, rng = Ring.of(tuple(range(60)), smallest(60, 0.1, 0.1)), np.random.default_rng(0)
    for victim in range(0, 60, 10):
        against = set((rng.permutation(np.delete(np.arange(60), victim))[:6]).tolist())
        near = {(victim + step) % 60 for step in range(-ring.half, ring.half + 1)}
        gone = near - against - {victim}
        assert honest_parts(ring, set(range(60)) - against - gone) == 2
        assert ring.crowded(set(range(60)) - gone)


def test_crowded_counts_clients_in_a_row():
    """The ring closes, and drop-outs elsewhere do not add up."""
    ring = Ring(tuple(range(20)), 4, 2)
    assert not ring.crowded(set(range(20)) - {0, 1, 5, 6, 10})
    assert ring.crowded(set(range(20)) - {0, 1, 3})
    assert ring.crowded(set(range(20)) - {19, 0, 1})
    assert not Ring.of((4, 2, 9), None).crowded({4})


def opened(parts, order=None):
    """A beacon to which these contributions were made."""
    beacon = RandomnessBeacon()
    for client, part in parts.items():
        beacon.commit(client, commitment(part))
    for client in order or parts:
        beacon.open(client, parts[client])
    return beacon


def test_beacon_depends_on_every_client_and_round():
    """And not on the order in which contributions arrive."""
    parts = {client: bytes([client]) * 32 for client in range(4)}
    value = opened(parts).value(1)
    assert value == opened(parts, [3, 1, 0, 2]).value(1) != opened(parts).value(2)
    assert all(opened({**parts, client: bytes(31) + b"!"}).value(1) != value for client in parts)


def test_nobody_contributes_with_knowledge_of_the_others():
    """A last contribution that is chosen, changed or kept back gives no value."""
    parts = {client: bytes([client]) * 32 for client in range(3)}
    beacon = RandomnessBeacon()
    for client in (0, 1):
        beacon.commit(client, commitment(parts[client]))
    beacon.open(0, parts[0])
    with pytest.raises(ValueError, match="client 2 commits after contributions were opened"):
        beacon.commit(2, commitment(parts[2]))
    with pytest.raises(ValueError, match="client 1 is not the one it committed to"):
        beacon.open(1, parts[2])
    with pytest.raises(ValueError, match=r"clients \[1\] are missing"):
        beacon.value(1)
    fresh = RandomnessBeacon()
    fresh.commit(0, commitment(parts[0]))
    with pytest.raises(ValueError, match="client 0 has committed to another"):
        fresh.commit(0, commitment(parts[1]))
