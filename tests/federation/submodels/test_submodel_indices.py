"""Every submodel method on every network: an index is a submodel, and equal keys are equal submodels."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from submodel_kit import (
    METHODS,
    MIXED,
    RATES,
    SCHEMES,
    WIDE,
    ZOO,
    block_sizes,
    coupled,
    fingerprint,
    mlp_space,
    space_of,
)

from app.federation.plan import ClientPool, Plan
from app.federation.submodels import PRESETS, ChannelSubset, ClientRound, FedRolex, FjORD, Prefix


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_an_index_is_a_submodel(name, method):
    """Ascending and in bounds, as many per tensor as the scaled network has, all layers agreeing on channels."""
    chooser, space = METHODS[method], space_of(name)
    starts = torch.tensor([block.start for block in space.blocks] + [space.size])
    for rate in RATES.values():
        client_round = ClientRound(5, 3, rate, 10, 1)
        assert not list(chooser.problems(space, [rate], 10))
        index, trained = chooser.index(space, client_round), chooser.rate(client_round)
        assert index.dtype == torch.int64
        assert bool((index.diff() > 0).all())
        assert 0 <= int(index[0]) <= int(index[-1]) < space.size
        assert tuple(torch.searchsorted(index, starts).diff().tolist()) == block_sizes(name, trained)
        kept = {axis: len(channels) for axis, channels in coupled(space, index).items()}
        assert kept == {axis.name: math.ceil(axis.width * trained - 1e-9) for axis in space.axes.values()}
        assert trained == rate or (method == "FjORD round" and trained < rate)


@pytest.mark.parametrize("method", METHODS)
def test_capacity_one_is_the_whole_network(method):
    """Every coordinate, in order, in every round; FjORD may draw a narrower prefix."""
    chooser = METHODS[method]
    for space in (space_of("cnn"), space_of("lenet"), space_of("mlp"), space_of("resnet")):
        for client_round in (ClientRound(0, 0, 1.0, 5, 0), ClientRound(7, 4, 1.0, 5, 9)):
            if chooser.rate(client_round) == 1:
                assert torch.equal(chooser.index(space, client_round), torch.arange(space.size))
            else:
                assert method == "FjORD round"


@given(
    method=st.sampled_from(sorted(METHODS)),
    hidden=st.lists(st.integers(4, 20), min_size=1, max_size=4),
    rate=st.sampled_from([1.0, 0.7, *RATES.values()]),
    round_=st.integers(0, 400),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_any_client_round_gets_a_submodel(method, hidden, rate, round_, clients, seed, data):
    """Any depth, widths, round, seed and number of clients: a valid, coupled index of the right size."""
    space, chooser = mlp_space(*hidden), METHODS[method]
    client_round = ClientRound(round_, data.draw(st.integers(0, clients - 1)), rate, clients, seed)
    assume(not list(chooser.problems(space, [rate], clients)))
    index = chooser.index(space, client_round)
    assert bool((index.diff() > 0).all())
    assert 0 <= int(index[0]) <= int(index[-1]) < space.size
    lengths = [len(kept) for kept in coupled(space, index).values()]
    assert lengths == [math.ceil(width * chooser.rate(client_round) - 1e-9) for width in hidden]


@pytest.mark.parametrize("rate", RATES)
def test_fedrolex_rolls_forwards(rate):
    """The window starts at the round's channel, wraps, and after `width` rounds has trained all equally often."""
    space, method = mlp_space(12, 8), FedRolex()
    times = {axis: Counter() for axis in space.axes}
    for number in range(12):
        client_rounds = [ClientRound(number, client, RATES[rate], 5, seed) for client in (0, 4) for seed in (0, 1)]
        (index,) = {
            fingerprint(method, space, client_round): method.index(space, client_round)
            for client_round in client_rounds
        }.values()
        for axis, channels in coupled(space, index).items():
            width = space.axes[axis].width
            keep = math.ceil(width * RATES[rate] - 1e-9)
            assert set(channels) == {(number + step) % width for step in range(keep)}
            if number < width:
                times[axis].update(channels)
    for axis, counter in times.items():
        width = space.axes[axis].width
        assert set(counter) == set(range(width))
        assert set(counter.values()) == {math.ceil(width * RATES[rate] - 1e-9)}


def test_fedrolex_starts_as_a_prefix_and_then_moves_in_every_layer():
    """Round 0 is HeteroFL's submodel; one round later each window has lost its first channel and won the next."""
    space, method = space_of("cnn"), FedRolex()
    first, second = (coupled(space, method.index(space, ClientRound(number, 0, 0.5, 3, 0))) for number in (0, 1))
    assert fingerprint(method, space, ClientRound(0, 0, 0.5, 3, 0)) == fingerprint(
        Prefix(), space, ClientRound(0, 0, 0.5, 3, 0)
    )
    for axis, channels in first.items():
        assert second[axis] == (*channels[1:], len(channels))


@pytest.mark.parametrize("rate", RATES)
def test_fedrolex_rolls_backwards_as_its_code_does(rate):
    """The first window, rolled by the round as numpy rolls an index list; mirrored, it is the paper's window."""
    space, paper, code = mlp_space(12, 8), FedRolex(), FedRolex(direction="code")
    for number in (0, 1, 5, 13):
        client_round = ClientRound(number, 0, RATES[rate], 5, 0)
        forwards, backwards = (coupled(space, method.index(space, client_round)) for method in (paper, code))
        for axis, channels in backwards.items():
            width = space.axes[axis].width
            keep = math.ceil(width * RATES[rate] - 1e-9)
            assert set(channels) == set(np.roll(np.arange(width), number % width)[:keep])
            assert set(channels) == {(keep - 1 - channel) % width for channel in forwards[axis]}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_prefix_is_ofm(scheme):
    """HeteroFL by either name: the first channels, in every round."""
    space, method = space_of("resnet"), ChannelSubset.preset("HeteroFL", index_scheme=scheme)
    for client_round in (ClientRound(0, 0, 0.5, 4, 0), ClientRound(9, 3, 0.25, 4, 7), ClientRound(2, 1, 0.6, 4, 7)):
        index = method.index(space, client_round)
        assert torch.equal(index, Prefix().index(space, client_round))
        assert all(channels == tuple(range(len(channels))) for channels in coupled(space, index).values())


def test_fjord_by_round_draws_affordable_widths():
    """All levels below the capacity and the capacity itself are drawn about equally often; batch keeps the capacity."""
    method = FjORD([0.25, 0.5, 0.75, 1.0], draw="round")
    drawn = Counter(method.rate(ClientRound(number, client, 0.6, 5, 0)) for number in range(120) for client in range(5))
    assert set(drawn) == {0.25, 0.5, 0.6}
    assert all(150 < times < 250 for times in drawn.values())
    assert method.rates([0.6]) == (0.6, 0.5, 0.25)
    assert FjORD([0.25, 0.5, 1.0]).rate(ClientRound(3, 1, 0.6, 5, 0)) == 0.6
    by_client = [method.rate(ClientRound(0, client, 1.0, 40, 0)) for client in range(40)]
    assert len(set(by_client)) == 4


@pytest.mark.parametrize("method", METHODS)
def test_keys_are_equal_exactly_where_submodels_are(method):
    """For all client rounds of one federation over several rounds: equal keys if and only if equal coordinates."""
    chooser, space = METHODS[method], mlp_space(*WIDE)
    client_rounds = [
        ClientRound(number, client, rate, 20, 6) for number in range(8) for client, rate in enumerate(MIXED)
    ]
    pairs = {(chooser.key(client_round), fingerprint(chooser, space, client_round)) for client_round in client_rounds}
    assert len({key for key, _ in pairs}) == len(pairs)
    assert len({coordinates for _, coordinates in pairs}) == len(pairs)


@pytest.mark.parametrize("code", PRESETS)
def test_keys_are_equal_only_where_submodels_are_when_inputs_are_drawn_apart(code):
    """The same with independent inputs."""
    chooser, space = ChannelSubset.preset(code, coupling="independent"), mlp_space(*WIDE)
    client_rounds = [
        ClientRound(number, client, rate, 20, 6) for number in range(4) for client, rate in enumerate(MIXED)
    ]
    pairs = {(chooser.key(client_round), fingerprint(chooser, space, client_round)) for client_round in client_rounds}
    assert len({key for key, _ in pairs}) == len(pairs)


def test_a_plan_keeps_more_submodels_apart_than_it_remembers():
    """A hundred clients with a submodel each, asked for in any order: each gets its own."""
    space, method = mlp_space(*WIDE), ChannelSubset.preset("USR")
    plan = Plan(3, ClientPool((5,) * 100, (0.5,) * 100, 1.0, seed=1), method, space)
    for client in [*range(100), *reversed(range(100)), 5, 70, 5]:
        assert torch.equal(plan.index(client), method.index(space, ClientRound(3, client, 0.5, 100, 1)))
