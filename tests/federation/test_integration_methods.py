"""Which channels a client trains: the nine methods of the integration taxonomy, FedRolex, FjORD and prefixes.

What a method chose is read off the cells of its index, layer by layer, and compared with what the methods' authors
describe; `original` index sets are compared with the random numbers that MaPP-FL's code draws.
"""

import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.errors import UserError
from app.federation.parameters import Block, ParameterSpace
from app.federation.plan import Plan, Roster
from app.federation.submodels import PRESETS, FedRolex, FjORD, Integration, Prefix, Seat, SubmodelMethod
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18, ScalableNet

SCHEMES = ("seeded", "original")
RATES = {"1/2": 1 / 2, "1/3": 1 / 3, "1/4": 1 / 4, "0.6": 0.6}
RANDOM = [code for code in PRESETS if code.endswith("R")]
METHODS: dict[str, SubmodelMethod] = {
    **{f"{code} {scheme}": Integration.preset(code, index_scheme=scheme) for code in PRESETS for scheme in SCHEMES},
    "FedRolex": FedRolex(),
    "FjORD batch": FjORD(),
    "FjORD round": FjORD(draw="round"),
    "prefix": Prefix(),
}
ZOO = {
    "cnn": lambda: CNN(DataShape(3, 8, 8, 5), u=8),
    "lenet": lambda: LeNet5(DataShape(1, 16, 20, 4)),
    "alexnet": lambda: AlexNet(DataShape(1, 8, 16, 3)),
    "mlp": lambda: MLP(DataShape(1, 3, 3, 4), (12, 8)),
    "resnet": lambda: ResNet18(DataShape(1, 4, 4, 3), base=8),
}
"""Every network, small; the maps of LeNet5 and AlexNet have two pixels per channel when they are flattened."""


@cache
def net_of(name: str) -> ScalableNet:
    """A network of the zoo, built once."""
    return ZOO[name]()


@cache
def space_of(name: str) -> ParameterSpace:
    """Its layout."""
    return ParameterSpace(net_of(name))


@cache
def block_sizes(name: str, rate: float) -> tuple[int, ...]:
    """Cells of every tensor of the network built at a rate."""
    return tuple(block.size for block in ParameterSpace(net_of(name).scaled(rate)).blocks)


@cache
def mlp_space(*hidden: int) -> ParameterSpace:
    """Layout of a fully connected network with two inputs and two classes."""
    return ParameterSpace(MLP(DataShape(1, 1, 2, 2), hidden))


@cache
def paper_cnn(u: int = 16) -> ParameterSpace:
    """MaPP-FL's network for colour images of ten classes."""
    return ParameterSpace(CNN(DataShape(3, 32, 32, 10), u=u))


WIDE = (24, 16)
"""Hidden layers wide enough that random sets do not meet by chance."""


def fingerprint(method: SubmodelMethod, space: ParameterSpace, seat: Seat) -> bytes:
    """A submodel, to compare and to count."""
    return method.index(space, seat).numpy().tobytes()


def read_off(space: ParameterSpace, index: Tensor) -> tuple[dict[str, set], dict[str, set]]:
    """Channel lists of every axis as its layers write and as they read it; one list each where all layers agree.

    Holds on the way: the cells of a tensor are exactly some outputs x some inputs x the whole kernel, dimensions
    without an axis are whole, and a flattened channel comes with all its pixels.
    """
    chosen = torch.zeros(space.size, dtype=torch.bool)
    chosen[index] = True
    written: dict[str, set] = {axis: set() for axis in space.axes}
    read: dict[str, set] = {axis: set() for axis in space.axes}
    for block in space.blocks:
        cells = chosen[block.cells].view(*block.shape[:2], -1)
        outputs = cells.flatten(1).any(1)
        found = [(written, 0, outputs)]
        if len(block.shape) > 1:
            positions = cells.transpose(0, 1).flatten(1).any(1).view(-1, block.spread)
            assert torch.equal(positions.any(1), positions.all(1)), block.name
            found.append((read, 1, positions.any(1)))
        kept = math.prod(int(channels.sum()) for _, _, channels in found)
        kernel = cells.shape[2] if len(block.shape) > 1 else 1
        assert int(cells.count_nonzero()) == kept * kernel * block.spread ** (len(found) - 1), block.name
        for lists, dimension, channels in found:
            axis = block.axes[dimension]
            if axis is None:
                assert bool(channels.all()), (block.name, dimension)
            else:
                lists[axis].add(tuple(channels.nonzero().flatten().tolist()))
    return written, read


def coupled(space: ParameterSpace, index: Tensor) -> dict[str, tuple[int, ...]]:
    """The one list of channels of every axis, the same for all layers that write or read it."""
    written, read = read_off(space, index)
    lists = {axis: written[axis] | read[axis] for axis in space.axes}
    assert all(len(found) == 1 for found in lists.values()), lists
    return {axis: found.pop() for axis, found in lists.items()}


def family(method: SubmodelMethod, space: ParameterSpace, round_: int, rate: float, clients: int) -> list[bytes]:
    """Submodels of all clients of a round, all of one width."""
    return [fingerprint(method, space, Seat(round_, client, rate, clients, 3)) for client in range(clients)]


# ---- every method on every network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_an_index_is_a_submodel(name, method):
    """Ascending cells in bounds, as many per tensor as the scaled network has, all layers agreeing on the channels."""
    chooser, space = METHODS[method], space_of(name)
    starts = torch.tensor([block.start for block in space.blocks] + [space.size])
    for rate in RATES.values():
        seat = Seat(5, 3, rate, 10, 1)
        assert not list(chooser.problems(space, [rate], 10))
        index, trained = chooser.index(space, seat), chooser.rate(seat)
        assert index.dtype == torch.int64
        assert bool((index.diff() > 0).all())
        assert 0 <= int(index[0]) <= int(index[-1]) < space.size
        assert tuple(torch.searchsorted(index, starts).diff().tolist()) == block_sizes(name, trained)
        kept = {axis: len(channels) for axis, channels in coupled(space, index).items()}
        assert kept == {axis.name: math.ceil(axis.width * trained - 1e-9) for axis in space.axes.values()}
        assert trained == rate or (method == "FjORD round" and trained < rate)


@pytest.mark.parametrize("method", METHODS)
def test_capacity_one_is_the_whole_network(method):
    """Every cell, in order, in every round; FjORD may draw a narrower prefix."""
    chooser = METHODS[method]
    for space in (space_of("cnn"), space_of("lenet"), space_of("mlp"), space_of("resnet")):
        for seat in (Seat(0, 0, 1.0, 5, 0), Seat(7, 4, 1.0, 5, 9)):
            if chooser.rate(seat) == 1:
                assert torch.equal(chooser.index(space, seat), torch.arange(space.size))
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
def test_any_seat_gets_a_submodel(method, hidden, rate, round_, clients, seed, data):
    """Any depth, widths, round, seed and number of clients: a valid, coupled index of the right size."""
    space, chooser = mlp_space(*hidden), METHODS[method]
    seat = Seat(round_, data.draw(st.integers(0, clients - 1)), rate, clients, seed)
    assume(not list(chooser.problems(space, [rate], clients)))
    index = chooser.index(space, seat)
    assert bool((index.diff() > 0).all())
    assert 0 <= int(index[0]) <= int(index[-1]) < space.size
    lengths = [len(kept) for kept in coupled(space, index).values()]
    assert lengths == [math.ceil(width * chooser.rate(seat) - 1e-9) for width in hidden]


# ---- who shares a set, and whether sets change ----------------------------------------------------------------------

CLIENTS, ROUNDS = 18, 6


@pytest.mark.parametrize("rate", ["1/2", "1/3", "1/4"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("code", PRESETS)
def test_grouping_and_dynamics(code, scheme, rate):
    """O: one set in a round, G: k^2 sets, U: one per client; F: the same sets in all rounds, S: others."""
    method, space = Integration.preset(code, index_scheme=scheme), mlp_space(*WIDE)
    groups = {"1/2": 4, "1/3": 9, "1/4": 16}[rate]
    rounds = [family(method, space, number, RATES[rate], CLIENTS) for number in range(ROUNDS)]
    size = {"O": 1, "G": groups, "U": CLIENTS}[code[0]]
    assert [len(set(sets)) for sets in rounds] == [size] * ROUNDS
    together = set().union(*rounds)
    if code[1] == "F":
        assert len(together) == size
    elif code == "OSM":
        assert len(together) == min(groups, ROUNDS)
    else:
        assert len(together) == size * ROUNDS
    if code[0] != "O":
        assert len(set(map(tuple, rounds))) == ROUNDS, "clients are dealt to the sets anew in every round"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_osm_goes_round_robin(scheme):
    """Rounds t = 1, 2, 3, 4, 5 ... use submatrices 1, 2, 3, 0, 1 ...: period four, in the order of MaPP-FL's code."""
    method, space = Integration.preset("OSM", index_scheme=scheme), paper_cnn()
    for number in range(9):
        index = method.index(space, Seat(number, 3, 0.5, 10, 5))
        assert halves(space, index) == PATTERNS[(number + 1) % 4]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("code", ["GFM", "GFR", "GSR"])
def test_groups_of_ten_clients(code, scheme):
    """Over all ten clients, large ones included, groups hold 3, 3, 2 and 2; everybody visits every group."""
    method = Integration.preset(code, index_scheme=scheme)
    first_round_of = {}
    visited = {client: set() for client in range(10)}
    for number in range(150):
        keys = [method.key(Seat(number, client, 0.5, 10, 11)) for client in range(10)]
        assert sorted(Counter(keys).values()) == [2, 2, 3, 3]
        groups = tuple(key[1] for key in keys)
        first_round_of.setdefault(groups, number)
        for client, group in enumerate(groups):
            visited[client].add(group)
    assert len(first_round_of) > 130
    assert all(groups == {0, 1, 2, 3} for groups in visited.values())


@pytest.mark.parametrize("code", ["GFM", "GFR", "GSR", "UFR", "USR"])
def test_a_place_does_not_depend_on_the_width(code):
    """Large and small clients are dealt together: a client's group is the same whatever it can afford."""
    method = Integration.preset(code, groups=4)
    for number in range(5):
        for client in range(10):
            places = {method.key(Seat(number, client, rate, 10, 2))[1] for rate in (0.5, 0.3, 0.25)}
            assert len(places) == 1


# ---- MaPP-FL's own sets ---------------------------------------------------------------------------------------------

PATTERNS = {0: "1111", 1: "2121", 2: "1212", 3: "2222"}
"""Half of the channels that the four groups of MaPP-FL (GFM) take in its four convolutions."""


def halves(space: ParameterSpace, index: Tensor) -> str:
    """For every axis, 1 for exactly its first half of channels, 2 for its second, ? for anything else."""
    signs = ""
    for axis, channels in coupled(space, index).items():
        width = space.axes[axis].width
        names = {tuple(range(width // 2)): "1", tuple(range(width // 2, width)): "2"}
        signs += names.get(channels, "?")
    return signs


def test_groups_of_the_last_round_of_mapp_fl():
    """Round 150 of MaPP-FL's code: the small clients that share an accuracy in its Table 2 share a submodel."""
    space = paper_cnn()
    method = Integration.preset("MaPP-FL", index_scheme="original")
    roster = Roster((100,) * 10, (1.0, 1.0, *[0.5] * 8), 1.0, seed=41)
    plan = Plan(149, roster, method, space)
    by_index, by_key = {}, {}
    for client in range(2, 10):
        by_index.setdefault(plan.index(client).numpy().tobytes(), []).append(client)
        by_key.setdefault(plan.key(client), []).append(client)
    assert sorted(by_index.values()) == sorted(by_key.values()) == [[2, 4, 6], [3], [5, 7], [8, 9]]
    dealt = [3, 0, 1, 3, 1, 2, 1, 2, 0, 0]
    for client, group in enumerate(dealt):
        index = method.index(space, Seat(149, client, 0.5, 10, 0))
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


SEATS = [(turn, client, clients) for clients in (10, 13) for turn in (1, 2, 7, 150) for client in (0, 4, 9)]


@pytest.mark.parametrize("code", RANDOM)
def test_random_sets_of_mapp_fl(code):
    """Channels of layer n are those that legacy seed (rand + 1) * (n + 1) puts first; the run's seed is unused."""
    space, method = paper_cnn(), Integration.preset(code, index_scheme="original")
    for turn, client, clients in SEATS:
        number = original_number(code, turn, client, clients)
        expected = {
            axis.name: original_half((number + 1) * (layer + 1), axis.width)
            for layer, axis in enumerate(space.axes.values())
        }
        for seed in (0, 41):
            index = method.index(space, Seat(turn - 1, client, 0.5, clients, seed))
            assert coupled(space, index) == expected


@pytest.mark.parametrize("code", ["GFM", "OSM", "OFM"])
def test_submatrices_of_mapp_fl(code):
    """The number of a client, modulo four, is its pattern of first and second halves."""
    space, method = paper_cnn(), Integration.preset(code, index_scheme="original")
    for turn, client, clients in SEATS:
        index = method.index(space, Seat(turn - 1, client, 0.5, clients, 3))
        assert halves(space, index) == PATTERNS[original_number(code, turn, client, clients) % 4]


def test_channels_that_the_random_groups_of_mapp_fl_reach():
    """Its four fixed random sets miss some channels for ever; the one shared set (OFR) is the set of group 0."""
    space, method = paper_cnn(), Integration.preset("GFR", index_scheme="original")
    sets = {method.key(seat): coupled(space, method.index(space, seat)) for seat in (half_seat(k) for k in range(10))}
    assert len(sets) == 4
    reached = {axis: len(set().union(*(channels[axis] for channels in sets.values()))) for axis in space.axes}
    assert reached == {"conv1": 14, "conv2": 30, "conv3": 59, "conv4": 123}
    shared = Integration.preset("OFR", index_scheme="original")
    (zero,) = {client for client, place in enumerate(np.random.RandomState(1).permutation(10)) if place == 0}
    assert fingerprint(shared, space, half_seat(5)) == fingerprint(method, space, half_seat(zero))


def half_seat(client: int, round_: int = 0) -> Seat:
    """A client of half width among ten."""
    return Seat(round_, client, 0.5, 10, 8)


@pytest.mark.parametrize("code", RANDOM)
def test_independent_sets_of_mapp_fl(code):
    """Its ablation draws outputs with seed rand + 1 and inputs with 2 (rand + 1), the same in every layer."""
    space = paper_cnn()
    method = Integration.preset(code, index_scheme="original", coupling="independent")
    for turn, client, clients in SEATS:
        number = original_number(code, turn, client, clients)
        written, read = read_off(space, method.index(space, Seat(turn - 1, client, 0.5, clients, 0)))
        widths = {axis.name: axis.width for axis in space.axes.values()}
        assert written == {axis: {original_half(number + 1, width)} for axis, width in widths.items()}
        assert read == {axis: {original_half(2 * (number + 1), width)} for axis, width in widths.items()}


@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp", "resnet"])
@pytest.mark.parametrize("code", RANDOM)
def test_independent_sets_drawn_from_the_seed(code, name):
    """Inputs are drawn apart from outputs, yet the submodel still has the tensors of the scaled network."""
    space, method = space_of(name), Integration.preset(code, coupling="independent")
    for client in range(3):
        index = method.index(space, Seat(2, client, 0.5, 10, 1))
        written, read = read_off(space, index)
        assert all(len(found) == 1 for found in written.values())
        assert all(len(found) == 1 for found in read.values())
        assert all(written[axis] != read[axis] for axis in space.axes if space.axes[axis].width > 8)
        starts = torch.tensor([block.start for block in space.blocks] + [space.size])
        assert tuple(torch.searchsorted(index, starts).diff().tolist()) == block_sizes(name, 0.5)


# ---- the run's seed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", RANDOM)
def test_random_sets_depend_on_the_seed(code):
    """Ten seeds, ten different sets, for the same client in the same round; the same seed gives the same set."""
    method, space = Integration.preset(code), mlp_space(*WIDE)
    found = {seed: fingerprint(method, space, Seat(4, 2, 0.5, 10, seed)) for seed in range(10)}
    assert len(set(found.values())) == 10
    again = Integration.preset(code)
    assert all(fingerprint(again, space, Seat(4, 2, 0.5, 10, seed)) == one for seed, one in found.items())


def test_layers_and_sets_draw_apart():
    """Layers of equal width keep different channels, and so do different sets; all channels are used in the end."""
    method, space = Integration.preset("USR"), mlp_space(16, 16, 16)
    used = {axis: set() for axis in space.axes}
    for client in range(6):
        channels = coupled(space, method.index(space, Seat(0, client, 0.25, 6, 0)))
        assert len(set(channels.values())) == 3
        for axis, kept in channels.items():
            used[axis] |= set(kept)
    assert all(len(channels) > 10 for channels in used.values())


def test_submatrices_depend_on_the_seed_through_the_deal_alone():
    """GFM: other seeds deal clients to other groups, the four sets stay; OFM and OSM need no seed at all."""
    space = mlp_space(*WIDE)
    families = [family_of_seed("GFM", space, seed) for seed in range(6)]
    assert len(set(families)) > 1
    assert all(set(sets) == set(families[0]) for sets in families)
    for code in ("OFM", "OSM"):
        assert len({family_of_seed(code, space, seed) for seed in range(6)}) == 1


def family_of_seed(code: str, space: ParameterSpace, seed: int) -> tuple[bytes, ...]:
    """Submodels of ten clients in the third round."""
    method = Integration.preset(code)
    return tuple(fingerprint(method, space, Seat(2, client, 0.5, 10, seed)) for client in range(10))


@pytest.mark.parametrize("method", METHODS)
def test_a_submodel_is_a_pure_function_of_its_seat(method):
    """Asked twice, in another order, of another object or from two threads: the same cells."""
    space, chooser = mlp_space(*WIDE), METHODS[method]
    seats = [Seat(number, client, 0.5, 7, seed) for number in range(4) for client in range(7) for seed in (0, 9)]
    first = {seat: fingerprint(chooser, space, seat) for seat in seats}
    torch.manual_seed(1234)
    np.random.seed(1234)
    shuffled = random.Random(5).sample(seats, len(seats))
    assert all(fingerprint(chooser, space, seat) == first[seat] for seat in shuffled)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda seat: fingerprint(chooser, space, seat), shuffled)) == [
            first[seat] for seat in shuffled
        ]


def test_drawing_leaves_the_global_generators_alone():
    """No method touches torch's or NumPy's own random numbers."""
    torch.manual_seed(3)
    np.random.seed(3)
    expected = (torch.rand(3), np.random.rand(3))
    torch.manual_seed(3)
    np.random.seed(3)
    for chooser in METHODS.values():
        chooser.index(mlp_space(*WIDE), Seat(1, 1, 0.5, 4, 0))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


# ---- tiling ---------------------------------------------------------------------------------------------------------


def coverage(space: ParameterSpace, rate: float, **settings) -> Tensor:
    """How many of GFM's groups hold each cell."""
    method = Integration.preset("GFM", **settings)
    groups = method.group_count(rate)
    count = torch.zeros(space.size, dtype=torch.long)
    for client in range(groups):  # as many clients as groups: every group once
        count[method.index(space, Seat(6, client, rate, groups, 0))] += 1
    return count


def cut_dimensions(block: Block) -> int:
    """0 for what is never cut, 1 for biases, norms and the first and last layer, 2 for matrices between cut layers."""
    return sum(axis is not None for axis in block.axes)


TILED = {
    "cnn 1/2": (lambda: space_of("cnn"), 2),
    "mlp 1/2": (lambda: space_of("mlp"), 2),
    "lenet 1/2": (lambda: space_of("lenet"), 2),
    "alexnet 1/2": (lambda: space_of("alexnet"), 2),
    "paper's cnn 1/2": (lambda: paper_cnn(16), 2),
    "cnn 1/4": (lambda: space_of("cnn"), 4),
    "cnn 1/3": (lambda: paper_cnn(6), 3),
    "mlp 1/3": (lambda: mlp_space(12, 9, 6), 3),
    "mlp 1/4": (lambda: mlp_space(12, 8, 4), 4),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("case", TILED)
def test_groups_tile_the_network(case, scheme):
    """The k^2 groups hold matrices between cut layers once, cells with one cut dimension k times, others k^2 times."""
    make, k = TILED[case]
    space = make()
    count = coverage(space, 1 / k, index_scheme=scheme)
    found = {cut_dimensions(block) for block in space.blocks}
    assert found == {0, 1, 2}
    for block in space.blocks:
        assert set(count[block.cells].tolist()) == {{0: k * k, 1: k, 2: 1}[cut_dimensions(block)]}, block.name


@pytest.mark.parametrize(("name", "k"), [("lenet", 3), ("lenet", 4), ("mlp", 3), ("cnn", 3)])
def test_groups_cover_networks_that_do_not_divide(name, k):
    """Blocks overlap where k does not divide a width: cells are held more than once, but none is left out."""
    space = space_of(name)
    assert any(axis.width % k for axis in space.axes.values())
    count = coverage(space, 1 / k)
    assert int(count.min()) == 1
    assert any(int(count[block.cells].max()) > 1 for block in space.blocks if cut_dimensions(block) == 2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("clients", "k"), [(10, 4), (5, 3), (3, 2)])
def test_fewer_clients_than_groups_still_reach_every_cell(clients, k, scheme):
    """Clients sit in different groups, and each group has its turn: over the rounds no cell is left out."""
    method, space = Integration.preset("GFM", index_scheme=scheme), space_of("cnn")
    seen = torch.zeros(space.size, dtype=torch.bool)
    for round_ in range(40):
        seats = [Seat(round_, client, 1 / k, clients, 0) for client in range(clients)]
        assert len({method.key(seat) for seat in seats}) == clients
        for seat in seats:
            seen[method.index(space, seat)] = True
    assert bool(seen.all())


@given(hidden=st.lists(st.integers(2, 30), min_size=2, max_size=4), k=st.integers(2, 5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_groups_cover_any_widths(hidden, k):
    """Any widths of at least k: every cell at least once, exactly once (k, k^2 times) where k divides the width."""
    assume(min(hidden) >= k)
    space = mlp_space(*hidden)
    method = Integration.preset("GFM")
    assert not list(method.problems(space, [1 / k], k * k))
    count = coverage(space, 1 / k)
    assert int(count.min()) >= 1
    for block in space.blocks:
        axes = [space.axes[axis] for axis in block.axes if axis is not None]
        if all(axis.width % k == 0 for axis in axes):
            assert set(count[block.cells].tolist()) == {k ** (2 - len(axes))}


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.75, 1 / 3, 0.3, 0.25])
def test_groups_are_the_square_of_the_blocks_that_cover_a_layer(rate):
    """Width 1/2 to 1 takes 4 groups, 1/3 to 1/2 takes 9, and so on; together they leave no cell out."""
    method = Integration.preset("GFM")
    assert method.group_count(rate) == {0.5: 4, 0.6: 4, 0.75: 4, 1 / 3: 9, 0.3: 16, 0.25: 16}[rate]
    assert int(coverage(mlp_space(*WIDE), rate).min()) >= 1
    assert int(coverage(space_of("lenet"), rate).min()) >= 1


def test_groups_in_a_network_with_shortcuts():
    """ResNet: every 3x3 convolution is tiled once. The 1x1 shortcuts are not: a group keeps the same half at both
    ends of a residual stream, so that first to first and second to second half are held twice, the rest by nobody.
    """
    space = space_of("resnet")
    count = coverage(space, 0.5)
    shortcuts = [block for block in space.blocks if "shortcut.conv" in block.name]
    convolutions = [block for block in space.blocks if block.shape[2:] == (3, 3) and cut_dimensions(block) == 2]
    assert (len(shortcuts), len(convolutions)) == (3, 16)
    for block in space.blocks:
        cells = count[block.cells].view(block.shape)
        if block not in shortcuts:
            assert set(cells.flatten().tolist()) == {{0: 4, 1: 2, 2: 1}[cut_dimensions(block)]}, block.name
            continue
        outputs, inputs = block.shape[0] // 2, block.shape[1] // 2
        halves_kept = cells.view(2, outputs, 2, inputs).permute(0, 2, 1, 3).flatten(2)
        assert (halves_kept == torch.tensor([[2, 0], [0, 2]])[:, :, None]).all(), block.name


@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp", "resnet"])
def test_independent_submatrices_tile_every_matrix(name):
    """Outputs from one block and inputs from another in every layer: all matrices once, shortcuts too."""
    space = space_of(name)
    count = coverage(space, 0.5, coupling="independent")
    for block in space.blocks:
        assert set(count[block.cells].tolist()) == {{0: 4, 1: 2, 2: 1}[cut_dimensions(block)]}, block.name


def test_one_cut_layer_has_as_many_submatrices_as_blocks():
    """With a single hidden layer there is nothing to alternate: two of the four groups coincide."""
    space, method = mlp_space(8), Integration.preset("GFM")
    assert len(set(family(method, space, 0, 0.5, 4))) == 2


def test_a_stated_number_of_groups():
    """`groups` replaces k^2: nine groups of half width overlap, and are dealt 0 to 8."""
    method, space = Integration.preset("GFM", groups=9), mlp_space(12, 12)
    assert len(set(family(method, space, 0, 0.5, 9))) == 9
    starts = {coupled(space, method.index(space, Seat(0, client, 0.5, 9, 0)))["hidden1"][0] for client in range(9)}
    assert starts == {0, 3, 6}
    assert len(set(family(Integration.preset("GFR", groups=5), space, 0, 0.5, 10))) == 5
    assert set(family(Integration.preset("GFM", groups=1), space, 0, 0.5, 3)) == set(family(Prefix(), space, 0, 0.5, 1))


# ---- several widths in one federation -------------------------------------------------------------------------------

MIXED = [1.0, 0.5, 1 / 3, 0.25, 0.6] * 4
SETS = {
    "O": dict.fromkeys(MIXED[1:5], 1),
    "G": {0.5: 4, 1 / 3: 9, 0.25: 16, 0.6: 4},
    "U": dict.fromkeys(MIXED[1:5], 20),
}
"""Number of different submodels of each width among twenty clients."""


@pytest.mark.parametrize("method", METHODS)
def test_several_capacities_in_one_federation(method):
    """Through a plan, each client's submodel has its own width."""
    chooser, space = METHODS[method], mlp_space(*WIDE)
    for number in (0, 1, 17):
        plan = Plan(number, Roster((10,) * 20, tuple(MIXED), 1.0, seed=3), chooser, space)
        for client, rate in enumerate(MIXED):
            index = plan.index(client)
            assert torch.equal(index, chooser.index(space, Seat(number, client, rate, 20, 3)))
            kept = [len(channels) for channels in coupled(space, index).values()]
            assert kept == [math.ceil(width * plan.rate(client) - 1e-9) for width in WIDE]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("code", [code for code in PRESETS if code[1] == "F"])
def test_fixed_sets_of_several_capacities(code, scheme):
    """Clients of every width have the fixed sets of that width, as many as if all were that wide."""
    method, space = Integration.preset(code, index_scheme=scheme), mlp_space(*WIDE)
    for place, rate in enumerate(MIXED[1:5], start=1):
        everybody = set(family(method, space, 0, rate, 20))
        assert len(everybody) == SETS[code[0]][rate]
        for number in range(4):
            for client in range(place, 20, 5):
                assert fingerprint(method, space, Seat(number, client, rate, 20, 3)) in everybody


@pytest.mark.parametrize("policy", ["submatrix", "random"])
def test_one_set_for_all_widths_is_nested(policy):
    """Where clients of several widths share a draw, the narrow one's random channels are among the wide one's."""
    method, space = Integration("one", "fixed", policy), mlp_space(*WIDE)
    kept = [set(method.index(space, Seat(0, 0, rate, 4, 0)).tolist()) for rate in (1.0, 0.5, 1 / 3, 0.25)]
    assert all(narrow < wide for wide, narrow in pairwise(kept))


# ---- FedRolex, FjORD, prefixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", RATES)
def test_fedrolex_rolls_forwards(rate):
    """The window starts at the round's channel, wraps, and after `width` rounds has trained all equally often."""
    space, method = mlp_space(12, 8), FedRolex()
    times = {axis: Counter() for axis in space.axes}
    for number in range(12):
        seats = [Seat(number, client, RATES[rate], 5, seed) for client in (0, 4) for seed in (0, 1)]
        (index,) = {fingerprint(method, space, seat): method.index(space, seat) for seat in seats}.values()
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
    first, second = (coupled(space, method.index(space, Seat(number, 0, 0.5, 3, 0))) for number in (0, 1))
    assert fingerprint(method, space, Seat(0, 0, 0.5, 3, 0)) == fingerprint(Prefix(), space, Seat(0, 0, 0.5, 3, 0))
    for axis, channels in first.items():
        assert second[axis] == (*channels[1:], len(channels))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_prefix_is_ofm(scheme):
    """HeteroFL by either name: the first channels, in every round."""
    space, method = space_of("resnet"), Integration.preset("HeteroFL", index_scheme=scheme)
    for seat in (Seat(0, 0, 0.5, 4, 0), Seat(9, 3, 0.25, 4, 7), Seat(2, 1, 0.6, 4, 7)):
        index = method.index(space, seat)
        assert torch.equal(index, Prefix().index(space, seat))
        assert all(channels == tuple(range(len(channels))) for channels in coupled(space, index).values())


def test_fjord_by_round_draws_affordable_widths():
    """All levels below the capacity and the capacity itself are drawn about equally often; batch keeps the capacity."""
    method = FjORD([0.25, 0.5, 0.75, 1.0], draw="round")
    drawn = Counter(method.rate(Seat(number, client, 0.6, 5, 0)) for number in range(120) for client in range(5))
    assert set(drawn) == {0.25, 0.5, 0.6}
    assert all(150 < times < 250 for times in drawn.values())
    assert method.rates([0.6]) == (0.6, 0.5, 0.25)
    assert FjORD([0.25, 0.5, 1.0]).rate(Seat(3, 1, 0.6, 5, 0)) == 0.6
    by_client = [method.rate(Seat(0, client, 1.0, 40, 0)) for client in range(40)]
    assert len(set(by_client)) == 4


# ---- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_keys_are_equal_exactly_where_submodels_are(method):
    """For all seats of one federation over several rounds: equal keys if and only if equal cells."""
    chooser, space = METHODS[method], mlp_space(*WIDE)
    seats = [Seat(number, client, rate, 20, 6) for number in range(8) for client, rate in enumerate(MIXED)]
    pairs = {(chooser.key(seat), fingerprint(chooser, space, seat)) for seat in seats}
    assert len({key for key, _ in pairs}) == len(pairs)
    assert len({cells for _, cells in pairs}) == len(pairs)


@pytest.mark.parametrize("code", PRESETS)
def test_keys_are_equal_only_where_submodels_are_when_inputs_are_drawn_apart(code):
    """The same with independent inputs."""
    chooser, space = Integration.preset(code, coupling="independent"), mlp_space(*WIDE)
    seats = [Seat(number, client, rate, 20, 6) for number in range(4) for client, rate in enumerate(MIXED)]
    pairs = {(chooser.key(seat), fingerprint(chooser, space, seat)) for seat in seats}
    assert len({key for key, _ in pairs}) == len(pairs)


def test_a_plan_keeps_more_submodels_apart_than_it_remembers():
    """A hundred clients with a submodel each, asked for in any order: each gets its own."""
    space, method = mlp_space(*WIDE), Integration.preset("USR")
    plan = Plan(3, Roster((5,) * 100, (0.5,) * 100, 1.0, seed=1), method, space)
    for client in [*range(100), *reversed(range(100)), 5, 70, 5]:
        assert torch.equal(plan.index(client), method.index(space, Seat(3, client, 0.5, 100, 1)))


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", PRESETS)
def test_presets_by_code(code):
    """Three letters say grouping, dynamics and policy; the code can be read back, in any case."""
    grouping, dynamics, policy = PRESETS[code]
    assert code == grouping[0].upper() + {"fixed": "F", "resampled": "S"}[dynamics] + {
        "submatrix": "M",
        "random": "R",
    }.get(policy)
    for text in (code, code.lower(), code.capitalize()):
        method = Integration.preset(text, groups=9, index_scheme="original", coupling="independent")
        assert method.code == code
        assert (method.grouping, method.dynamics, method.policy) == PRESETS[code]
        assert (method.groups, method.index_scheme, method.coupling) == (9, "original", "independent")


def test_there_are_nine_presets():
    """Three groupings x two dynamics x two policies, without the three that make no sense."""
    everything = {g + d + p for g in "OGU" for d in "FS" for p in "MR"}
    assert set(PRESETS) == everything - {"GSM", "UFM", "USM"}


@pytest.mark.parametrize(
    ("name", "code"), [("HeteroFL", "OFM"), ("MaPP-FL", "GFM"), ("MaPP-FL-R", "GFR"), ("FDropout", "USR")]
)
def test_presets_by_name(name, code):
    """Names of published methods, in any case; the default is MaPP-FL."""
    assert {Integration.preset(text).code for text in (name, name.lower(), name.upper())} == {code}
    assert Integration().code == "GFM"


@pytest.mark.parametrize("name", ["GSM", "UFM", "usm", "FedAvg", "", "GF", "mapp_fl"])
def test_unknown_presets_are_refused(name):
    """The error repeats the name and lists all codes and names."""
    with pytest.raises(UserError) as caught:
        Integration.preset(name)
    text = str(caught.value)
    assert repr(name) in text
    assert all(known in text for known in (*PRESETS, "heterofl", "mapp-fl", "mapp-fl-r", "fdropout"))
