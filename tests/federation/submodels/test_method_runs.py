"""Submodel methods in real federations: who sends which coordinates, and what the server makes of them."""

from functools import cache, partial

import pytest
import torch
from federation_kit import (
    FOUR_PIXELS,
    PICTURES,
    TINY_MLP,
    Blobs,
    Recorder,
    initial,
    run,
    sgd,
    small_federation,
)
from torch import Tensor

from app.federation.capacities import Capacities
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.federation.submodels import PRESETS, ChannelSubset, ClientRound, FedRolex, FjORD, Prefix, SubmodelMethod
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18

METHODS = {
    **{code: partial(ChannelSubset.preset, code) for code in PRESETS},
    "GFM original": partial(ChannelSubset.preset, "GFM", index_scheme="original"),
    "USR original": partial(ChannelSubset.preset, "USR", index_scheme="original"),
    "GFR independent": partial(ChannelSubset.preset, "GFR", coupling="independent"),
    "FedRolex": FedRolex,
    "FjORD round": partial(FjORD, [0.5, 0.75, 1.0], draw="round"),
    "prefix": Prefix,
}
FIVE = (6, 4, 8, 5, 7)
MLP_12_8 = partial(MLP, hidden=(12, 8))
ZOO = {
    "cnn": (partial(CNN, u=8), PICTURES),
    "lenet": (LeNet5, DataShape(1, 16, 16, 3)),
    "alexnet": (AlexNet, DataShape(1, 8, 8, 3)),
    "mlp": (MLP_12_8, FOUR_PIXELS),
    "resnet": (partial(ResNet18, base=8), DataShape(1, 4, 4, 3)),
}


def mask(federation: FederatedModule, method: SubmodelMethod, round_: int, client: int, capacity: float) -> Tensor:
    """1 for every coordinate of the client's submodel, worked out without the run's own plan or method object."""
    coordinates = torch.zeros(federation.space.size, dtype=torch.float64)
    client_round = ClientRound(round_, client, capacity, len(federation.client_pool.sizes), federation.seed)
    coordinates[method.index(federation.space, client_round)] = 1.0
    return coordinates


# ---- FedAvg is every method at full width ---------------------------------------------------------------------------

FULL_WIDTH = {
    **{name: make for name, make in METHODS.items() if name != "FjORD round"},
    "FjORD round": partial(FjORD, [1.0], draw="round"),
    "FjORD batch": partial(FjORD, [1.0]),
}


@cache
def fedavg() -> Tensor:
    """Two rounds in which nobody names a method or a capacity."""
    return run(small_federation(TINY_MLP), precision="32-true")


@pytest.mark.parametrize("method", FULL_WIDTH)
def test_every_method_at_full_width_is_fedavg_bit_for_bit(method):
    """With capacity 1 for all there is one submodel, the whole network, whoever chooses it."""
    federation = small_federation(TINY_MLP, method=FULL_WIDTH[method](), capacities=Capacities(large=3, small=0.25))
    assert torch.equal(run(federation, precision="32-true"), fedavg())


# ---- who sends what -------------------------------------------------------------------------------------------------

MIXED = [0.5, 1.0, 1 / 3, 0.25, 0.6]


@pytest.mark.parametrize(
    ("method", "capacities", "uncovered"),
    [
        *((method, MIXED, "zero") for method in METHODS),
        *((method, [0.5] * 5, "keep") for method in ("GFM", "OSM", "USR original", "FedRolex", "FjORD round")),
        *((method, [0.5] * 5, "zero") for method in ("OFM", "UFR", "prefix")),
    ],
)
def test_rounds_of_unequal_submodels(method, capacities, uncovered):
    """In every round each participant sends exactly its submodel, each weight becomes the mean over its holders,
    and a coordinate that nobody holds keeps its value or becomes zero, whichever method left it out.
    """
    recorder = Recorder()
    federation = small_federation(
        MLP_12_8,
        method=METHODS[method](),
        capacities=capacities,
        participation=0.6,
        uncovered_cells=uncovered,
        seed=4,
    )
    end = run(federation, Blobs(FIVE), 3, [recorder], limit_val_batches=0)
    sent, servers, left_out = iter(recorder.updates), [*recorder.started, end], 0
    for number, (_, weight, updates) in enumerate(recorder.aggregates):
        participants = federation.plan_of(number).participants
        assert updates == len(participants) == 3
        count, total = torch.zeros_like(weight), torch.zeros_like(weight)
        for client in participants:
            held = mask(federation, METHODS[method](), number, client, capacities[client])
            who, vector, index = next(sent)
            assert who == client
            assert torch.equal(index, held.nonzero().flatten())
            count += held
            total[index] += vector
        assert torch.equal(weight, count)
        before, after, covered = servers[number], servers[number + 1], count > 0
        torch.testing.assert_close(after[covered], (total / count)[covered], rtol=0, atol=1e-14)
        expected = before if uncovered == "keep" else torch.zeros_like(before)
        assert torch.equal(after[~covered], expected[~covered])
        left_out += int((~covered).sum())
    assert number == 2
    assert next(sent, None) is None
    assert left_out > 0


def test_with_a_large_client_nothing_is_left_out():
    """One client of full width covers all coordinates, so that it does not matter what becomes of the others."""
    for method in ("GFM", "USR", "FedRolex"):
        ends = [
            run(small_federation(TINY_MLP, method=METHODS[method](), capacities=[1.0, 0.5, 0.5], uncovered_cells=fill))
            for fill in ("keep", "zero")
        ]
        assert torch.equal(*ends)


@pytest.mark.parametrize("method", ["GFM", "GFR", "UFR"])
def test_clients_are_sent_other_submodels_from_round_to_round(method):
    """Although the sets are fixed, a client's own set changes in a run."""
    recorder = Recorder()
    federation = small_federation(MLP_12_8, method=METHODS[method](), capacities=[0.5])
    run(federation, Blobs(FIVE), 5, [recorder], limit_val_batches=0)
    for client in range(5):
        own = {tuple(index.tolist()) for who, _, index in recorder.updates if who == client}
        assert len(own) > 1


# ---- reproducible ---------------------------------------------------------------------------------------------------


def mixed_run(method: str, **settings) -> Tensor:
    """Two rounds of minibatches with clients of several widths."""
    settings = {"local": LocalTraining(batch_size=3, optimizer=sgd(0.2)), "capacities": MIXED, **settings}
    return run(small_federation(MLP_12_8, method=METHODS[method](), **settings), Blobs(FIVE), limit_val_batches=0)


cached_run = cache(mixed_run)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_a_function_of_its_settings(method):
    """The same bits again, whatever the global generator did meanwhile and however clients are put into blocks."""
    first = cached_run(method)
    torch.manual_seed(77)
    assert torch.equal(mixed_run(method, block_size=2), first)


def test_runs_differ_in_method_and_seed():
    """No two methods of the taxonomy are the same in disguise, and the seed matters."""
    ends = [cached_run(code) for code in PRESETS]
    assert len({tuple(end.tolist()) for end in ends}) == 9
    for code in ("GFM", "USR"):
        assert not torch.equal(mixed_run(code, seed=2), cached_run(code))


@pytest.mark.parametrize("method", ["GFM", "USR", "FedRolex", "FjORD round"])
@pytest.mark.parametrize("executor", ["threads", "vectorised"])
def test_executors_agree_on_unequal_submodels(method, executor):
    """Clients of one width with different channels, trained side by side, get what they get one by one."""
    capacities = [0.5, 1.0, 0.5, 0.25, 0.5]
    together, alone = (
        mixed_run(method, capacities=capacities, executor=kind, workers=2) for kind in (executor, "sequence")
    )
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


# ---- every method on every network ----------------------------------------------------------------------------------

OTHERS = ("FedRolex", "FjORD round", "prefix")
DECAY = LocalTraining(batch_size=8, optimizer=sgd(0.1, weight_decay=0.1))
"""One step in which every parameter shrinks by a hundredth before its gradient counts: whatever is trained moves."""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("cnn", method) for method in (*PRESETS, *OTHERS)),
        *(("lenet", method) for method in ("OSM", "GFR", "USR", "FedRolex")),
        *(("mlp", method) for method in ("GFM", "OSR", "UFR", "FjORD round")),
        *(("resnet", method) for method in ("OFR", "GSR", "USR", "FedRolex")),
        *(("alexnet", method) for method in ("OFM", "UFR", "prefix")),
    ],
)
def test_every_method_trains_every_network(name, method):
    """One round of two half-width clients: every weight they hold moves, every matrix by a gradient, no other.

    All methods with one network, and all networks with one method of every grouping: indices of all pairs are tested
    in `test_submodel_indices`.
    """
    net, shape = ZOO[name]
    federation = small_federation(net, method=METHODS[method](), capacities=[0.5], local=DECAY)
    recorder = Recorder()
    end = run(federation, Blobs((4, 4), shape, tests=4), 1, [recorder], limit_val_batches=0)
    start, held = recorder.started[0], recorder.aggregates[0][1] > 0
    assert torch.equal(end[~held], start[~held])
    assert 0 < int(held.sum()) < len(held)
    assert bool(end.isfinite().all())
    assert bool((end != start)[held & (start != 0)].all())
    learned = held & ((end - 0.99 * start).abs() > 1e-9)
    for block in federation.space.blocks:
        if len(block.shape) > 1:  # a norm may cancel the biases and gains before it
            assert bool(learned[block.coordinates].any()), block.name


def test_the_start_does_not_depend_on_the_method():
    """All methods begin with the same server."""
    start = initial(small_federation(MLP_12_8), Blobs(FIVE))
    for method in ("GFM", "USR", "FedRolex", "FjORD round"):
        federation = small_federation(MLP_12_8, method=METHODS[method](), capacities=[0.5])
        assert torch.equal(initial(federation, Blobs(FIVE)), start)
