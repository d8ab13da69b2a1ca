"""Clients drawn by a coin each: another number of them in every round, on any number of processes."""

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Reports, run, sgd, small_federation

from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.federation.plan import NO_CLIENT, ClientPool, Plan
from app.federation.submodels import Prefix

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))


def client_pool(clients=50, participation=0.3, seed=1, sampling="poisson"):
    """Clients of one sample and full width."""
    return ClientPool((1,) * clients, (1.0,) * clients, participation, seed, sampling=sampling)


def test_every_client_is_drawn_by_itself():
    """Numbers of participants and each client's rounds have the mean and variance of coins."""
    rounds = 2000
    drawn = torch.zeros(rounds, 50)
    for number in range(rounds):
        drawn[number, list(client_pool().participants(number))] = 1
    sizes = drawn.sum(dim=1)
    assert float(sizes.mean()) == pytest.approx(15, abs=4 * (50 * 0.21 / rounds) ** 0.5)
    assert float(sizes.var()) == pytest.approx(50 * 0.21, rel=0.15)
    assert (drawn.mean(dim=0) - 0.3).abs().max() < 4.5 * (0.21 / rounds) ** 0.5


def test_the_plan_does_not_depend_on_the_precision_of_the_run():
    """Attacks read the plan after the run, when the default type is another than in training."""
    plans = []
    for kind in (torch.float32, torch.float64):
        torch.set_default_dtype(kind)
        plans.append([client_pool().participants(number) for number in range(20)])
    torch.set_default_dtype(torch.float32)
    assert plans[0] == plans[1]


def test_the_extremes():
    """Everybody at a rate of 1; a fixed number stays fixed."""
    assert len(client_pool(participation=1.0).participants(3)) == 50
    assert {len(client_pool(sampling="fixed").participants(number)) for number in range(20)} == {15}
    assert len({len(client_pool().participants(number)) for number in range(20)}) > 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_make_equally_many_steps_in_every_round(ranks):
    """Shares are padded to the most clients there can be, and hold every participant once."""
    people, space = client_pool(clients=7), ParameterSpace(TINY_MLP(PICTURES))
    for number in range(10):
        plan = Plan(number, people, Prefix(), space)
        shares = [plan.share(rank, ranks) for rank in range(ranks)]
        assert {len(share) for share in shares} == {7 - ranks + 1}
        trained = sorted(client for share in shares for client in share if client != NO_CLIENT)
        assert trained == sorted(plan.participants)


def test_a_run_trains_whom_the_plan_names():
    """Also in rounds with more blocks than others, and in rounds without anybody."""
    reports = Reports()
    federation = small_federation(TINY_MLP, local=LOCAL, participation=0.3, sampling="poisson", block_size=2)
    with pytest.warns(UserWarning, match="no client sent a usable update"):
        run(federation, Blobs((5, 6, 7, 8, 9)), rounds=8, callbacks=[reports])
    planned = [sorted(federation.client_pool.participants(number)) for number in range(8)]
    assert [[client.client for client in report.clients] for report in reports.rounds] == planned
    assert {0, 1, 2, 3} <= {len(clients) for clients in planned}


class Without(FederatedCallback):
    """Keeps a client out of a round."""

    def withdraws(self, federation, client):
        """Client 1 in the second round."""
        return client == 1 and federation.plan.round == 1


def test_a_client_that_withdraws_is_neither_trained_nor_counted():
    """The others go on without it."""
    reports = Reports()
    run(small_federation(TINY_MLP, local=LOCAL), rounds=3, callbacks=[Without(), reports])
    assert [[client.client for client in report.clients] for report in reports.rounds] == [
        [0, 1, 2],
        [0, 2],
        [0, 1, 2],
    ]
