"""Who can afford how much of the network: settings in several forms, and those that cannot work."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import floor

import pytest
import torch
from federation_kit import LINEAR, TINY_MLP, Blobs, Recorder, make_trainer, run, small_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import Problem, UserError
from app.federation.capacities import Capacities
from app.federation.checks import submodel_problems
from app.federation.module import FederatedModule
from app.federation.parameters import ParameterSpace
from app.federation.plan import Plan, Roster
from app.federation.submodels import PRESETS, FedRolex, FjORD, Integration, Prefix, SubmodelMethod
from app.models import MLP, DataShape

SIZES = [50, 90, 10, 70, 30]
"""Samples of five clients; from most to least data they are 1, 3, 0, 4, 2."""


# ---- what each setting means ----------------------------------------------------------------------------------------


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


# ---- dealt anew in every round --------------------------------------------------------------------------------------


def test_redrawn_capacities():
    """In every round the same rates in another order; any round can be asked for, in any order."""
    rates = Capacities(levels="a1-b2-c2", widest="draw").assign(SIZES, 3)
    roster = Roster(tuple(SIZES), rates, 1.0, seed=3, redraw=True)
    rounds = [roster.capacities_in(number) for number in range(30)]
    assert all(sorted(found) == sorted(rates) for found in rounds)
    assert len(set(rounds)) > 10
    assert all({found[client] for found in rounds} == {1.0, 0.5, 0.25} for client in range(5))
    assert [roster.capacities_in(number) for number in reversed(range(30))] == rounds[::-1]
    assert [replace(roster, seed=4).capacities_in(number) for number in range(30)] != rounds
    assert {replace(roster, redraw=False).capacities_in(number) for number in range(5)} == {rates}


def test_a_plan_uses_the_capacities_of_its_round():
    """Seats, widths and submodels follow the draw."""
    space = ParameterSpace(MLP(DataShape(1, 2, 2, 3), (8, 4)))
    roster = Roster((3,) * 4, (1.0, 0.5, 0.5, 0.25), 1.0, seed=0, redraw=True)
    for number in range(6):
        plan = Plan(number, roster, Prefix(), space)
        assert plan.capacities == roster.capacities_in(number)
        for client in range(4):
            assert plan.seat(client).capacity == plan.rate(client) == plan.capacities[client]
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
    run(federation, Blobs((5, 8, 11)), 0)
    assert federation.roster.capacities == (0.25, 0.25, 1.0)
    assert federation.widths == (1.0, 0.25)


# ---- settings that cannot work --------------------------------------------------------------------------------------


def refused(federation: FederatedModule) -> tuple[Problem, ...]:
    """What is wrong with a federation of three clients, found before any training."""
    recorder = Recorder()
    with pytest.raises(UserError) as caught:
        make_trainer(1, callbacks=[recorder]).fit(federation, datamodule=Blobs((5, 8, 11)))
    assert not recorder.started
    return caught.value.problems


WRONG = {
    "too many large": (Capacities(large=4), "--model.capacities.large"),
    "negative large": (Capacities(large=-1), "--model.capacities.large"),
    "small is zero": (Capacities(large=1, small=0.0), "--model.capacities"),
    "small above one": (Capacities(large=1, small=1.5), "--model.capacities"),
    "unknown level": (Capacities(levels="a1-f1"), "levels"),
    "level without share": (Capacities(levels="a-b1"), "levels"),
    "level of share zero": (Capacities(levels="a0-b1"), "levels"),
    "levels with a comma": (Capacities(levels="a1,b1"), "levels"),
    "empty levels": (Capacities(levels=""), "levels"),
    "two rates for three": (Capacities(rates=[1.0, 0.5]), "--model.capacities.rates"),
    "four rates for three": (Capacities(rates=[1.0, 0.5, 0.5, 0.5]), "--model.capacities.rates"),
    "no rates": (Capacities(rates=[]), "--model.capacities.rates"),
    "rate zero": (Capacities(rates=[1.0, 0.5, 0.0]), "--model.capacities"),
    "rate below zero": (Capacities(rates=[-0.5]), "--model.capacities"),
    "rate above one": (Capacities(rates=[1.0, 1.01, 1.0]), "--model.capacities"),
    "rate not a number": (Capacities(rates=[float("nan")]), "--model.capacities"),
    "fewer shares than rates": (Capacities(rates=[1.0, 0.5], shares=[1.0]), "--model.capacities.shares"),
    "more shares than rates": (Capacities(rates=[1.0], shares=[0.5, 0.5]), "--model.capacities.shares"),
    "no shares": (Capacities(rates=[1.0], shares=[]), "--model.capacities.shares"),
    "shares without rates": (Capacities(shares=[0.5, 0.5]), "--model.capacities.shares"),
    "shares with large": (Capacities(large=1, shares=[0.5, 0.5]), "--model.capacities.shares"),
    "share zero": (Capacities(rates=[1.0, 0.5], shares=[1.0, 0.0]), "--model.capacities.shares"),
    "share below zero": (Capacities(rates=[1.0, 0.5], shares=[2.0, -1.0]), "--model.capacities.shares"),
    "share not a number": (Capacities(rates=[1.0, 0.5], shares=[float("nan"), 1.0]), "--model.capacities.shares"),
    "share without end": (Capacities(rates=[1.0, 0.5], shares=[float("inf"), 1.0]), "--model.capacities.shares"),
    "shares too large to add": (Capacities(rates=[1.0, 0.5], shares=[1e308, 1e308]), "--model.capacities.shares"),
    "small without large": (Capacities(small=0.25), "--model.capacities.large"),
    "large and levels": (Capacities(large=1, levels="a1"), "--model.capacities.large"),
    "large and rates": (Capacities(large=1, rates=[0.5]), "--model.capacities.large"),
    "levels and rates": (Capacities(levels="a1", rates=[0.5]), ".levels"),
    "redraw without draw": (Capacities(large=1, redraw=True), "--model.capacities.widest"),
    "redraw of the first": (Capacities(large=1, widest="first", redraw=True), "--model.capacities.redraw"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_capacities_are_refused(case):
    """One complaint with reason and remedy that names the option, from the settings alone and through a run."""
    capacities, option = WRONG[case]
    (problem,) = capacities.problems(3)
    assert option in str(problem)
    assert problem.consequence
    assert problem.remedy
    assert refused(small_federation(TINY_MLP, capacities=capacities)) == (problem,)


@pytest.mark.parametrize(
    "capacities",
    [
        Capacities(),
        Capacities(large=0),
        Capacities(large=3, small=1.0),
        Capacities(levels="a1-b1"),
        Capacities(rates=[0.5]),
        Capacities(rates=[1.0, 0.5, 0.25]),
        Capacities(rates=[1.0, 0.5], shares=[0.1, 0.2]),
        Capacities(rates=[1.0, 0.5, 0.25], shares=[1, 1, 1]),
        Capacities(levels="b2-c1", widest="draw", redraw=True),
    ],
)
def test_sound_capacities_pass(capacities):
    """No complaint, a rate for every client."""
    assert not list(capacities.problems(3))
    assert all(0 < rate <= 1 for rate in capacities.assign([5, 8, 11], 0))


def test_all_bad_capacities_at_once():
    """Contradictions, counts and rates in one error, together with what else is wrong with the federation."""
    capacities = Capacities(large=7, small=2.0, levels="x", rates=[1.0, 0.5], widest="data", redraw=True)
    expected = ["large and by levels and by rates", "redrawn", "7 clients are to be large", "'x'", "2 capacities for 3"]
    problems = list(capacities.problems(3))
    assert [words in problem.cause for words, problem in zip(expected, problems, strict=True)] == [True] * 5
    found = refused(small_federation(TINY_MLP, capacities=capacities, participation=2.0))
    assert list(found[:5]) == problems
    assert "participation is 2.0" in found[5].cause
    both = list(Capacities(large=9, small=2.0).problems(3))
    assert ["9 clients" in both[0].cause, "capacities hold 2.0" in both[1].cause, len(both)] == [True, True, 2]


# ---- networks and methods that do not go together -------------------------------------------------------------------

NARROW = partial(MLP, hidden=(2,))
PAIR = partial(MLP, hidden=(8, 2))
UNFIT = {
    "a layer without a channel": (PAIR, Prefix(), [0.25], "hidden2", "0.5"),
    "a level without a channel": (PAIR, FjORD([0.25, 1.0]), [1.0], "hidden2", "--model.capacities"),
    "a round's level without a channel": (PAIR, FjORD([0.1], "round"), [0.5], "hidden1, hidden2", "--model.net"),
    "no axes": (LINEAR, Prefix(), [0.5], "MLP declares no channel axes", "--model.capacities"),
    "no axes for fjord": (LINEAR, FjORD(), [1.0], "cannot be cut to width 0.2", "--model.capacities"),
    "too many submatrices": (PAIR, Integration.preset("GFM", groups=9), [0.5], "hidden2 (2)", "--model.method.groups"),
    "too many in turn": (PAIR, Integration.preset("OSM", groups=9), [0.5], "3 different blocks", "--model.net"),
    "no room to move": (PAIR, Integration.preset("GFM"), [0.9], "hidden1 (8), hidden2 (2)", "--model.capacities"),
    "too many random groups": (NARROW, Integration.preset("GFR"), [0.5], "needs 4 different", "--model.method.groups"),
    "too many resampled groups": (NARROW, Integration.preset("GSR"), [0.5], "width 0.5", "--model.net"),
    "more clients than sets": (NARROW, Integration.preset("UFR"), [0.5], "UFR needs 3", "--model.net"),
    "more clients than new sets": (NARROW, Integration.preset("USR"), [0.5], "USR needs 3", "--model.net"),
    "GSM": (TINY_MLP, Integration("groups", "resampled", "submatrix"), [0.5], "GSM", "GFM"),
    "UFM": (TINY_MLP, Integration("unique", "fixed", "submatrix"), [0.5], "UFM", "UFR"),
    "USM": (TINY_MLP, Integration("unique", "resampled", "submatrix"), [1.0], "USM", "USR"),
    "five submatrices": (TINY_MLP, Integration.preset("GFM", groups=5), [0.5], "groups is 5", "--model.method.groups"),
    "no groups": (TINY_MLP, Integration.preset("GFM", groups=0), [0.5], "groups is 0", "--model.method.groups"),
    "minus one random group": (TINY_MLP, Integration.preset("GFR", groups=-1), [0.5], "is -1", "--model.method.groups"),
    "fjord's level zero": (TINY_MLP, FjORD([0.0, 1.0]), [1.0], "levels hold 0.0", "--model.method.levels"),
    "fjord's level above one": (TINY_MLP, FjORD([0.5, 1.5]), [1.0], "levels hold 1.5", "--model.method.levels"),
    "distillation above one": (TINY_MLP, FjORD([1.0], distillation=1.5), [1.0], "1.5", "--model.method.distillation"),
    "distillation below zero": (
        TINY_MLP,
        FjORD([1.0], distillation=-0.5),
        [1.0],
        "-0.5",
        "--model.method.distillation",
    ),
    "temperature zero": (TINY_MLP, FjORD([1.0], temperature=0.0), [1.0], "0.0", "--model.method.temperature"),
    "no teacher": (
        TINY_MLP,
        FjORD([1.0], draw="round", distillation=0.5),
        [1.0],
        "`draw: round`",
        "--model.method.draw batch",
    ),
}
"""Network, method, capacities, words of the complaint, and words of its remedy."""


@pytest.mark.parametrize("case", UNFIT)
def test_methods_that_do_not_fit_are_refused(case):
    """Exactly one complaint before any training, which says what, why, and what to do about it."""
    net, method, capacities, words, remedy = UNFIT[case]
    (problem,) = refused(small_federation(net, method=method, capacities=capacities))
    assert words in problem.cause + problem.consequence
    assert problem.consequence
    assert remedy in problem.remedy


def problems_of(hidden: tuple[int, ...], method: SubmodelMethod, *capacities: float) -> list[str]:
    """Causes of what keeps clients of these capacities from training a network."""
    space = ParameterSpace(MLP(DataShape(1, 2, 2, 3), hidden))
    return [problem.cause for problem in submodel_problems(method, space, capacities, "MLP")]


@pytest.mark.parametrize("code", PRESETS)
def test_the_narrowest_network_that_fits(code):
    """Two channels a layer are enough for four clients of half width, by any of the nine methods."""
    assert not problems_of((2, 2), Integration.preset(code), 1.0, 0.5, 0.5, 0.5)
    assert not problems_of((2, 2), Integration.preset(code, coupling="independent"), 0.5, 0.5, 0.5, 0.5)


def test_wide_clients_need_no_room():
    """Where everybody trains everything, any method takes any network, also one without axes."""
    for method in (*map(Integration.preset, PRESETS), FedRolex(), Prefix(), FjORD([1.0])):
        for hidden in ((), (1,), (2, 1)):
            assert not problems_of(hidden, method, 1.0, 1.0)


def test_every_width_is_checked():
    """One complaint per width that has no room, and the layer without a channel, in one list."""
    causes = problems_of((4, 3), Integration.preset("GFM"), 1.0, 0.9, 0.5, 0.3, 0.05)
    assert len(causes) == 4
    for words, cause in zip(["width 0.05", "width 0.3", "width 0.9", "a client of width 0.05"], causes, strict=True):
        assert words in cause


def test_all_of_fjord_s_problems_at_once():
    """Levels, loss and teacher together, and the network's problem as well."""
    method = FjORD([0.1, 2.0], draw="round", distillation=3.0, temperature=-1.0)
    causes = problems_of((4,), method, 1.0)
    expected = ["levels hold 2.0", "distillation is 3.0", "self-distillation needs", "width 0.1"]
    assert len(causes) == 4
    assert all(words in cause for words, cause in zip(expected, causes, strict=True))


def test_the_least_width_of_a_network():
    """The remedy names a width that works: one channel of the narrowest layer."""
    space = ParameterSpace(MLP(DataShape(1, 2, 2, 3), (8, 5)))
    (problem,) = submodel_problems(Prefix(), space, (1.0, 0.19), "MLP")
    assert "0.2 of the width" in problem.remedy
    assert not list(submodel_problems(Prefix(), space, (1.0, 0.2), "MLP"))


@pytest.mark.parametrize("groups", [1, 4, 9, 16])
def test_squares_are_numbers_of_groups(groups):
    """Submatrices take squares; random groups take any number."""
    assert not problems_of((12, 12), Integration.preset("GFM", groups=groups), 0.5, 1.0)
    assert not problems_of((12, 12), Integration.preset("GFR", groups=groups + 1), 0.5, 1.0)


def test_a_refused_federation_leaves_no_trace():
    """After a refusal nothing has been built, and sound settings can be run in the same process."""
    federation = small_federation(TINY_MLP, capacities=[0.0])
    refused(federation)
    assert not hasattr(federation, "net")
    assert torch.equal(run(small_federation(TINY_MLP), rounds=1), run(small_federation(TINY_MLP), rounds=1))
