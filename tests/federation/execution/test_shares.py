"""Clients are dealt to processes by what they cost, and not in turn."""

import pytest
import torch
from federation_kit import TINY_MLP, sgd, small_federation

from app.common.dealing import deal
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.federation.plan import NO_CLIENT, ClientPool, Plan
from app.federation.submodels import ChannelSubset, FedRolex, Prefix
from app.models import CNN, MLP, DataShape

PUBLISHED = (17020, 7400, 7040, 6310, 4060, 3110, 1660, 1650, 1260, 490)  # MaPP-FL, Table 2
SHAPE = DataShape(1, 16, 16, 4)
SPACE = ParameterSpace(CNN(SHAPE, u=8))


def plan_of(sizes, capacities, method=None, **settings):
    """The first round of a federation of the papers' CNN."""
    return Plan(0, ClientPool(tuple(sizes), tuple(capacities), 1.0, seed=1), method or Prefix(), SPACE, **settings)


def loads(plan, ranks, shares=None):
    """Cost of every process's clients."""
    shares = shares or [plan.share(rank, ranks) for rank in range(ranks)]
    return [sum(plan.cost(client) for client in share if client != NO_CLIENT) for share in shares]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("capacities", [[1.0] * 10, [1.0, *[0.5] * 8, 1.0], [0.5, *[1.0] * 9]])
def test_the_longest_share_is_within_the_bound(ranks, capacities):
    """At most 4/3 - 1/(3 ranks) of what no division can be below, and shorter than dealing in turn."""
    plan = plan_of(PUBLISHED, capacities)
    costs = [plan.cost(client) for client in range(10)]
    least = max(sum(costs) / ranks, max(costs))
    longest = max(loads(plan, ranks))
    assert least <= longest <= (4 / 3 - 1 / (3 * ranks)) * least
    assert longest < max(loads(plan, ranks, [plan.participants[rank::ranks] for rank in range(ranks)]))


def test_two_processes_of_the_published_sizes():
    """Dealt by hand: 17020, 4060, 1660, 1650, 490 and the five others; in turn it would be 31040 samples."""
    plan = plan_of(PUBLISHED, [1.0] * 10)
    assert [load / SPACE.size for load in loads(plan, 2)] == [24880, 25120]
    assert max(loads(plan, 2, [plan.participants[rank::2] for rank in range(2)])) == 31040 * SPACE.size


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_client_once_on_padded_shares(ranks):
    """Also with more processes than clients; a share keeps the order of the participants, as one process has it."""
    plan = plan_of(PUBLISHED[:5], [1.0, 0.25, 0.5, 1.0, 0.5])
    shares = [plan.share(rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(client for share in shares for client in share if client != NO_CLIENT) == list(range(5))
    for share in shares:
        places = [plan.participants.index(client) for client in share if client != NO_CLIENT]
        assert places == sorted(places)


def test_shares_have_equal_lengths_in_all_rounds():
    """One huge client and many small ones leave one process with all but one of them in some rounds."""
    pool = ClientPool((1000, *[1] * 9), (1.0,) * 10, 0.5, seed=3)
    plans = [Plan(round_, pool, Prefix(), SPACE) for round_ in range(12)]
    assert {len(plan.share(rank, 2)) for plan in plans for rank in range(2)} == {4}
    assert any(NO_CLIENT not in plan.share(1, 2) for plan in plans)


@pytest.mark.parametrize("method", [Prefix(), FedRolex(), ChannelSubset.preset("mapp-fl"), ChannelSubset.preset("USR")])
@pytest.mark.parametrize("net", [CNN(SHAPE, u=8), MLP(SHAPE, hidden=(12, 7)), CNN(SHAPE, u=8, statistics="running")])
def test_sizes_of_submodels(method, net):
    """A width's number of coordinates is that of the index of any client of the width, whatever the method."""
    space = ParameterSpace(net)
    plan = Plan(2, ClientPool((5,) * 6, (1.0, 0.5, 0.5, 0.25, 0.25, 0.5), 1.0, seed=1), method, space)
    for client in range(6):
        assert space.size_at(plan.rate(client)) == len(plan.index(client))
        assert plan.cost(client) == 5 * len(plan.index(client))


def test_fixed_numbers_of_steps_cost_the_same():
    """Where clients make ten steps, it does not matter how many batches they could fill."""
    trained = LocalTraining(steps=10, batch_size=32).samples_trained
    plan = plan_of((1000, 64, 20), [1.0, 0.5, 1.0], samples_trained=trained)
    sizes = [SPACE.size_at(1.0), SPACE.size_at(0.5), SPACE.size_at(1.0)]
    assert [plan.cost(client) / size for client, size in enumerate(sizes)] == [320, 320, 200]
    assert LocalTraining(epochs=3).samples_trained(20) == 60


def test_a_federation_plans_with_its_own_local_training():
    """Two epochs count twice."""
    local = LocalTraining(epochs=2, optimizer=sgd(0.1))
    federation = small_federation(TINY_MLP, local=local)
    federation.space = ParameterSpace(TINY_MLP(SHAPE))
    federation.client_pool = ClientPool((7,), (1.0,), 1.0, seed=0)
    assert federation.plan_of(0).cost(0) == 14 * federation.space.size


def test_dealing_is_deterministic():
    """Equal costs go in order; nothing is lost where there is less than parts."""
    assert deal([2, 2, 2, 2], 2) == [[0, 2], [1, 3]]
    assert deal([1, 5, 3], 2) == [[1], [2, 0]]
    assert deal([4], 3) == [[0], [], []]
    costs = torch.rand(50, generator=torch.Generator().manual_seed(0)).tolist()
    assert deal(costs, 4) == deal(list(costs), 4)
    assert sorted(place for part in deal(costs, 4) for place in part) == list(range(50))


def test_a_client_without_samples_costs_something():
    """So that it is not added to a share that is full."""
    assert plan_of((0, 0, 0), [1.0] * 3).cost(1) == 1
    assert {len(plan_of((0, 0, 0), [1.0] * 3).share(rank, 3)) for rank in range(3)} == {1}
