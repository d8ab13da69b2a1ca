"""A result depends on the settings and the seed, on nothing else."""

from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Reports, make_trainer, run, sgd, small_federation
from torch.optim.lr_scheduler import MultiStepLR

from app.federation.aggregation import QFFL, FedAdam, FedAvg, FedAvgM
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.plan import ClientPool
from app.models import CNN, MLP
from datamodules import RawData

SIZES = (3, 7, 10, 6, 9, 4, 8)
LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2, momentum=0.5))
SETTINGS = {"local": LOCAL, "capacities": [1.0, 0.5, 0.25, 1.0, 0.5, 1.0, 0.25], "weighting": "samples"}


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_block_size_does_not_matter(executor):
    """One client per block, three, or all: the same model."""
    results = [
        run(small_federation(TINY_MLP, executor=executor, block_size=size, **SETTINGS), Blobs(SIZES), 2)
        for size in (1, 3, 100)
    ]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_order_of_clients_does_not_matter(executor, monkeypatch):
    """The plan's order is a matter of speed only."""
    reference = run(small_federation(TINY_MLP, executor=executor, **SETTINGS), Blobs(SIZES), 2)
    planned = ClientPool.participants
    for order in (reversed, lambda clients: clients[3:] + clients[:3]):
        monkeypatch.setattr(
            ClientPool, "participants", lambda pool, round_, order=order: tuple(order(planned(pool, round_)))
        )
        result = run(small_federation(TINY_MLP, executor=executor, block_size=2, **SETTINGS), Blobs(SIZES), 2)
        torch.testing.assert_close(result, reference, rtol=0, atol=1e-13)


NETS = {"cnn": partial(CNN, u=4), "dropout": partial(MLP, hidden=(16,), dropout=0.3)}


@pytest.mark.parametrize("net", NETS)
def test_same_seed_same_bits(net):
    """Twice with worker threads, in single precision; other random draws in between do not matter."""
    federations = [
        small_federation(NETS[net], executor="threads", workers=workers, local=LOCAL, seed=3) for workers in (3, 3, 2)
    ]
    results = []
    for federation in federations:
        torch.rand(5)
        results.append(run(federation, Blobs(SIZES, PICTURES), precision="32-true"))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_another_seed_gives_another_result():
    """Initialisation and batches change with it."""
    first, second = (run(small_federation(TINY_MLP, local=LOCAL, seed=seed), Blobs(SIZES)) for seed in (0, 1))
    assert not torch.allclose(first, second, atol=1e-3)


class Twins(Blobs):
    """Both clients own the same pictures."""

    def load(self) -> RawData:
        """The second half repeats the first."""
        raw = super().load()
        half = len(raw.labels) // 2
        raw.images[half:], raw.labels[half:] = raw.images[:half].clone(), raw.labels[:half].clone()
        return raw


class Seen(FederatedCallback):
    """Keeps every picture in the order in which clients see it."""

    def __init__(self) -> None:
        self.pictures = {}

    def client_loss(self, federation, client, batch, logits, loss):
        """By round and client."""
        self.pictures.setdefault((client.round, client.client), []).extend(batch[0].flatten(1).tolist())
        return loss


def test_order_of_samples_is_keyed_by_round_and_client():
    """Twins see the same pictures in different orders, and in another order in the next round."""
    seen = Seen()
    run(small_federation(local=LOCAL), Twins((12, 12)), 2, [seen])
    orders = list(seen.pictures.values())
    assert len(orders) == 4
    assert len({str(order) for order in orders}) == 4
    assert len({str(sorted(order)) for order in orders}) == 1


SERVERS = {"fedavg": FedAvg, "fedavgm": FedAvgM, "fedadam": FedAdam, "q-ffl": QFFL}


@pytest.mark.parametrize(("server", "precision"), [*((server, "32-true") for server in SERVERS), ("fedavg", "64-true")])
def test_an_interrupted_run_ends_on_the_same_bits(server, precision, tmp_path):
    """Two rounds, saved, loaded into a fresh federation and continued: server state and schedule included."""
    schedule = partial(MultiStepLR, milestones=[1, 3], gamma=0.5)
    local = LocalTraining(batch_size=4, optimizer=sgd(0.2), lr_schedule=schedule)
    settings = {"local": local, "server": SERVERS[server], "participation": 0.6, "capacities": SETTINGS["capacities"]}
    whole = run(small_federation(TINY_MLP, **settings), Blobs(SIZES), 4, precision=precision)
    trainer = make_trainer(2, precision)
    trainer.fit(small_federation(TINY_MLP, **settings), datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = small_federation(TINY_MLP, **settings)
    checkpoint = tmp_path / "half.ckpt"
    make_trainer(4, precision).fit(resumed, datamodule=Blobs(SIZES), ckpt_path=checkpoint, weights_only=True)
    assert torch.equal(resumed.space.read(resumed.net), whole)


def client_pool(participation: float, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> ClientPool:
    """Clients of equal capacity."""
    return ClientPool(sizes, (1.0,) * len(sizes), participation, seed)


@pytest.mark.parametrize("participation", [0.01, 0.1, 0.3, 0.5, 0.72, 1.0])
@pytest.mark.parametrize("clients", [1, 7, 10])
def test_number_of_participants(participation, clients):
    """round(fraction * clients), but at least one; nobody twice, largest first."""
    some = client_pool(participation, tuple(range(1, clients + 1)))
    for round_ in range(5):
        chosen = some.participants(round_)
        assert len(set(chosen)) == len(chosen) == max(1, round(participation * clients))
        assert list(chosen) == sorted(chosen, reverse=True)


def test_participants_are_a_function_of_seed_and_round():
    """Not of sizes or capacities; they differ between rounds and seeds, and everybody gets a turn."""
    base = client_pool(0.4, (5,) * 10)
    other = ClientPool(tuple(range(1, 11)), (0.5,) * 10, 0.4, 0)
    rounds = [frozenset(base.participants(round_)) for round_ in range(20)]
    assert rounds == [frozenset(other.participants(round_)) for round_ in range(20)]
    assert len(set(rounds)) > 10
    assert frozenset().union(*rounds) == set(range(10))
    assert rounds != [frozenset(client_pool(0.4, (5,) * 10, seed=1).participants(round_)) for round_ in range(20)]


@pytest.mark.parametrize("block_size", [2, 32])
def test_partial_participation_in_a_run(block_size):
    """Reports name exactly the planned clients of every round."""
    reports = Reports()
    federation = small_federation(participation=0.4, seed=5, block_size=block_size)
    run(federation, Blobs(SIZES), 4, [reports])
    seen = [{client.client for client in report.clients} for report in reports.rounds]
    assert seen == [set(federation.client_pool.participants(round_)) for round_ in range(4)]
    assert [report.round for report in reports.rounds] == [1, 2, 3, 4]
    assert all(len(clients) == 3 for clients in seen)
    assert len({frozenset(clients) for clients in seen}) > 1
