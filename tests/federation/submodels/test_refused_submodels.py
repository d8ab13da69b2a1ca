"""Capacities, methods and networks that do not go together are refused before any training."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federation_kit import LINEAR, TINY_MLP, Blobs, Recorder, make_trainer, run, small_federation

from app.common.errors import Problem, UserError
from app.common.ranges import range_problems
from app.federation.capacities import Capacities
from app.federation.checks.federation import submodel_problems
from app.federation.module import FederatedModule
from app.federation.parameters import ParameterSpace
from app.federation.submodels import PRESETS, ChannelSubset, FedRolex, FjORD, Prefix, SubmodelMethod
from app.models import MLP, DataShape


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
    (problem,) = list(range_problems(capacities, "model.capacities")) or capacities.problems(3)
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
    outside = refused(small_federation(TINY_MLP, capacities=capacities, participation=2.0))
    assert ["capacities.small is 2.0" in outside[0].cause, "participation is 2.0" in outside[1].cause] == [True, True]
    assert list(refused(small_federation(TINY_MLP, capacities=replace(capacities, small=0.5)))) == problems


NARROW = partial(MLP, hidden=(2,))
PAIR = partial(MLP, hidden=(8, 2))
UNFIT = {
    "a layer without a channel": (PAIR, Prefix(), [0.25], "hidden2", "0.5"),
    "a level without a channel": (PAIR, FjORD([0.25, 1.0]), [1.0], "hidden2", "--model.capacities"),
    "a round's level without a channel": (PAIR, FjORD([0.1], "round"), [0.5], "hidden1, hidden2", "--model.net"),
    "no axes": (LINEAR, Prefix(), [0.5], "MLP declares no channel axes", "--model.capacities"),
    "no axes for fjord": (LINEAR, FjORD(), [1.0], "cannot be cut to width 0.2", "--model.capacities"),
    "too many submatrices": (
        PAIR,
        ChannelSubset.preset("GFM", groups=9),
        [0.5],
        "hidden2 (2)",
        "--model.method.groups",
    ),
    "too many in turn": (PAIR, ChannelSubset.preset("OSM", groups=9), [0.5], "3 different blocks", "--model.net"),
    "no room to move": (PAIR, ChannelSubset.preset("GFM"), [0.9], "hidden1 (8), hidden2 (2)", "--model.capacities"),
    "too many random groups": (
        NARROW,
        ChannelSubset.preset("GFR"),
        [0.5],
        "needs 4 different",
        "--model.method.groups",
    ),
    "too many resampled groups": (NARROW, ChannelSubset.preset("GSR"), [0.5], "width 0.5", "--model.net"),
    "more clients than sets": (NARROW, ChannelSubset.preset("UFR"), [0.5], "UFR needs 3", "--model.net"),
    "more clients than new sets": (NARROW, ChannelSubset.preset("USR"), [0.5], "USR needs 3", "--model.net"),
    "GSM": (TINY_MLP, ChannelSubset("groups", "resampled", "submatrix"), [0.5], "GSM", "GFM"),
    "UFM": (TINY_MLP, ChannelSubset("unique", "fixed", "submatrix"), [0.5], "UFM", "UFR"),
    "USM": (TINY_MLP, ChannelSubset("unique", "resampled", "submatrix"), [1.0], "USM", "USR"),
    "five submatrices": (
        TINY_MLP,
        ChannelSubset.preset("GFM", groups=5),
        [0.5],
        "groups is 5",
        "--model.method.groups",
    ),
    "no groups": (TINY_MLP, ChannelSubset.preset("GFM", groups=0), [0.5], "groups is 0", "--model.method.groups"),
    "minus one random group": (
        TINY_MLP,
        ChannelSubset.preset("GFR", groups=-1),
        [0.5],
        "is -1",
        "--model.method.groups",
    ),
    "fjord's level zero": (TINY_MLP, FjORD([0.0, 1.0]), [1.0], "levels is [0.0, 1.0]", "--model.method.levels"),
    "fjord's level above one": (TINY_MLP, FjORD([0.5, 1.5]), [1.0], "levels is [0.5, 1.5]", "--model.method.levels"),
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
    assert not problems_of((2, 2), ChannelSubset.preset(code), 1.0, 0.5, 0.5, 0.5)
    assert not problems_of((2, 2), ChannelSubset.preset(code, coupling="independent"), 0.5, 0.5, 0.5, 0.5)


def test_wide_clients_need_no_room():
    """Where everybody trains everything, any method takes any network, also one without axes."""
    for method in (*map(ChannelSubset.preset, PRESETS), FedRolex(), Prefix(), FjORD([1.0])):
        for hidden in ((), (1,), (2, 1)):
            assert not problems_of(hidden, method, 1.0, 1.0)


def test_every_width_is_checked():
    """One complaint per width that has no room, and the layer without a channel, in one list."""
    causes = problems_of((4, 3), ChannelSubset.preset("GFM"), 1.0, 0.9, 0.5, 0.3, 0.05)
    assert len(causes) == 4
    for words, cause in zip(["width 0.05", "width 0.3", "width 0.9", "a client of width 0.05"], causes, strict=True):
        assert words in cause


def test_all_of_fjord_s_problems_at_once():
    """Levels and loss together; then the teacher, and the network's problem as well."""
    method = FjORD([0.1, 2.0], draw="round", distillation=3.0, temperature=-1.0)
    found = refused(small_federation(partial(MLP, hidden=(4,)), method=method))
    assert [problem.cause.split()[0][15:] for problem in found] == ["levels", "distillation", "temperature"]
    teacher, width = problems_of((4,), FjORD([0.1, 1.0], draw="round", distillation=0.5), 1.0)
    assert "self-distillation needs" in teacher
    assert "width 0.1" in width


def test_the_least_width_of_a_network():
    """The remedy names a width that works: one channel of the narrowest layer."""
    space = ParameterSpace(MLP(DataShape(1, 2, 2, 3), (8, 5)))
    (problem,) = submodel_problems(Prefix(), space, (1.0, 0.19), "MLP")
    assert "0.2 of the width" in problem.remedy
    assert not list(submodel_problems(Prefix(), space, (1.0, 0.2), "MLP"))


@pytest.mark.parametrize("groups", [1, 4, 9, 16])
def test_squares_are_numbers_of_groups(groups):
    """Submatrices take squares; random groups take any number."""
    assert not problems_of((12, 12), ChannelSubset.preset("GFM", groups=groups), 0.5, 1.0)
    assert not problems_of((12, 12), ChannelSubset.preset("GFR", groups=groups + 1), 0.5, 1.0)


def test_a_refused_federation_leaves_no_trace():
    """After a refusal nothing has been built, and sound settings can be run in the same process."""
    federation = small_federation(TINY_MLP, capacities=[0.0])
    refused(federation)
    assert not hasattr(federation, "net")
    assert torch.equal(run(small_federation(TINY_MLP), rounds=1), run(small_federation(TINY_MLP), rounds=1))
