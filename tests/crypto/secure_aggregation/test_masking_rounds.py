"""Whole rounds: the sum is exact whoever drops out when, and nothing but the sum comes out."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masking_kit import NARROW, WIDE, Federation, plain_sum, whole
from scipy.stats import chisquare

from app.crypto.secure_aggregation.agreement import KeyPair
from app.crypto.secure_aggregation.client import AbortedRoundError, AggregationClient, PublicKeys
from app.crypto.secure_aggregation.layout import VectorLayout
from app.crypto.secure_aggregation.masks import PairwiseKeys, pairwise_mask
from app.crypto.secure_aggregation.secret_sharing import join
from app.crypto.secure_aggregation.server import AggregationServer
from app.crypto.secure_aggregation.streams import add_stream

CLIENTS = [2, 3, 5, 8, 9, 12]
PEOPLE = Federation(CLIENTS)
"""Identities are made once; everything else is fresh in every round."""


def numbers(layout, seed=0, largest=2**20):
    """Values of every client."""
    rng = np.random.default_rng(seed)
    return {client: rng.integers(-largest, largest, layout.size(client)) for client in layout.positions}


def uniform(words):
    """Whether the bytes are spread evenly; a good stream fails once in a thousand million times."""
    counts = np.bincount(np.frombuffer(words.tobytes(), dtype=np.uint8), minlength=256)
    return chisquare(counts).pvalue > 1e-9


@st.composite
def layouts(draw):
    """Submodels that may be the same, nested, overlapping, disjoint or empty."""
    length = draw(st.integers(1, 12))
    coordinates = st.sets(st.integers(0, length - 1)).map(sorted)
    submodels = [np.array(draw(coordinates), dtype=np.int64) for _ in range(draw(st.integers(1, 3)))]
    clients = draw(st.lists(st.sampled_from(CLIENTS), min_size=2, unique=True))
    threshold = draw(st.integers(len(clients) // 2 + 1, len(clients)))
    positions = {client: draw(st.sampled_from(submodels)) for client in clients}
    return VectorLayout(length, draw(st.sampled_from([NARROW, WIDE])), positions, threshold)


@settings(max_examples=80, deadline=None)
@given(layouts(), st.data())
def test_sum_is_exact_or_the_round_is_aborted(layout, data):
    """Exactly the clients whose values arrived are in the sum, or too few were left; never anything else."""
    steps = st.sampled_from(["keys", "shares", "masked", "survivors", "reveal"])
    dies = data.draw(st.dictionaries(st.sampled_from(sorted(layout.positions)), steps))
    limit = 2 ** (8 * layout.word.itemsize - 4)
    values = numbers(layout, data.draw(st.integers(0, 99)), limit)
    round_ = PEOPLE.round(1, layout, values, dies=dies)
    left = {step: len(round_.alive(step, layout.positions)) for step in ("keys", "shares", "masked", "reveal")}
    if min(left.values()) < layout.threshold:
        with pytest.raises(AbortedRoundError, match=f"threshold {layout.threshold}"):
            round_.run()
        return
    assert round_.run().tolist() == plain_sum(layout, values, round_.alive("masked", layout.positions)).tolist()


@pytest.mark.parametrize("word", [NARROW, WIDE])
def test_sum_is_exact_modulo_the_width(word):
    """Sums that the width does not hold come out modulo it: nothing is lost in between."""
    layout = whole(CLIENTS, 50, 4, word)
    top = 2 ** (8 * word.itemsize - 1) - 1
    values = {client: np.full(50, top) - np.arange(50) for client in CLIENTS}
    total = PEOPLE.round(0, layout, values).run()
    width = 8 * word.itemsize
    expected = [6 * (top - place) % 2**width for place in range(50)]
    assert [number % 2**width for number in total.tolist()] == expected


def test_weights_travel_with_the_values():
    """A weighted mean from [w, w x]: the sum of both is exact, so the mean is."""
    layout = whole(CLIENTS, 4, 4)
    weights = {client: place + 1 for place, client in enumerate(CLIENTS)}
    values = {client: np.array([weight, weight * 3, weight * -client, 0]) for client, weight in weights.items()}
    total = PEOPLE.round(0, layout, values).run()
    assert total.tolist() == [21, 63, -sum(client * weight for client, weight in weights.items()), 0]


def test_large_vectors_with_unequal_submodels():
    """Longer than one piece of a stream, scattered, with two clients lost after the shares."""
    rng = np.random.default_rng(1)
    length = 40_000
    submodels = [np.arange(length), np.sort(rng.choice(length, 25_000, replace=False)), np.arange(500, 30_000)]
    layout = VectorLayout(length, NARROW, {client: submodels[place % 3] for place, client in enumerate(CLIENTS)}, 4)
    values = numbers(layout)
    round_ = PEOPLE.round(0, layout, values, dies={3: "masked", 12: "masked"})
    assert (round_.run() == plain_sum(layout, values, [2, 5, 8, 9])).all()


def test_dropout_is_wrong_without_recovery_and_exact_with_it():
    """The masks that survivors share with a lost client stay in the sum until its key is put together."""
    layout = whole(CLIENTS, 1000, 4)
    values = numbers(layout)
    round_ = PEOPLE.round(0, layout, values, dies={5: "masked"}).until_masked()
    reveals, expected = round_.reveals(), plain_sum(layout, values, [2, 3, 8, 9, 12])
    assert round_.server.dropped == [5]
    assert (round_.server.unmask(reveals) == expected).all()
    forgetful = copy.deepcopy(round_.server)
    forgetful.exclude([5])
    assert forgetful.dropped == []
    assert (forgetful.unmask(reveals) != expected).mean() > 0.99


def test_unmasking_twice_gives_the_same():
    """The running sum stays masked: nothing is taken away from it."""
    layout = whole(CLIENTS, 10, 4)
    round_ = PEOPLE.round(0, layout, numbers(layout)).until_masked()
    reveals = round_.reveals()
    assert (round_.server.unmask(reveals) == round_.server.unmask(reveals)).all()


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "survivors", "reveal"])
def test_too_few_survivors_abort_the_round(step):
    """Three of six are left at some step, four are needed: the reason names the counts."""
    layout = whole(CLIENTS, 10, 4)
    with pytest.raises(AbortedRoundError, match=r"\b[03] clients .*, threshold 4"):
        PEOPLE.round(0, layout, numbers(layout), dies=dict.fromkeys([3, 8, 12], step)).run()
    enough = PEOPLE.round(0, layout, numbers(layout), dies=dict.fromkeys([3, 8], step))
    assert enough.run().shape == (10,)


def test_missing_clients_are_named():
    """Who sent no vector, and who did not answer."""
    layout = whole(CLIENTS, 10, 5)
    round_ = PEOPLE.round(0, layout, numbers(layout), dies={8: "masked", 3: "masked"}).until_masked()
    with pytest.raises(AbortedRoundError, match="4 clients survived, threshold 5; missing: 3, 8"):
        round_.reveals()
    with pytest.raises(AbortedRoundError, match="4 clients sent masked vectors, threshold 5; missing: 3, 8"):
        round_.server.unmask([])
    with pytest.raises(AbortedRoundError, match="4 clients revealed shares, threshold 5; missing: 3, 8"):
        PEOPLE.round(0, layout, numbers(layout), dies={8: "reveal", 3: "reveal"}).run()


def test_masked_vector_is_uniform():
    """A client with nobody to share coordinates with is hidden by its own mask alone; its zeros look like noise."""
    length = 100_000
    positions = {2: np.arange(length), 3: np.arange(length, length + 5)}
    layout = VectorLayout(length + 5, NARROW, positions, 2)
    round_ = PEOPLE.round(0, layout, {client: np.zeros(layout.size(client), dtype=int) for client in positions})
    round_.keys()
    round_.shares()
    body = np.frombuffer(round_.masked_by(2).body, dtype=NARROW)
    assert uniform(body)
    assert not uniform(np.zeros_like(body))


def test_vector_that_comes_too_late_stays_hidden():
    """The server has the masking key of a client it gave up; the client's own mask still covers its values."""
    layout = whole(CLIENTS, 100_000, 4)
    round_ = PEOPLE.round(0, layout, {client: np.zeros(100_000, dtype=int) for client in CLIENTS}, dies={5: "masked"})
    round_.until_masked()
    shares, _ = round_.server._collect(round_.reveals())
    late = np.frombuffer(round_.masked_by(5).body, dtype=NARROW)
    pair = KeyPair(5, join({share.point: share for share in _of(shares, 5)}))
    roster = round_.server.roster
    keys = PairwiseKeys(pair, round_.session, 0, lambda peer: roster[peer].masking, None)
    bare = late - pairwise_mask(layout, keys, [client for client in CLIENTS if client != 5])
    assert uniform(bare)
    add_stream(bare, round_.clients[5]._seed, negative=True)
    assert not bare.any()


def _of(shares, owner):
    """All shares that were revealed of a client."""
    return [share for (client, _), held in shares.items() if client == owner for share in held.values()]


def test_sum_is_noise_until_it_is_unmasked():
    """With everybody there, pairwise masks are gone, and the own masks still cover everything."""
    layout = whole(CLIENTS, 100_000, 4)
    round_ = PEOPLE.round(0, layout, {client: np.zeros(100_000, dtype=int) for client in CLIENTS}).until_masked()
    assert uniform(round_.server.sum)


def test_masks_are_fresh_in_every_round():
    """The same values twice: the difference of two masked vectors is noise, not zero."""
    layout = whole(CLIENTS, 1000, 4)
    values = numbers(layout)
    bodies = []
    for number in (0, 1):
        round_ = PEOPLE.round(number, layout, values)
        round_.keys()
        round_.shares()
        bodies.append(np.frombuffer(round_.masked_by(2).body, dtype=NARROW))
    assert not (bodies[0] == bodies[1]).any()


def test_parts_of_several_processes_make_one_sum():
    """A part that saw no keys accepts vectors; merged, the sum is that of one process."""
    layout = whole(CLIENTS, 30, 4)
    values = numbers(layout)
    round_ = PEOPLE.round(0, layout, values)
    round_.keys()
    round_.shares()
    part = AggregationServer(round_.session, 0, layout, PEOPLE.registry)
    for client in CLIENTS:
        (round_.server if client < 6 else part).add_masked(round_.masked_by(client))
    assert (round_.server.arrived, part.arrived) == ([2, 3, 5], [8, 9, 12])
    round_.server.merge(*pickle.loads(pickle.dumps((part.sum, part.arrived))))
    assert round_.server.arrived == CLIENTS
    assert (round_.server.unmask(round_.reveals()) == plain_sum(layout, values, CLIENTS)).all()


def test_parts_that_do_not_fit_are_refused():
    """A client in both parts, one that did not settle, and sums of other words."""
    layout = whole(CLIENTS, 3, 4)
    round_ = PEOPLE.round(0, layout, numbers(layout), dies={12: "shares", 2: "masked"}).until_masked()
    for sum_, arrived in [
        (np.zeros(3, NARROW), [2, 3]),
        (np.zeros(3, NARROW), [12]),
        (np.zeros(3, WIDE), [2]),
        (np.zeros(4, NARROW), [2]),
    ]:
        with pytest.raises(ValueError, match="cannot be added"):
            round_.server.merge(sum_, arrived)
    assert round_.server.arrived == [3, 5, 8, 9]


def test_what_is_public_travels_between_processes():
    """Keys are pickled and written as bytes; other lengths are refused."""
    keys = PublicKeys(bytes(32), b"\1" * 32, b"\2" * 32)
    assert pickle.loads(pickle.dumps(keys)) == keys == PublicKeys.from_bytes(keys.to_bytes())
    with pytest.raises(ValueError, match="96 bytes, not 95"):
        PublicKeys.from_bytes(bytes(95))


def test_participants_stay_where_they_are():
    """Neither pickled nor copied nor shown."""
    layout = whole(CLIENTS, 3, 4)
    round_ = PEOPLE.round(0, layout, {})
    participant = round_.clients[5]
    assert repr(participant) == "AggregationClient(client=5)"
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="AggregationClient holds secrets"):
            leave(participant)
    with pytest.raises(ValueError, match="client 7 is not in the layout"):
        AggregationClient(7, PEOPLE.identities[5], bytes(16), 0, layout, round_.rules)
