"""Stacked steps: batched linear layers have the right gradients, and a recording gives the very same numbers."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import FOUR_PIXELS, TINY_MLP, Blobs, run, sgd, small_federation
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.federation.client import ClientModule
from app.federation.execution import recorded_step
from app.federation.execution.recorded_step import RecordedStep, StackedLinear, recordings_of
from app.federation.execution.vectorised import _description
from app.federation.local_training import LocalTraining
from app.models import MLP, DataShape, Factorised

SHAPE = DataShape(1, 3, 3, 4)


def stacked(net, clients: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Different parameters for every client."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(clients, *value.shape, generator=draw, dtype=torch.float64)
        for name, value in net.named_parameters()
    }


def batch(clients: int, samples: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(clients, samples, 1, 3, 3, generator=draw, dtype=torch.float64)
    return images, torch.randint(4, (clients, samples), generator=draw)


@pytest.mark.parametrize("bias", [True, False])
def test_stacked_linear_layers_have_the_gradients_of_single_ones(bias):
    """Losses and gradients of three clients in one call are those of autograd client by client."""
    net = MLP(SHAPE, hidden=(5,), bias=bias).double()
    values, (images, labels) = stacked(net, 3), batch(3, 6)
    step = RecordedStep(lambda named, x, y: cross_entropy(functional_call(net, named, (x,)), y))
    losses, gradients = step(values, {}, images, labels)
    for client in range(3):
        own = {name: value[client].clone().requires_grad_() for name, value in values.items()}
        loss = cross_entropy(functional_call(net, own, (images[client],)), labels[client])
        assert float(loss) == pytest.approx(float(losses[client]), abs=1e-12)
        for mine, theirs in zip(gradients, torch.autograd.grad(loss, list(own.values())), strict=True):
            torch.testing.assert_close(mine[client], theirs, rtol=0, atol=1e-12)


def test_gradients_lie_as_the_weights_do():
    """Else the optimiser would read one of the two against its layout."""
    net = MLP(SHAPE, hidden=(5,)).double()
    step = RecordedStep(lambda named, x, y: cross_entropy(functional_call(net, named, (x,)), y))
    _, gradients = step(stacked(net, 3), {}, *batch(3, 6))
    assert all(gradient.is_contiguous() for gradient in gradients)


def test_layers_with_more_dimensions_or_common_weights_fall_back():
    """Inputs (batch, places, features), and a weight that all clients share, give what vmap alone gives."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 2, 5, 4, generator=draw)
    weight = torch.randn(3, 6, 4, generator=draw)
    linear = torch.nn.functional.linear
    with StackedLinear():
        several, common = vmap(linear)(inputs, weight), vmap(partial(linear, weight=weight[0]))(inputs)
        shared = vmap(lambda x: linear(x, weight[0]))(inputs)
    torch.testing.assert_close(several, torch.stack([linear(x, w) for x, w in zip(inputs, weight, strict=True)]))
    torch.testing.assert_close(common, linear(inputs, weight[0]))
    torch.testing.assert_close(shared, linear(inputs, weight[0]))


def test_a_recording_gives_the_same_bits(monkeypatch):
    """Plain and replayed steps of a network with noise, bounds and penalty, to the last bit and for new inputs."""
    monkeypatch.setattr(recorded_step, "WORTHWHILE", 1)
    net = Factorised(SHAPE, net=partial(MLP, hidden=(5,)), factors={"layers.hidden1": 7}).double()

    def objective(named, x, y):
        return cross_entropy(functional_call(net, named, (x,)), y)

    plain, recorded = RecordedStep(objective), RecordedStep(objective, "bits")
    for seed in range(3):
        values, (images, labels) = stacked(net, 4, seed), batch(4, 6, seed)
        noise = {"inner.layers.hidden1.uniform_b": torch.rand(4, 7, dtype=torch.float64)}
        expected, found = (step(values, noise, images, labels) for step in (plain, recorded))
        assert torch.equal(expected[0], found[0])
        for mine, theirs in zip(expected[1], found[1], strict=True):
            assert torch.equal(mine, theirs) if mine is not None else theirs is None
    assert len(recorded_step.recordings_of("bits").steps) == 1


@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        (TINY_MLP, (8, 8, 4)),
        (partial(Factorised, net=partial(MLP, hidden=(6,)), factors={"*hidden*": 4}), (8, 8)),
    ],
)
def test_recorded_rounds_end_in_the_same_bits(monkeypatch, net, sizes):
    """When steps begin to be replayed changes nothing, so an interrupted run ends like one in one go."""
    ends = []
    for worthwhile in (10**9, 3, 1):
        monkeypatch.setattr(recorded_step, "WORTHWHILE", worthwhile)
        local = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.1), proximal=0.1)
        ends.append(run(small_federation(net, executor="vectorised", local=local), Blobs(sizes), 3))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_another_shape_is_another_recording(monkeypatch):
    """Fewer clients or smaller batches are never replayed from a recording of another shape."""
    monkeypatch.setattr(recorded_step, "WORTHWHILE", 1)
    net = MLP(SHAPE, hidden=(5,)).double()
    step = RecordedStep(lambda named, x, y: cross_entropy(functional_call(net, named, (x,)), y), "shapes")
    for clients, samples in ((3, 6), (2, 6), (3, 5), (3, 6)):
        losses, _ = step(stacked(net, clients), {}, *batch(clients, samples))
        assert losses.shape == (clients,)
    assert len(recorded_step.recordings_of("shapes").steps) == 3


def knowledge_of(federation) -> PublicKnowledge:
    """What an attacker knows of a trained federation, enough to train shadow models."""
    rates = (0.1, 0.1)
    return PublicKnowledge(federation.net, federation.data.store, federation.local, rates)


def test_shadows_and_repeated_federations_use_recordings_of_the_first(monkeypatch):
    """One recording per shape and width for a federation, its shadows and its repetition, with the same bits."""
    made, recorded = [], recorded_step._recorded
    monkeypatch.setattr(recorded_step, "_recorded", lambda *given: made.append(given) or recorded(*given))
    monkeypatch.setattr(recorded_step, "WORTHWHILE", 3)
    local = LocalTraining(batch_size=4, epochs=3, optimizer=sgd(0.1))

    def trained(shared: bool) -> list[torch.Tensor]:
        recordings_of.cache_clear()
        ends = []
        for _ in range(2):
            federation = small_federation(TINY_MLP, executor="vectorised", local=local)
            ends.append(run(federation, Blobs((12, 12, 12)), 2))
            for seed in (1, 2):
                if not shared:
                    recordings_of.cache_clear()
                jobs = [ShadowJob(number, 1.0, np.arange(number, number + 12), seed) for number in range(3)]
                models = train_centrally(knowledge_of(federation), jobs, (1, 2))
                ends.extend(snapshot.vector for snapshots in models for snapshot in snapshots)
        return ends

    apart = trained(shared=False)
    assert len(made) == 5
    made.clear()
    together = trained(shared=True)
    assert len(made) == 1
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        (partial(MLP, hidden=(6, 5)), {}),
        (partial(MLP, hidden=(6, 4), bias=False), {}),
        (TINY_MLP, {"mask_labels": True}),
        (TINY_MLP, {"proximal": 0.1}),
        (TINY_MLP, {"proximal": 0.2}),
    ],
)
def test_objectives_that_differ_share_no_recording(net, settings):
    """Another network, masked labels, or another proximal weight make another objective."""

    def description(net, **settings):
        return _description(ClientModule(net(FOUR_PIXELS), LocalTraining(**settings), classes=3))

    assert description(TINY_MLP) == description(TINY_MLP, epochs=7)
    others = [description(TINY_MLP), description(TINY_MLP, proximal=0.3), description(partial(TINY_MLP, rate=0.5))]
    assert description(net, **settings) not in others


def test_a_network_with_another_buffer_is_another_objective():
    """Values of buffers are part of a recording."""
    nets = [TINY_MLP(FOUR_PIXELS) for _ in range(2)]
    for number, net in enumerate(nets):
        net.register_buffer("offset", torch.tensor(float(number)), persistent=False)
    first, second = (_description(ClientModule(net, LocalTraining())) for net in nets)
    assert first != second
