"""A round asks nothing of the host in its local steps, and equally much of it for any number of clients in a block."""

from collections import Counter

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, make_trainer, small_federation
from simulated_device import AVAILABLE, NAME, TRAFFIC, simulated_device

from app.federation.evaluation import Evaluation
from app.federation.local_training import LocalTraining

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this torch has no backends in Python")


@pytest.fixture(scope="module", autouse=True)
def sim():
    """The device."""
    with simulated_device():
        yield


def traffic(clients=4, epochs=2, rounds=1, samples=(6, 9, 12, 8), **settings):
    """Transfers and waits of a run; clients of one block have unequally many samples, and unequally many steps."""
    sizes = [samples[client % len(samples)] for client in range(clients)]
    local = LocalTraining(epochs=epochs, batch_size=4)
    options = {"local": local, "executor": "auto", "evaluation": Evaluation(clients=False), **settings}
    trainer = make_trainer(rounds, precision="32-true", accelerator=NAME, check_val_every_n_epoch=100)
    before = Counter(TRAFFIC)
    trainer.fit(small_federation(TINY_MLP, **options), datamodule=Blobs(sizes))
    return TRAFFIC - before


def test_traffic_is_counted():
    """Copies in both directions, numbers that the host asks for, and masks."""
    before = Counter(TRAFFIC)
    there = torch.arange(4.0).to(NAME)
    assert there.cpu().tolist() == [0, 1, 2, 3]
    assert TRAFFIC - before == {"to device": 1, "to host": 1}
    before = Counter(TRAFFIC)
    assert float(there.sum()) == 6
    assert bool(there[1] > 0)
    assert len(there[there > 1]) == 2
    assert (TRAFFIC - before)["waits"] == 3
    before = Counter(TRAFFIC)
    _ = (there * 2 + there[1:3].sum()).index_select(0, torch.arange(1, device=NAME))
    assert not TRAFFIC - before


@pytest.mark.parametrize("capacities", [None, [1.0, 0.5]], ids=["one width", "two widths"])
def test_local_steps_cause_no_transfers(capacities):
    """Six epochs cause as many as two; where clients have unequally many steps, too."""
    widths = None if capacities is None else capacities * 2
    assert traffic(epochs=6, capacities=widths) == traffic(epochs=2, capacities=widths)


def test_evaluated_clients_cause_no_more_transfers():
    """Received and trained models of sixteen clients are evaluated with as many as those of four."""
    few, many = (traffic(clients=clients, evaluation=Evaluation()) for clients in (4, 16))
    assert few == many


def test_transfers_do_not_grow_with_the_clients_of_a_block():
    """Sixteen clients cause as many as four, and a second block causes as many again."""
    few, many = traffic(clients=4), traffic(clients=16)
    assert few == many
    blocks = [traffic(clients=16, block_size=size) for size in (16, 8, 4)]
    assert blocks[0] == many
    block = blocks[1] - blocks[0]
    assert blocks[2] - blocks[1] == block + block
    # ids of the clients, of their samples and of those that share a step, and their weights; then ids, losses, finite
    assert block == {"to device": 4, "to host": 3}


def test_evaluation_asks_once_per_score():
    """However many batches a test set has: one answer per model, client and test set."""
    scores = [traffic(evaluation=Evaluation(batch_size=size), clients=4)["to host"] for size in (4, 1024)]
    assert scores[0] == scores[1]
