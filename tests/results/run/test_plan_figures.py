"""What the figures of a plan show."""

import numpy as np
import pytest
import torch

from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.plan_audit.audit import audit
from app.federation.submodels import ChannelSubset, Prefix
from app.models import CNN, DataShape
from app.results.run.plan_figures import ABSENT, PlanMaps, draw_layer, draw_overview, fewest

SPACE = ParameterSpace(CNN(DataShape(1, 8, 8, 4), u=4))


def gathered(method, capacities, rounds, shown, participation=1.0, sent=None):
    """Maps of a plan by layer, and its rounds."""
    client_pool = ClientPool((10,) * len(capacities), capacities, participation, 0)
    plans = [Plan(round_, client_pool, method, SPACE) for round_ in range(rounds)]
    maps = PlanMaps(SPACE, len(capacities), shown)
    audit(maps.follow(plans), SPACE, sent, maps.watch)
    return {layer.name: layer for layer in maps.layers}, plans


def test_a_small_matrix_is_shown_as_it_is():
    """Nothing is joined below the limit."""
    counts = np.array([[0, 1, 2], [5, 0, 1]], dtype=np.uint16)
    assert fewest(counts, 3).tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("block", "shown"),
    [([[5, 3], [4, 9]], 3), ([[5, 0], [4, 9]], 0), ([[5, 0], [1, 9]], 1), ([[0, 0], [0, 0]], 0), ([[0, 1], [0, 0]], 1)],
)
def test_a_point_shows_the_fewest_and_one_before_none(block, shown):
    """A single contributor is never hidden, neither by many nor by none."""
    assert fewest(np.array(block, dtype=np.uint16), 1).tolist() == [[shown]]


def test_blocks_at_the_edge_may_be_smaller():
    """Five columns in at most two points: three and two."""
    counts = np.array([[7, 6, 5, 4, 3]], dtype=np.uint16)
    assert fewest(counts, 2).tolist() == [[5, 3]]


def test_maps_hold_what_the_plan_says():
    """Counts by output and input, and who trains which output, for the shown rounds; the mean over all rounds."""
    layers, plans = gathered(ChannelSubset.preset("USR"), (1.0, 0.5, 0.5, 0.5), 5, {0, 4}, participation=0.5)
    block = next(block for block in SPACE.blocks if block.name == "blocks.1.conv.weight")
    layer, cells = layers["blocks.1.conv"], torch.arange(block.size).view(block.shape) + block.start
    every = []
    for plan in plans:
        owned = {client: torch.isin(cells, plan.index(client)) for client in plan.participants}
        every.append(sum(mask.int() for mask in owned.values())[:, :, 0, 0].numpy())
        if plan.round in (0, 4):
            assert np.array_equal(layer.counts[plan.round], every[-1])
            for client in range(4):
                rows = layer.channels[plan.round][client]
                expected = plan.rate(client) * owned[client].any((1, 2, 3)) if client in owned else [ABSENT] * len(rows)
                assert rows.tolist() == list(map(float, expected))
    assert sorted(layer.counts) == sorted(layer.channels) == [0, 4]
    assert np.allclose(layer.mean, np.mean(every, axis=0))


def test_layers_that_stay_on_the_clients_have_no_map():
    """Nobody sends them."""
    layers, _ = gathered(Prefix(), (1.0, 0.5), 1, {0}, sent=~SPACE.matching(["*classifier*", "blocks.0*"]))
    assert list(layers) == ["blocks.1.conv", "blocks.2.conv", "blocks.3.conv"]


@pytest.mark.parametrize("clients", [1, 3, 40])
def test_every_layer_can_be_drawn(clients, tmp_path):
    """Layers that are never cut, a single input, one round, one client, more clients than have rows of their own."""
    capacities = (1.0, *[0.25] * (clients - 1))
    layers, _ = gathered(Prefix(), capacities, 1, {0}, participation=0.4)
    for name in ("blocks.0.conv", "classifier"):
        draw_layer(layers[name], "title").savefig(tmp_path / "picture.png", dpi=40)
    draw_overview(list(layers.values()), "title").savefig(tmp_path / "overview.png", dpi=40)
    assert (tmp_path / "overview.png").stat().st_size > 1000
