"""Who can afford how much of the network: settings in several forms, fixed or dealt anew."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from federation_kit import TINY_MLP, Blobs, Recorder, run, small_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.capacities import Capacities
from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.submodels import Prefix
from app.models import MLP, DataShape

SIZES = [50, 90, 10, 70, 30]
"""Samples of five clients; from most to least data they are 1, 3, 0, 4, 2."""


def test_without_settings_everybody_trains_everything():
    """No settings, no list, an empty list: capacity 1."""
    for given_ in (None, [], Capacities()):
        assert Capacities.of(given_).assign(SIZES, 0) == (1.0,) * 5


def test_a_plain_list_is_a_list_of_rates():
    """One for all, or one per client in the order of the ids, whoever has most data."""
    assert Capacities.of([0.5]).assign(SIZES, 0) == (0.5,) * 5
    assert Capacities.of((0.25, 1, 0.5, 1, 0.5)).assign(SIZES, 0) == (0.25, 1.0, 0.5, 1.0, 0.5)
    assert Capacities.of(Capacities(large=1)) == Capacities(large=1)


@pytest.mark.parametrize("widest", ["data", "first"])
def test_rates_by_client_are_taken_as_they_stand(widest):
    """A list says itself who gets what."""
    rates = [0.25, 1.0, 0.5, 0.125, 0.5]
    assert Capacities(rates=rates, widest=widest).assign(SIZES, 7) == tuple(rates)


@pytest.mark.parametrize(
    ("large", "expected"),
    [
        (0, (0.5, 0.5, 0.5, 0.5, 0.5)),
        (1, (0.5, 1.0, 0.5, 0.5, 0.5)),
        (2, (0.5, 1.0, 0.5, 1.0, 0.5)),
        (5, (1.0, 1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_large_clients_are_those_with_most_data(large, expected):
    """As in MaPP-FL, whose clients are sorted by their amount of data; the others have half the width."""
    assert Capacities(large=large).assign(SIZES, 0) == expected


def test_small_is_the_width_of_the_others():
    """Any rate; and with `widest: first`, the first ids are large."""
    assert Capacities(large=2, small=0.3).assign(SIZES, 0) == (0.3, 1.0, 0.3, 1.0, 0.3)
    assert Capacities(large=2, small=0.3, widest="first").assign(SIZES, 0) == (1.0, 1.0, 0.3, 0.3, 0.3)


def test_equal_amounts_of_data_go_by_id():
    """Nothing else could tell the clients apart."""
    assert Capacities(large=2).assign([5, 5, 5, 5], 0) == (1.0, 1.0, 0.5, 0.5)


LEVELS = {
    "a1-b1-c1-d1-e1": [1.0, 0.5, 0.25, 0.125, 0.0625] * 2,
    "a2-e8": [1.0] * 2 + [0.0625] * 8,
    "e8-a2": [1.0] * 2 + [0.0625] * 8,
    "a1": [1.0] * 10,
    "c3": [0.25] * 10,
    "b1-c4": [0.5] * 2 + [0.25] * 8,
    "a50-d50": [1.0] * 5 + [0.125] * 5,
}


@pytest.mark.parametrize("levels", LEVELS)
def test_levels_of_heterofl(levels):
    """Five letters with their shares; the widest go to the clients with most data, here the last ids."""
    dealt = Capacities(levels=levels).assign(range(10), 0)
    assert list(dealt[::-1]) == sorted(LEVELS[levels], reverse=True)


def test_shares_by_largest_remainder():
    """Quotas 3.5, 2.1 and 1.4 of seven clients become 4, 2 and 1: the rest goes to the largest remainder."""
    dealt = Capacities(rates=[0.25, 1.0, 0.5], shares=[5, 3, 2], widest="first").assign([1] * 7, 0)
    assert dealt == (1.0, 1.0, 0.5, 0.25, 0.25, 0.25, 0.25)


def test_equal_remainders_go_in_order():
    """Three equal shares of ten clients: the first rate named gets the one that is left."""
    assert Counter(Capacities(rates=[0.25, 1.0, 0.5], shares=[1, 1, 1]).assign([1] * 10, 0)) == {
        0.25: 4,
        1.0: 3,
        0.5: 3,
    }


@given(shares=st.lists(st.integers(1, 40), min_size=1, max_size=6), clients=st.integers(1, 60))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_shares_are_exact(shares, clients):
    """Each rate gets its quota rounded down or up, all clients get one, and no larger remainder loses to a smaller."""
    rates = [1 / (position + 1) for position in range(len(shares))]
    dealt = Counter(Capacities(rates=rates, shares=shares).assign([1] * clients, 0))
    assert sum(dealt.values()) == clients
    quotas = [Fraction(share * clients, sum(shares)) for share in shares]
    extra = [dealt[rate] - floor(quota) for rate, quota in zip(rates, quotas, strict=True)]
    assert set(extra) <= {0, 1}
    rests = [quota - floor(quota) for quota in quotas]
    up = [rest for rest, more in zip(rests, extra, strict=True) if more]
    down = [rest for rest, more in zip(rests, extra, strict=True) if not more]
    assert not up or not down or min(up) >= max(down) - Fraction(1, 10**9)


@given(scale=st.floats(0.001, 1000), clients=st.integers(1, 40))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_shares_need_not_add_up_to_one(scale, clients):
    """Halves and quarters, in whatever unit."""
    counts = [
        Counter(Capacities(rates=[1.0, 0.5, 0.25], shares=shares).assign([1] * clients, 0))
        for shares in ([2, 1, 1], [0.5, 0.25, 0.25], [2.0 * scale, scale, scale])
    ]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize(
    "capacities",
    [
        Capacities(large=2, widest="draw"),
        Capacities(levels="a1-b2-c2", widest="draw"),
        Capacities(rates=[1.0, 0.5], shares=[2, 3], widest="draw"),
        Capacities(rates=[1.0, 0.5, 0.5, 0.25, 0.125], widest="draw"),
    ],
    ids=["large", "levels", "shares", "rates"],
)
def test_a_draw_depends_on_the_seed_alone(capacities):
    """The same rates in another order, the same for the same seed, whoever has most data."""
    drawn = [capacities.assign(SIZES, seed) for seed in range(20)]
    assert {tuple(sorted(rates)) for rates in drawn} == {
        tuple(sorted(replace(capacities, widest="first").assign(SIZES, 0)))
    }
    assert len(set(drawn)) > 3
    assert drawn == [capacities.assign(SIZES[::-1], seed) for seed in range(20)]
    assert all({rates[client] for rates in drawn} >= {1.0, 0.5} for client in range(5))


def test_redrawn_capacities():
    """In every round the same rates in another order; any round can be asked for, in any order."""
    rates = Capacities(levels="a1-b2-c2", widest="draw").assign(SIZES, 3)
    client_pool = ClientPool(tuple(SIZES), rates, 1.0, seed=3, redraw=True)
    rounds = [client_pool.capacities_in(number) for number in range(30)]
    assert all(sorted(found) == sorted(rates) for found in rounds)
    assert len(set(rounds)) > 10
    assert all({found[client] for found in rounds} == {1.0, 0.5, 0.25} for client in range(5))
    assert [client_pool.capacities_in(number) for number in reversed(range(30))] == rounds[::-1]
    assert [replace(client_pool, seed=4).capacities_in(number) for number in range(30)] != rounds
    assert {replace(client_pool, redraw=False).capacities_in(number) for number in range(5)} == {rates}


def test_a_plan_uses_the_capacities_of_its_round():
    """Seats, widths and submodels follow the draw."""
    space = ParameterSpace(MLP(DataShape(1, 2, 2, 3), (8, 4)))
    client_pool = ClientPool((3,) * 4, (1.0, 0.5, 0.5, 0.25), 1.0, seed=0, redraw=True)
    for number in range(6):
        plan = Plan(number, client_pool, Prefix(), space)
        assert plan.capacities == client_pool.capacities_in(number)
        for client in range(4):
            assert plan.client_round(client).capacity == plan.rate(client) == plan.capacities[client]
            assert len(plan.index(client)) == {1.0: 91, 0.5: 39, 0.25: 19}[plan.capacities[client]]


def test_redrawn_capacities_in_a_run():
    """Clients send submodels of changing width, one of each width in every round."""
    recorder = Recorder()
    capacities = Capacities(rates=[1.0, 0.5, 0.25], widest="draw", redraw=True)
    federation = small_federation(TINY_MLP, capacities=capacities)
    run(federation, rounds=6, callbacks=[recorder])
    lengths = [len(index) for _, _, index in recorder.updates]
    assert {tuple(sorted(lengths[start : start + 3])) for start in range(0, 18, 3)} == {tuple(sorted(lengths[:3]))}
    assert len(set(lengths)) == 3
    for client in range(3):
        assert len({len(index) for who, _, index in recorder.updates if who == client}) > 1


def test_capacities_in_a_run_go_by_the_data():
    """The federation asks the data who has most: of 5, 8 and 11 samples, the last client is large."""
    federation = small_federation(TINY_MLP, capacities=Capacities(large=1, small=0.25))
    run(federation, Blobs((5, 8, 11)), 1)
    assert federation.client_pool.capacities == (0.25, 0.25, 1.0)
    assert federation.widths == (1.0, 0.25)
