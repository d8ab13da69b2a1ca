"""What a server makes of a sum: changes of the clients, whatever the channel carries; and windows that it moves."""

import pytest
import torch

from app.attacks.reconstruction.active.observations import SentModel, observe
from app.attacks.reconstruction.active.rolling_model import MovedWindow
from app.federation.channels.base import Aggregate
from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.submodels import ChannelSubset, FedRolex, Prefix
from app.models import MLP, DataShape

CLIENT_POOL = ClientPool((4, 4, 4), (1.0, 0.5, 0.25), 1.0, 0)
METHODS = [FedRolex(), Prefix(), ChannelSubset.preset("USR"), ChannelSubset.preset("OSR"), ChannelSubset.preset("GFM")]


@pytest.fixture(scope="module")
def space():
    """Twelve channels."""
    return ParameterSpace(MLP(DataShape(1, 8, 8, 4), hidden=(12,)))


@pytest.mark.parametrize("carries", ["values", "changes"])
def test_changes_are_added_up_by_weight(space, carries):
    """The same observation, whether the channel averages values or changes; hand-written sum."""
    draw = torch.Generator().manual_seed(0)
    plan, coordinates = Plan(0, CLIENT_POOL, Prefix(), space), space.size
    theta = torch.randn(coordinates, generator=draw, dtype=torch.float64)
    weights, total, weight = (
        {0: 1.0, 1: 3.0, 2: 2.0},
        torch.zeros(coordinates).double(),
        torch.zeros(coordinates).double(),
    )
    sums, sent = torch.zeros(coordinates).double(), []
    for client, amount in weights.items():
        index = plan.index(client)
        got = torch.randn(len(index), generator=draw, dtype=torch.float64)
        change = torch.randn(len(index), generator=draw, dtype=torch.float64)
        total[index] += amount * change
        weight[index] += amount
        sums[index] += amount * (change + (got if carries == "values" else theta[index]))
        sent.append(SentModel(client, index, got, amount))
    aggregate = Aggregate(sums / weight, weight, 0 * weight, 3)
    seen = observe(plan, aggregate, theta, sent, carries)
    torch.testing.assert_close(seen.change, total, rtol=1e-12, atol=1e-12)
    held = torch.zeros(coordinates, dtype=torch.long)
    held[plan.index(1)] += 1
    held[plan.index(2)] += 1
    assert torch.equal(seen.holders([1, 2]), held)


def test_coordinates_that_nobody_sent_did_not_move(space):
    """Whatever the mean was filled with."""
    plan = Plan(0, CLIENT_POOL, Prefix(), space)
    index = plan.index(2)
    weight = torch.zeros(space.size).double()
    weight[index] = 1.0
    aggregate = Aggregate(torch.full((space.size,), 7.0).double(), weight, 0 * weight, 1)
    seen = observe(
        plan, aggregate, torch.zeros(space.size), [SentModel(2, index, torch.zeros(len(index)), 1.0)], "values"
    )
    assert set(torch.nonzero(seen.change).flatten().tolist()) == set(index.tolist())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.title)
def test_moved_window_is_new_for_the_client_and_old_for_the_others(space, method):
    """Where the plan leaves room: no channel of the round before, none that others enter or leave."""
    before, after = (Plan(round_, CLIENT_POOL, method, space) for round_ in (3, 4))
    moved = MovedWindow(method, before, after, (2,))
    real = Plan(4, CLIENT_POOL, moved, space)
    axis = space.axes["hidden1"]
    channels = moved.channels(axis, 3, real.client_round(2))
    assert channels.tolist() == sorted(set(channels.tolist()))
    assert not set(channels.tolist()) & set(method.channels(axis, 3, before.client_round(2)).tolist())
    held = [set(method.channels(axis, 6, plan.client_round(1)).tolist()) for plan in (before, after)]
    steady = (held[0] & held[1]) | (set(range(12)) - held[0] - held[1])
    free = steady - set(method.channels(axis, 3, before.client_round(2)).tolist())
    if len(free) >= 3:
        assert set(channels.tolist()) <= free
    assert len(real.index(2)) == len(after.index(2))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.title)
def test_everybody_and_every_round_else_is_as_announced(space, method):
    """A server that moves one window leaves no other trace in the plan."""
    before, after = (Plan(round_, CLIENT_POOL, method, space) for round_ in (3, 4))
    moved = MovedWindow(method, before, after, (2,))
    for round_ in (2, 3, 4, 5):
        announced, real = (Plan(round_, CLIENT_POOL, one, space) for one in (method, moved))
        for client in (0, 1, 2):
            same = torch.equal(announced.index(client), real.index(client))
            assert same or (round_, client) == (4, 2)
            assert announced.rate(client) == real.rate(client)
    assert moved.rates((1.0, 0.5)) == method.rates((1.0, 0.5))
    assert moved.title == method.title
    keys = {moved.key(Plan(4, CLIENT_POOL, moved, space).client_round(client)) for client in (1, 2)}
    assert len(keys) == 2
