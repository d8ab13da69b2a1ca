"""The taxonomy's nine methods: who shares a set of channels, whether sets change, how they depend on the seed."""

import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from submodel_kit import (
    METHODS,
    MIXED,
    PATTERNS,
    RANDOM,
    RATES,
    SCHEMES,
    WIDE,
    coupled,
    family,
    fingerprint,
    halves,
    mlp_space,
    paper_cnn,
)

from app.common.errors import UserError
from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.submodels import PRESETS, ChannelSubset, ClientRound

CLIENTS, ROUNDS = 18, 6


@pytest.mark.parametrize(
    ("scheme", "rate"), [("seeded", "1/2"), ("seeded", "1/3"), ("seeded", "1/4"), ("original", "1/3")]
)
@pytest.mark.parametrize("code", PRESETS)
def test_grouping_and_dynamics(code, scheme, rate):
    """O: one set in a round, G: k^2 sets, U: one per client; F: the same sets in all rounds, S: others."""
    method, space = ChannelSubset.preset(code, index_scheme=scheme), mlp_space(*WIDE)
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
    method, space = ChannelSubset.preset("OSM", index_scheme=scheme), paper_cnn()
    for number in range(9):
        index = method.index(space, ClientRound(number, 3, 0.5, 10, 5))
        assert halves(space, index) == PATTERNS[(number + 1) % 4]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("code", ["GFM", "GFR", "GSR"])
def test_groups_of_ten_clients(code, scheme):
    """Over all ten clients, large ones included, groups hold 3, 3, 2 and 2; everybody visits every group."""
    method = ChannelSubset.preset(code, index_scheme=scheme)
    first_round_of = {}
    visited = {client: set() for client in range(10)}
    for number in range(150):
        keys = [method.key(ClientRound(number, client, 0.5, 10, 11)) for client in range(10)]
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
    method = ChannelSubset.preset(code, groups=4)
    for number in range(5):
        for client in range(10):
            places = {method.key(ClientRound(number, client, rate, 10, 2))[1] for rate in (0.5, 0.3, 0.25)}
            assert len(places) == 1


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
        plan = Plan(number, ClientPool((10,) * 20, tuple(MIXED), 1.0, seed=3), chooser, space)
        for client, rate in enumerate(MIXED):
            index = plan.index(client)
            assert torch.equal(index, chooser.index(space, ClientRound(number, client, rate, 20, 3)))
            kept = [len(channels) for channels in coupled(space, index).values()]
            assert kept == [math.ceil(width * plan.rate(client) - 1e-9) for width in WIDE]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("code", [code for code in PRESETS if code[1] == "F"])
def test_fixed_sets_of_several_capacities(code, scheme):
    """Clients of every width have the fixed sets of that width, as many as if all were that wide."""
    method, space = ChannelSubset.preset(code, index_scheme=scheme), mlp_space(*WIDE)
    for place, rate in enumerate(MIXED[1:5], start=1):
        everybody = set(family(method, space, 0, rate, 20))
        assert len(everybody) == SETS[code[0]][rate]
        for number in range(4):
            for client in range(place, 20, 5):
                assert fingerprint(method, space, ClientRound(number, client, rate, 20, 3)) in everybody


@pytest.mark.parametrize("policy", ["submatrix", "random"])
def test_one_set_for_all_widths_is_nested(policy):
    """Where clients of several widths share a draw, the narrow one's random channels are among the wide one's."""
    method, space = ChannelSubset("one", "fixed", policy), mlp_space(*WIDE)
    kept = [set(method.index(space, ClientRound(0, 0, rate, 4, 0)).tolist()) for rate in (1.0, 0.5, 1 / 3, 0.25)]
    assert all(narrow < wide for wide, narrow in pairwise(kept))


@pytest.mark.parametrize("code", RANDOM)
def test_random_sets_depend_on_the_seed(code):
    """Ten seeds, ten different sets, for the same client in the same round; the same seed gives the same set."""
    method, space = ChannelSubset.preset(code), mlp_space(*WIDE)
    found = {seed: fingerprint(method, space, ClientRound(4, 2, 0.5, 10, seed)) for seed in range(10)}
    assert len(set(found.values())) == 10
    again = ChannelSubset.preset(code)
    assert all(fingerprint(again, space, ClientRound(4, 2, 0.5, 10, seed)) == one for seed, one in found.items())


def test_layers_and_sets_draw_apart():
    """Layers of equal width keep different channels, and so do different sets; all channels are used in the end."""
    method, space = ChannelSubset.preset("USR"), mlp_space(16, 16, 16)
    used = {axis: set() for axis in space.axes}
    for client in range(6):
        channels = coupled(space, method.index(space, ClientRound(0, client, 0.25, 6, 0)))
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
    method = ChannelSubset.preset(code)
    return tuple(fingerprint(method, space, ClientRound(2, client, 0.5, 10, seed)) for client in range(10))


@pytest.mark.parametrize("method", METHODS)
def test_a_submodel_is_a_pure_function_of_its_client_round(method):
    """Asked twice, in another order, of another object or from two threads: the same coordinates."""
    space, chooser = mlp_space(*WIDE), METHODS[method]
    client_rounds = [
        ClientRound(number, client, 0.5, 7, seed) for number in range(4) for client in range(7) for seed in (0, 9)
    ]
    first = {client_round: fingerprint(chooser, space, client_round) for client_round in client_rounds}
    torch.manual_seed(1234)
    np.random.seed(1234)
    shuffled = random.Random(5).sample(client_rounds, len(client_rounds))
    assert all(fingerprint(chooser, space, client_round) == first[client_round] for client_round in shuffled)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda client_round: fingerprint(chooser, space, client_round), shuffled)) == [
            first[client_round] for client_round in shuffled
        ]


def test_drawing_leaves_the_global_generators_alone():
    """No method touches torch's or NumPy's own random numbers."""
    torch.manual_seed(3)
    np.random.seed(3)
    expected = (torch.rand(3), np.random.rand(3))
    torch.manual_seed(3)
    np.random.seed(3)
    for chooser in METHODS.values():
        chooser.index(mlp_space(*WIDE), ClientRound(1, 1, 0.5, 4, 0))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


@pytest.mark.parametrize("code", PRESETS)
def test_presets_by_code(code):
    """Three letters say grouping, dynamics and policy; the code can be read back, in any case."""
    grouping, dynamics, policy = PRESETS[code]
    assert code == grouping[0].upper() + {"fixed": "F", "resampled": "S"}[dynamics] + {
        "submatrix": "M",
        "random": "R",
    }.get(policy)
    for text in (code, code.lower(), code.capitalize()):
        method = ChannelSubset.preset(text, groups=9, index_scheme="original", coupling="independent")
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
    assert {ChannelSubset.preset(text).code for text in (name, name.lower(), name.upper())} == {code}
    assert ChannelSubset().code == "GFM"


@pytest.mark.parametrize("name", ["GSM", "UFM", "usm", "FedAvg", "", "GF", "mapp_fl"])
def test_unknown_presets_are_refused(name):
    """The error repeats the name and lists all codes and names."""
    with pytest.raises(UserError) as caught:
        ChannelSubset.preset(name)
    text = str(caught.value)
    assert repr(name) in text
    assert all(known in text for known in (*PRESETS, "heterofl", "mapp-fl", "mapp-fl-r", "fdropout"))
