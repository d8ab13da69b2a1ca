"""The audit of a plan: against sets of clients written out weight by weight, and against answers worked out by hand."""

import statistics
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from federation_kit import FOUR_PIXELS, PICTURES, Blobs, Recorder, run, small_federation, whole_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.plan_audit.audit import LayerAudit, audit, layers
from app.federation.private_coordinates import uploaded_coordinates, uploaded_rounds
from app.federation.submodels import PRESETS, ChannelSubset, FedRolex, FjORD, Prefix
from app.models import CNN, MLP

MIXED = (1.0, 0.5, 0.5, 0.25, 0.5, 0.25, 1.0, 0.5)
METHODS = {
    **{code: ChannelSubset.preset(code) for code in PRESETS},
    "FedRolex": FedRolex(),
    "FjORD": FjORD(draw="round"),
    "Prefix": Prefix(),
    "independent": ChannelSubset.preset("USR", coupling="independent"),
}
MLP_SPACE = ParameterSpace(MLP(FOUR_PIXELS, (12, 8)))
CNN_SPACE = ParameterSpace(CNN(PICTURES, u=2, statistics="running"))


def rounds_of(method, space, client_pool, rounds):
    """Plans of the first rounds."""
    return [Plan(round_, client_pool, method, space) for round_ in range(rounds)]


def clients_of_coordinates(plan, space):
    """The clients of every coordinate, as Python sets."""
    owned = {client: set(plan.index(client).tolist()) for client in plan.participants}
    return [
        {client for client, coordinates in owned.items() if coordinate in coordinates}
        for coordinate in range(space.size)
    ]


def histogram(sizes):
    """Entry n: how often n occurs, up to the largest."""
    counted = Counter(sizes)
    return tuple(counted[size] for size in range(max(counted) + 1)) if counted else ()


def brute_force(name, coordinates, sets):
    """The audit of a layer, one coordinate and one round after the other."""
    everything = [sets[round_][coordinate] for round_ in range(len(sets)) for coordinate in coordinates]
    changes = [before[coordinate] ^ after[coordinate] for before, after in pairwise(sets) for coordinate in coordinates]
    return LayerAudit(
        name=name,
        coordinates=len(coordinates),
        rounds=len(sets),
        contributors=histogram(map(len, everything)),
        differences=histogram(map(len, changes)),
        covered=sum(any(of_round[coordinate] for of_round in sets) for coordinate in coordinates),
        alone=tuple(sorted({client for clients in everything if len(clients) == 1 for client in clients})),
        exposed=tuple(sorted({client for change in changes if len(change) == 1 for client in change})),
    )


def assert_properties(layer, coordinates, sets):
    """Everything that is derived from the counts."""
    sizes = [len(of_round[coordinate]) for of_round in sets for coordinate in coordinates]
    changes = [
        len(before[coordinate] ^ after[coordinate]) for before, after in pairwise(sets) for coordinate in coordinates
    ]
    assert (layer.pairs, layer.nobody, layer.single) == (len(sizes), sizes.count(0), sizes.count(1))
    assert (layer.changed, layer.changed_by_one) == (sum(map(bool, changes)), changes.count(1))
    assert layer.smallest_change == min(filter(None, changes), default=None)
    for k in (0, 1, 2, 3, 5, 100):
        assert layer.below(k) == sum(0 < size < k for size in sizes)
        assert layer.changes_below(k) == sum(0 < change < k for change in changes)
    if sizes:
        assert (layer.fewest, layer.median, layer.most) == (min(sizes), statistics.median(sizes), max(sizes))
        assert layer.trained == pytest.approx(sum(map(bool, sizes)) / len(sizes))
        assert layer.trained_once == layer.covered / len(coordinates)
    else:
        assert (layer.fewest, layer.median, layer.most) == (0, 0, 0)
        assert np.isnan([layer.trained, layer.trained_once]).all()


def assert_equals_brute_force(plans, space, sent=None):
    """Every field of every layer and of the total, and the counts that a watcher is told."""
    seen = {}
    found = audit(plans, space, sent, lambda round_, block, counts: seen.update({(round_, block.name): counts}))
    sets = [clients_of_coordinates(plan, space) for plan in plans]
    kept = set(range(space.size)) if sent is None else set(sent.nonzero().flatten().tolist())
    expected = {}
    for block in space.blocks:
        coordinates = [coordinate for coordinate in range(space.size)[block.coordinates] if coordinate in kept]
        expected.setdefault(block.name.rpartition(".")[0], []).extend(coordinates)
    assert [layer.name for layer in found.layers] == list(expected)
    for layer, coordinates in zip((*found.layers, found.total), [*expected.values(), sorted(kept)], strict=True):
        assert layer == brute_force(layer.name, coordinates, sets)
        assert_properties(layer, coordinates, sets)
    for block in space.blocks:
        coordinates = range(space.size)[block.coordinates]
        for plan, of_round in zip(plans, sets, strict=True):
            counts = [len(of_round[coordinate]) if coordinate in kept else 0 for coordinate in coordinates]
            if kept.intersection(coordinates):
                assert seen[plan.round, block.name].ravel().tolist() == counts
                assert seen[plan.round, block.name].shape == block.shape
            else:
                assert (plan.round, block.name) not in seen


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("redraw", [False, True], ids=["fixed", "redrawn"])
def test_equals_brute_force(name, redraw):
    """Every method, mixed widths that stay or are dealt anew, five of eight clients in a round."""
    client_pool = ClientPool((10,) * 8, MIXED, 0.6, 3, redraw)
    assert_equals_brute_force(rounds_of(METHODS[name], MLP_SPACE, client_pool, 4), MLP_SPACE)


@pytest.mark.parametrize("name", ["GFM", "UFR", "FedRolex"])
def test_equals_brute_force_with_kernels_and_buffers(name):
    """A convolutional network with running statistics; everybody takes part."""
    plans = rounds_of(METHODS[name], CNN_SPACE, ClientPool((10,) * 5, (1.0, 0.5, 0.5, 0.5, 0.5), 1.0, 0), 3)
    assert any("running" in block.name for block in CNN_SPACE.blocks)
    assert_equals_brute_force(plans, CNN_SPACE)


@pytest.mark.parametrize("patterns", [["*classifier*"], ["*hidden1.bias"], ["*"]], ids=["layer", "block", "all"])
def test_personal_coordinates_are_left_out(patterns):
    """A local head, half a layer, no federation at all."""
    plans = rounds_of(METHODS["GFR"], MLP_SPACE, ClientPool((10,) * 8, MIXED, 1.0, 1), 3)
    assert_equals_brute_force(plans, MLP_SPACE, ~MLP_SPACE.matching(patterns))


@dataclass(frozen=True)
class Written:
    """A round written out by hand: coordinates by client."""

    round: int
    owned: dict

    @property
    def participants(self):
        """Whoever is written down."""
        return tuple(self.owned)

    def index(self, client):
        """Its coordinates, in order."""
        return torch.tensor(sorted(self.owned[client]), dtype=torch.int64)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_sets_of_coordinates(data):
    """Sets that follow no channels, clients without coordinates, rounds without clients, any coordinates unsent."""
    space = ParameterSpace(MLP(FOUR_PIXELS, (2,)))
    coordinates = st.sets(st.integers(0, space.size - 1))
    rounds = data.draw(st.lists(st.dictionaries(st.integers(0, 300), coordinates, max_size=4), min_size=1, max_size=4))
    mask = data.draw(st.lists(st.booleans(), min_size=space.size, max_size=space.size))
    assert_equals_brute_force([Written(5 + n, owned) for n, owned in enumerate(rounds)], space, torch.tensor(mask))


@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_more_clients_than_a_word_has_bits(participation):
    """150 clients in a round, or 45 of them, whose bits are given to others when they leave."""
    capacities = tuple(MIXED[client % 8] for client in range(150))
    space = ParameterSpace(MLP(FOUR_PIXELS, (6,)))
    plans = rounds_of(METHODS["USR"], space, ClientPool((10,) * 150, capacities, participation, 2), 5)
    assert_equals_brute_force(plans, space)


def test_a_client_beyond_the_first_word_is_named():
    """Client 99 is alone on coordinate 3, and joins coordinate 7 alone in the second round."""
    everybody = {client: {0, 7} for client in range(99)}
    plans = [Written(0, {**everybody, 99: {3}}), Written(1, {**everybody, 99: {3, 7}})]
    total = audit(plans, MLP_SPACE).total
    assert (total.alone, total.single) == ((99,), 2)
    assert (total.exposed, total.changed_by_one, total.most) == ((99,), 1, 100)


ONE_HIDDEN = ParameterSpace(MLP(FOUR_PIXELS, (40,)))
THREE_WIDTHS = ClientPool((10, 10, 10), (1.0, 0.5, 0.25), 1.0, 0)


def layer(found, name):
    """The audit of one layer."""
    return next(layer for layer in found.layers if layer.name == name)


def test_prefixes_leave_the_wide_client_alone():
    """Of 40 rows, 10 have three contributors, 10 two, and half of them client 0 alone; nothing ever changes."""
    hidden = layer(audit(rounds_of(Prefix(), ONE_HIDDEN, THREE_WIDTHS, 6), ONE_HIDDEN), "layers.hidden1")
    row = 4 + 1
    assert hidden.coordinates == 40 * row
    assert hidden.contributors == (0, 6 * 20 * row, 6 * 10 * row, 6 * 10 * row)
    assert hidden.single == hidden.pairs / 2
    assert hidden.alone == (0,)
    assert hidden.differences == (5 * 40 * row,)
    assert (hidden.changed, hidden.smallest_change, hidden.exposed) == (0, None, ())


def test_rolling_windows_change_by_one_client_mostly():
    """Per round one row leaves both windows (two clients), and each window gains a row of its own (one client)."""
    plans = rounds_of(FedRolex(), ONE_HIDDEN, THREE_WIDTHS, 50)
    hidden = layer(audit(plans, ONE_HIDDEN), "layers.hidden1")
    row = 4 + 1
    assert hidden.differences == (49 * 37 * row, 49 * 2 * row, 49 * row)
    assert hidden.changed_by_one * 3 == hidden.changed * 2
    assert (hidden.exposed, hidden.smallest_change) == ((1, 2), 1)
    bias = torch.zeros(ONE_HIDDEN.size, dtype=torch.bool)
    bias[next(block for block in ONE_HIDDEN.blocks if block.name == "layers.hidden1.bias").coordinates] = True
    alone = audit(plans, ONE_HIDDEN, bias).total
    assert (alone.changed, alone.changed_by_one) == (49 * 3, 49 * 2)


def test_groups_tile_a_matrix_between_cut_layers():
    """Ten small clients in four groups: every weight has the clients of exactly one group, every group a quarter."""
    seen = {}
    client_pool = ClientPool((10,) * 10, (0.5,) * 10, 1.0, 4)
    plans = rounds_of(ChannelSubset.preset("GFM"), CNN_SPACE, client_pool, 3)
    audit(plans, CNN_SPACE, watch=lambda round_, block, counts: seen.update({(round_, block.name): counts}))
    block = next(block for block in CNN_SPACE.blocks if block.name == "blocks.2.conv.weight")
    outputs, inputs = block.shape[0] // 2, block.shape[1] // 2
    for plan in plans:
        counts, groups = seen[plan.round, block.name], Counter(map(plan.key, range(10)))
        assert sorted(groups.values()) == [2, 2, 3, 3]
        quarters = [counts[o : o + outputs, i : i + inputs] for o in (0, outputs) for i in (0, inputs)]
        assert sorted(int(quarter.min()) for quarter in quarters) == sorted(groups.values())
        assert all((quarter == quarter.min()).all() for quarter in quarters)


def test_layers_hold_all_their_tensors():
    """Weight, bias and running statistics of a layer stand together."""
    named = {name: [block.name.rpartition(".")[2] for block in blocks] for name, blocks in layers(CNN_SPACE).items()}
    assert named["blocks.0.conv"] == ["weight", "bias"]
    assert named["blocks.0.norm"] == ["weight", "bias", "running_mean", "running_var"]


def test_only_consecutive_rounds_can_be_compared():
    """A gap, a repetition and nothing at all are refused; so is an index out of order."""
    first, third = Written(0, {0: {1}}), Written(2, {0: {1}})
    for plans in ([], [first, third], [first, first]):
        with pytest.raises(ValueError, match="consecutive"):
            audit(plans, MLP_SPACE)

    class Doubled(Written):
        def index(self, client):
            return torch.tensor([4, 4])

    with pytest.raises(ValueError, match="client 7 in round 0"):
        audit([Doubled(0, {7: set()})], MLP_SPACE)


@pytest.mark.parametrize("mask_labels", [False, True])
def test_the_audited_coordinates_are_those_that_clients_send(mask_labels):
    """A run with a personal bias, clients without some classes and absent clients sends exactly what was planned."""
    seen = Recorder()
    federation = small_federation(
        partial(MLP, hidden=(6,)),
        method=FedRolex(),
        capacities=[1.0, 0.5, 0.5, 1.0],
        participation=0.75,
        personal=["*hidden1.bias"],
        local=whole_batch(mask_labels=mask_labels),
    )
    run(federation, Blobs((1, 2, 9, 4)), rounds=3, callbacks=[seen])
    sent = uploaded_coordinates(federation)
    planned = {
        (plan.round, client): [coordinate for coordinate in plan.index(client).tolist() if sent[coordinate]]
        for plan in uploaded_rounds(federation, range(3))
        for client in plan.participants
    }
    messages = {(message.round, message.client): message.index.tolist() for message in seen.messages}
    assert planned == messages
    assert not sent.all()
    narrow = [client for client in range(4) if not federation.data.owned_classes(client).all()]
    assert narrow
