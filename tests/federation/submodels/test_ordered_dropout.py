"""FjORD inside a client: prefixes of a drawn width that share the client's parameters."""

import math
from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Recorder, initial, run, sgd, small_federation, whole_batch
from torch import nn

from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.federation.submodels import ClientRound, FjORD, LocalWidths, Prefix
from app.federation.submodels.fjord import OrderedDropout
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18

COLOUR = DataShape(3, 16, 16, 5)
NETS = {
    "mlp": partial(MLP, COLOUR, (12, 8)),
    "cnn": partial(CNN, COLOUR, u=4),
    "cnn running": partial(CNN, COLOUR, u=4, statistics="running"),
    "lenet": partial(LeNet5, COLOUR),
    "alexnet": partial(AlexNet, DataShape(3, 8, 8, 4)),
    "resnet": partial(ResNet18, COLOUR, base=4),
}


def images_for(net: nn.Module) -> torch.Tensor:
    """A batch of noise."""
    shape = net.hparams["shape"]
    generator = torch.Generator().manual_seed(3)
    return torch.randn(6, shape.channels, shape.height, shape.width, generator=generator, dtype=torch.float64)


def prepared(name: str, capacity: float = 1.0, level: float = 0.5):
    """A client's network, its ordered dropout, and the coordinates of the narrower prefix in it."""
    torch.manual_seed(0)
    server = NETS[name]().double()
    net = server.scaled(capacity).double().train()
    dropout = OrderedDropout(net, capacity, server, LocalWidths((level,), 0.0, 1.0))
    index = Prefix().index(ParameterSpace(server), ClientRound(0, 0, level, 1, 0))
    own = Prefix().index(ParameterSpace(server), ClientRound(0, 0, capacity, 1, 0))
    return net, dropout, torch.searchsorted(own, index)


@pytest.mark.parametrize("capacity", [1.0, 0.75])
@pytest.mark.parametrize("name", NETS)
def test_a_prefix_is_the_narrow_network(name, capacity):
    """Logits and gradients are those of a network of that width with the same values; other weights get no gradient."""
    net, dropout, coordinates = prepared(name, capacity)
    space, images = ParameterSpace(net), images_for(net)
    alone = dropout.nets[0.5].__class__(**{**net.hparams, "rate": 0.5}).double().train()
    ParameterSpace(alone).write(alone, space.read(net)[coordinates])
    torch.manual_seed(1)
    expected = alone(images)
    torch.manual_seed(1)
    logits = dropout.logits(net, 0.5, images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    logits.square().sum().backward()
    expected.square().sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
    narrow = torch.cat([p.grad.flatten() for p in alone.parameters()])
    inside = coordinates[coordinates < space.trainable]
    torch.testing.assert_close(gradient[inside], narrow, rtol=0, atol=1e-10)
    outside = torch.ones(space.trainable, dtype=torch.bool)
    outside[inside] = False
    assert not gradient[outside].any()
    assert bool(outside.any())


def test_running_statistics_of_a_prefix_are_the_clients():
    """Only the first channels' statistics move, and they move in the client's network."""
    net, dropout, coordinates = prepared("cnn running")
    space = ParameterSpace(net)
    before = space.read(net)
    dropout.logits(net, 0.5, images_for(net))
    moved = (space.read(net) != before).nonzero().flatten()
    buffers = coordinates[coordinates >= space.trainable]
    assert set(moved.tolist()) == set(buffers.tolist())


def test_the_widest_is_the_network_itself():
    """Its own width costs no second network."""
    net, dropout, _ = prepared("cnn")
    assert set(dropout.nets) == {0.5}
    assert torch.equal(dropout.logits(net, 1.0, images_for(net)), net(images_for(net)))


def test_levels_are_drawn_evenly():
    """All levels up to the capacity, and no others."""
    net = MLP(COLOUR, (10,)).scaled(0.8)
    dropout = OrderedDropout(net, 0.8, MLP(COLOUR, (10,)), LocalWidths((0.2, 0.4, 1.0), 0.0, 1.0))
    dropout.generator = torch.Generator().manual_seed(0)
    drawn = [dropout.sample_width() for _ in range(3000)]
    counts = {level: drawn.count(level) for level in set(drawn)}
    assert set(counts) == {0.2, 0.4, 0.8}
    assert all(abs(count - 1000) < 4 * math.sqrt(3000 * 2 / 9) for count in counts.values())


def test_distillation_in_closed_form():
    """Two classes, logits (0, a) and (0, b): Kullback-Leibler divergence by hand; equal outputs cost nothing."""
    net = MLP(COLOUR, (10,))
    dropout = OrderedDropout(net, 1.0, net, LocalWidths((0.5,), 0.75, 2.0))
    drawn, widest = torch.tensor([[0.0, 1.0]], requires_grad=True), torch.tensor([[0.0, -3.0]], requires_grad=True)
    p, q = 1 / (1 + math.exp(1.5)), 1 / (1 + math.exp(-0.5))
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    loss = dropout.distilled(drawn, widest, torch.tensor(0.8))
    assert float(loss) == pytest.approx(0.25 * 0.8 + 0.75 * 4 * divergence, rel=1e-5)
    loss.backward()
    assert widest.grad is None, "the teacher does not move towards its pupil"
    assert bool(drawn.grad.any())
    assert float(dropout.distilled(widest, widest, torch.tensor(0.0))) == pytest.approx(0, abs=1e-7)


def test_one_level_is_heterofl_bit_for_bit():
    """A client that can only draw its own width trains as under HeteroFL."""
    settings = {"capacities": [1.0, 0.5, 0.5], "local": LocalTraining(batch_size=4, optimizer=sgd(0.1, momentum=0.9))}
    heterofl = run(small_federation(TINY_MLP, **settings))
    fjord = run(small_federation(TINY_MLP, method=FjORD([1.0]), **settings))
    assert torch.equal(heterofl, fjord)


def test_a_round_with_a_drawn_width_is_one_of_that_width():
    """`draw: round` sends, trains and returns the drawn prefix: the run equals one with these capacities."""
    method = FjORD([0.25, 0.5, 0.75], draw="round")
    rates = [method.rate(ClientRound(0, client, 1.0, 3, 0)) for client in range(3)]
    assert len(set(rates)) > 1, "otherwise this shows nothing"
    drawn = run(small_federation(TINY_MLP, method=method, local=whole_batch(epochs=2)), rounds=1)
    stated = run(small_federation(TINY_MLP, capacities=rates, local=whole_batch(epochs=2)), rounds=1)
    assert torch.equal(drawn, stated)


def test_a_step_moves_only_the_drawn_prefix():
    """One full-batch step without momentum: the client's coordinates beyond the drawn width stay as received."""
    method, recorder = FjORD([0.25, 0.5]), Recorder()
    federation = small_federation(TINY_MLP, method=method, capacities=[1.0])
    start = initial(small_federation(TINY_MLP, method=method, capacities=[1.0]))
    run(federation, rounds=1, callbacks=[recorder])
    prefixes = {
        rate: set(Prefix().index(federation.space, ClientRound(0, 0, rate, 1, 0)).tolist()) for rate in (0.25, 0.5, 1.0)
    }
    found = set()
    for _, vector, index in recorder.updates:
        assert len(index) == federation.space.size, "clients return the width they can afford"
        moved = set((vector != start).nonzero().flatten().tolist())
        fitting = [rate for rate, coordinates in prefixes.items() if moved <= coordinates]
        assert fitting
        found.add(min(fitting))
    assert len(found) > 1, "clients draw apart from each other"


@pytest.mark.parametrize("distillation", [0.0, 0.5])
def test_executors_draw_the_same(distillation):
    """Widths depend on round and client, not on the worker; batch after batch draws anew."""
    outcomes = []
    for executor in ("sequence", "threads"):
        federation = small_federation(
            partial(CNN, u=4),
            method=FjORD([0.25, 0.5], distillation=distillation),
            capacities=[1.0, 0.5, 0.5, 1.0],
            local=LocalTraining(batch_size=4, optimizer=sgd(0.1)),
            executor=executor,
            workers=2,
        )
        outcomes.append(run(federation, Blobs((9, 12, 8, 7), PICTURES)))
    assert torch.equal(*outcomes)


def test_distillation_changes_training():
    """Also the widest network learns in a step that draws a narrow one."""
    settings = {"capacities": [1.0], "local": LocalTraining(batch_size=4, optimizer=sgd(0.1))}
    plain, distilled = (
        run(small_federation(TINY_MLP, method=FjORD([0.25], distillation=weight), **settings)) for weight in (0.0, 0.5)
    )
    assert not torch.equal(plain, distilled)


def test_vectorised_execution_is_refused():
    """Widths differ from client to client and step to step."""
    federation = small_federation(TINY_MLP, method=FjORD([0.5]), capacities=[1.0], executor="vectorised")
    with pytest.raises(UserError, match="draw their widths step by step"):
        run(federation)
    assert run(small_federation(TINY_MLP, method=FjORD([0.5]), capacities=[1.0], executor="auto")).isfinite().all()


def test_a_replaced_network_is_refused():
    """A defense that wraps the network would be passed by."""
    net, dropout, _ = prepared("cnn")
    with pytest.raises(UserError, match="draw round"):
        dropout.logits(nn.Sequential(net), 0.5, images_for(net))
