"""`index_scheme: original` against the random numbers that MaPP-FL's code draws."""

import numpy as np
import pytest
import torch
from submodel_kit import PATTERNS, RANDOM, block_sizes, coupled, fingerprint, halves, paper_cnn, read_off, space_of

from app.federation.plan import ClientPool, Plan
from app.federation.submodels import ChannelSubset, ClientRound


def test_groups_of_the_last_round_of_mapp_fl():
    """Round 150 of MaPP-FL's code: the small clients that share an accuracy in its Table 2 share a submodel."""
    space = paper_cnn()
    method = ChannelSubset.preset("MaPP-FL", index_scheme="original")
    client_pool = ClientPool((100,) * 10, (1.0, 1.0, *[0.5] * 8), 1.0, seed=41)
    plan = Plan(149, client_pool, method, space)
    by_index, by_key = {}, {}
    for client in range(2, 10):
        by_index.setdefault(plan.index(client).numpy().tobytes(), []).append(client)
        by_key.setdefault(plan.key(client), []).append(client)
    assert sorted(by_index.values()) == sorted(by_key.values()) == [[2, 4, 6], [3], [5, 7], [8, 9]]
    dealt = [3, 0, 1, 3, 1, 2, 1, 2, 0, 0]
    for client, group in enumerate(dealt):
        index = method.index(space, ClientRound(149, client, 0.5, 10, 0))
        assert halves(space, index) == PATTERNS[group]
    assert [halves(space, plan.index(client)) for client in range(2, 10)] == [PATTERNS[group] for group in dealt[2:]]


def original_number(code: str, turn: int, client: int, clients: int) -> int:
    """The number from which MaPP-FL's code draws a client's channels in the 1-based round `turn`."""
    place = int(np.random.RandomState(turn).permutation(clients)[client])
    return {
        "OF": 0,
        "OS": turn,
        "GF": place % 4,
        "GS": place % 4 + turn * clients,
        "UF": place,
        "US": place + turn * clients,
    }[code[:2]]


def original_half(seed: int, width: int) -> tuple[int, ...]:
    """First half of NumPy's legacy permutation, sorted."""
    return tuple(sorted(np.random.RandomState(seed).permutation(width)[: width // 2].tolist()))


TURNS = [(turn, client, clients) for clients in (10, 13) for turn in (1, 2, 7, 150) for client in (0, 4, 9)]


@pytest.mark.parametrize("code", RANDOM)
def test_random_sets_of_mapp_fl(code):
    """Channels of layer n are those that legacy seed (rand + 1) * (n + 1) puts first; the run's seed is unused."""
    space, method = paper_cnn(), ChannelSubset.preset(code, index_scheme="original")
    for turn, client, clients in TURNS:
        number = original_number(code, turn, client, clients)
        expected = {
            axis.name: original_half((number + 1) * (layer + 1), axis.width)
            for layer, axis in enumerate(space.axes.values())
        }
        for seed in (0, 41):
            index = method.index(space, ClientRound(turn - 1, client, 0.5, clients, seed))
            assert coupled(space, index) == expected


@pytest.mark.parametrize("code", ["GFM", "OSM", "OFM"])
def test_submatrices_of_mapp_fl(code):
    """The number of a client, modulo four, is its pattern of first and second halves."""
    space, method = paper_cnn(), ChannelSubset.preset(code, index_scheme="original")
    for turn, client, clients in TURNS:
        index = method.index(space, ClientRound(turn - 1, client, 0.5, clients, 3))
        assert halves(space, index) == PATTERNS[original_number(code, turn, client, clients) % 4]


def test_channels_that_the_random_groups_of_mapp_fl_reach():
    """Its four fixed random sets miss some channels for ever; the one shared set (OFR) is the set of group 0."""
    space, method = paper_cnn(), ChannelSubset.preset("GFR", index_scheme="original")
    sets = {
        method.key(client_round): coupled(space, method.index(space, client_round))
        for client_round in (half_width(k) for k in range(10))
    }
    assert len(sets) == 4
    reached = {axis: len(set().union(*(channels[axis] for channels in sets.values()))) for axis in space.axes}
    assert reached == {"conv1": 14, "conv2": 30, "conv3": 59, "conv4": 123}
    shared = ChannelSubset.preset("OFR", index_scheme="original")
    (zero,) = {client for client, place in enumerate(np.random.RandomState(1).permutation(10)) if place == 0}
    assert fingerprint(shared, space, half_width(5)) == fingerprint(method, space, half_width(zero))


def half_width(client: int, round_: int = 0) -> ClientRound:
    """A client of half width among ten."""
    return ClientRound(round_, client, 0.5, 10, 8)


@pytest.mark.parametrize("code", RANDOM)
def test_independent_sets_of_mapp_fl(code):
    """Its ablation draws outputs with seed rand + 1 and inputs with 2 (rand + 1), the same in every layer."""
    space = paper_cnn()
    method = ChannelSubset.preset(code, index_scheme="original", coupling="independent")
    for turn, client, clients in TURNS:
        number = original_number(code, turn, client, clients)
        written, read = read_off(space, method.index(space, ClientRound(turn - 1, client, 0.5, clients, 0)))
        widths = {axis.name: axis.width for axis in space.axes.values()}
        assert written == {axis: {original_half(number + 1, width)} for axis, width in widths.items()}
        assert read == {axis: {original_half(2 * (number + 1), width)} for axis, width in widths.items()}


@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp", "resnet"])
@pytest.mark.parametrize("code", RANDOM)
def test_independent_sets_drawn_from_the_seed(code, name):
    """Inputs are drawn apart from outputs, yet the submodel still has the tensors of the scaled network."""
    space, method = space_of(name), ChannelSubset.preset(code, coupling="independent")
    for client in range(3):
        index = method.index(space, ClientRound(2, client, 0.5, 10, 1))
        written, read = read_off(space, index)
        assert all(len(found) == 1 for found in written.values())
        assert all(len(found) == 1 for found in read.values())
        assert all(written[axis] != read[axis] for axis in space.axes if space.axes[axis].width > 8)
        starts = torch.tensor([block.start for block in space.blocks] + [space.size])
        assert tuple(torch.searchsorted(index, starts).diff().tolist()) == block_sizes(name, 0.5)
