"""Groups of submatrices together tile the server's network."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from submodel_kit import SCHEMES, WIDE, coupled, family, mlp_space, paper_cnn, space_of
from torch import Tensor

from app.federation.parameters import Block, ParameterSpace
from app.federation.submodels import ChannelSubset, ClientRound, Prefix


def coverage(space: ParameterSpace, rate: float, **settings) -> Tensor:
    """How many of GFM's groups hold each coordinate."""
    method = ChannelSubset.preset("GFM", **settings)
    groups = method.group_count(rate)
    count = torch.zeros(space.size, dtype=torch.long)
    for client in range(groups):  # as many clients as groups: every group once
        count[method.index(space, ClientRound(6, client, rate, groups, 0))] += 1
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
    """The k^2 groups hold matrices between cut layers once, with one cut dimension k times, others k^2 times."""
    make, k = TILED[case]
    space = make()
    count = coverage(space, 1 / k, index_scheme=scheme)
    found = {cut_dimensions(block) for block in space.blocks}
    assert found == {0, 1, 2}
    for block in space.blocks:
        assert set(count[block.coordinates].tolist()) == {{0: k * k, 1: k, 2: 1}[cut_dimensions(block)]}, block.name


@pytest.mark.parametrize(("name", "k"), [("lenet", 3), ("lenet", 4), ("mlp", 3), ("cnn", 3)])
def test_groups_cover_networks_that_do_not_divide(name, k):
    """Blocks overlap where k does not divide a width: coordinates are held more than once, but none is left out."""
    space = space_of(name)
    assert any(axis.width % k for axis in space.axes.values())
    count = coverage(space, 1 / k)
    assert int(count.min()) == 1
    assert any(int(count[block.coordinates].max()) > 1 for block in space.blocks if cut_dimensions(block) == 2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("clients", "k"), [(10, 4), (5, 3), (3, 2)])
def test_fewer_clients_than_groups_still_reach_every_coordinate(clients, k, scheme):
    """Clients sit in different groups, and each group has its turn: over the rounds no coordinate is left out."""
    method, space = ChannelSubset.preset("GFM", index_scheme=scheme), space_of("cnn")
    seen = torch.zeros(space.size, dtype=torch.bool)
    for round_ in range(40):
        client_rounds = [ClientRound(round_, client, 1 / k, clients, 0) for client in range(clients)]
        assert len({method.key(client_round) for client_round in client_rounds}) == clients
        for client_round in client_rounds:
            seen[method.index(space, client_round)] = True
    assert bool(seen.all())


@given(hidden=st.lists(st.integers(2, 30), min_size=2, max_size=4), k=st.integers(2, 5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_groups_cover_any_widths(hidden, k):
    """Any widths of at least k: every weight at least once, exactly once (k, k^2 times) where k divides the width."""
    assume(min(hidden) >= k)
    space = mlp_space(*hidden)
    method = ChannelSubset.preset("GFM")
    assert not list(method.problems(space, [1 / k], k * k))
    count = coverage(space, 1 / k)
    assert int(count.min()) >= 1
    for block in space.blocks:
        axes = [space.axes[axis] for axis in block.axes if axis is not None]
        if all(axis.width % k == 0 for axis in axes):
            assert set(count[block.coordinates].tolist()) == {k ** (2 - len(axes))}


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.75, 1 / 3, 0.3, 0.25])
def test_groups_are_the_square_of_the_blocks_that_cover_a_layer(rate):
    """Width 1/2 to 1 takes 4 groups, 1/3 to 1/2 takes 9, and so on; together they leave no coordinate out."""
    method = ChannelSubset.preset("GFM")
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
        coordinates = count[block.coordinates].view(block.shape)
        if block not in shortcuts:
            assert set(coordinates.flatten().tolist()) == {{0: 4, 1: 2, 2: 1}[cut_dimensions(block)]}, block.name
            continue
        outputs, inputs = block.shape[0] // 2, block.shape[1] // 2
        halves_kept = coordinates.view(2, outputs, 2, inputs).permute(0, 2, 1, 3).flatten(2)
        assert (halves_kept == torch.tensor([[2, 0], [0, 2]])[:, :, None]).all(), block.name


@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp", "resnet"])
def test_independent_submatrices_tile_every_matrix(name):
    """Outputs from one block and inputs from another in every layer: all matrices once, shortcuts too."""
    space = space_of(name)
    count = coverage(space, 0.5, coupling="independent")
    for block in space.blocks:
        assert set(count[block.coordinates].tolist()) == {{0: 4, 1: 2, 2: 1}[cut_dimensions(block)]}, block.name


def test_one_cut_layer_has_as_many_submatrices_as_blocks():
    """With a single hidden layer there is nothing to alternate: two of the four groups coincide."""
    space, method = mlp_space(8), ChannelSubset.preset("GFM")
    assert len(set(family(method, space, 0, 0.5, 4))) == 2


def test_a_stated_number_of_groups():
    """`groups` replaces k^2: nine groups of half width overlap, and are dealt 0 to 8."""
    method, space = ChannelSubset.preset("GFM", groups=9), mlp_space(12, 12)
    assert len(set(family(method, space, 0, 0.5, 9))) == 9
    starts = {
        coupled(space, method.index(space, ClientRound(0, client, 0.5, 9, 0)))["hidden1"][0] for client in range(9)
    }
    assert starts == {0, 3, 6}
    assert len(set(family(ChannelSubset.preset("GFR", groups=5), space, 0, 0.5, 10))) == 5
    assert set(family(ChannelSubset.preset("GFM", groups=1), space, 0, 0.5, 3)) == set(
        family(Prefix(), space, 0, 0.5, 1)
    )
