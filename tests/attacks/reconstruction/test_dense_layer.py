"""Images from the update of a dense layer: exact for one image, nothing under Adam, corners among mixtures."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam

from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.attacks.reconstruction.inversion.dense_layer import (
    DenseLayer,
    LinearTraining,
    corners,
    first_dense,
    invert,
    purity,
    with_trap_weights,
)
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.models import CNN, MLP, DataShape
from datamodules.store import ImageStore

SHAPE = DataShape(1, 8, 8, 10)
PLAIN = LinearTraining(0.1, 1)


def store(mean=0.3, std=0.5):
    """The scale of some images; none of them is ever looked at."""
    return ImageStore(
        torch.full((1, 8, 8, 1), torch.nan),
        torch.zeros(1, dtype=torch.long),
        torch.tensor([mean]),
        torch.tensor([std]),
        10,
    )


def step(net, images, labels, optimizer, steps=1):
    """The isolated update of a client that trains on its images; images are on the pixel scale."""
    space, (mean, std) = ParameterSpace(net), (0.3, 0.5)
    before = space.read(net)
    stepper = optimizer(net.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        cross_entropy(net((images - mean) / std), labels).backward()
        stepper.step()
    change = space.read(net).double() - before.double()
    everything = torch.arange(space.size)
    return IsolatedUpdate((0,), 0, everything, change, torch.ones_like(change), before.double(), everything, before)


def layer_of(net):
    """Its first layer."""
    layer = first_dense(ParameterSpace(net), SHAPE)
    assert isinstance(layer, DenseLayer)
    return layer


@pytest.fixture
def net():
    """A small network in single precision."""
    torch.manual_seed(0)
    return MLP(SHAPE, hidden=(100,))


@pytest.fixture
def images():
    """Ten images of noise."""
    return torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(5))


def test_one_image_comes_back_exactly(net, images):
    """To 1e-5 in single precision, from every row that fired; without any trap."""
    update = step(net, images[:1], torch.tensor([3]), partial(SGD, lr=0.1))
    found = invert(layer_of(net), update, store(), PLAIN, "corrected", 1)
    assert len(found) > 10
    best = (found.images - images[:1]).abs().flatten(1).amax(dim=1).min()
    assert best <= 1e-5


def test_adam_leaves_signs(net, images):
    """No reconstruction comes near the image: all values are the same up to their sign."""
    update = step(net, images[:1], torch.tensor([3]), partial(Adam, lr=0.1))
    found = invert(layer_of(net), update, store(), PLAIN, "corrected", 1)
    assert (found.images - images[:1]).abs().flatten(1).amax(dim=1).min() > 0.3
    assert isinstance(LinearTraining.of(LocalTraining(), 0.1, 4), str)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 3])
def test_weight_decay_can_be_subtracted(net, images, steps, momentum):
    """With one image the correction is exact up to the drift of the weights; ignored, decay spoils the ratio."""
    optimizer = partial(SGD, lr=1e-3, weight_decay=0.5, momentum=momentum)
    update = step(net.double(), images[:1].double(), torch.tensor([3]), optimizer, steps)
    training = LinearTraining.of(LocalTraining(batch_size=1, epochs=steps, optimizer=optimizer), 1e-3, 1)
    errors = {
        decay: float(
            (invert(layer_of(net), update, store(), training, decay, 1).images - images[:1])
            .abs()
            .flatten(1)
            .amax(dim=1)
            .min()
        )
        for decay in ("corrected", "ignored")
    }
    assert errors["corrected"] < (1e-7 if steps == 1 else 0.02)
    assert errors["ignored"] > 5 * errors["corrected"] + 1e-4


def test_traps_fill_the_clients_rows_only(net):
    """Rows that the client does not hold, and layers behind, stay what they were."""
    space, layer = ParameterSpace(net), layer_of(net)
    theta = space.read(net)
    index = space.index({"hidden1": torch.arange(20, 50)})
    vector = with_trap_weights(layer, space, TrapWeights(), index, theta, torch.Generator().manual_seed(1))
    full = theta.clone()
    full[index] = vector
    weights = full[layer.weight.coordinates].view(100, 64)
    assert torch.equal(weights[:20], theta[layer.weight.coordinates].view(100, 64)[:20])
    assert ((weights[20:50] < 0).sum(dim=1) == 32).all()
    assert not full[layer.bias.coordinates][20:50].any()
    behind = torch.cat([full[block.coordinates] for block in space.blocks[2:]])
    assert torch.equal(behind, torch.cat([theta[block.coordinates] for block in space.blocks[2:]]))


@pytest.mark.parametrize("output", ["trap", "loud"])
def test_traps_replace_what_is_behind(net, output):
    """All parameters of the client that lie behind, in the shape in which it holds them."""
    space = ParameterSpace(net)
    theta, index = space.read(net), space.index({"hidden1": torch.arange(20, 50)})
    traps = TrapWeights(output=output, bias="trap")
    vector = with_trap_weights(layer_of(net), space, traps, index, theta, torch.Generator().manual_seed(1))
    assert (vector != theta[index]).all() or output == "loud"
    head = next(block for block in space.blocks if block.name == "layers.classifier.weight")
    inside = (index >= head.start) & (index < head.start + head.size)
    assert (vector[inside] != theta[index][inside]).all()


def test_rows_need_all_of_their_coordinates(net):
    """One weight or the bias missing, and the row cannot be read."""
    space, layer = ParameterSpace(net), layer_of(net)
    index = space.index({"hidden1": torch.tensor([3, 7, 9])})
    assert layer.rows_in(index).tolist() == [3, 7, 9]
    without = index[(index != layer.weight.start + 7 * 64 + 5) & (index != layer.bias.start + 9)]
    assert layer.rows_in(without).tolist() == [3]


def test_trapped_batch_comes_back(net, images):
    """Ten images behind 100 rows of traps: about three quarters are exact to 1e-4."""
    recovered = []
    for seed in range(12):
        torch.manual_seed(seed)
        victim = MLP(SHAPE, hidden=(100,))
        space, layer = ParameterSpace(victim), layer_of(victim)
        everything = torch.arange(space.size)
        draw = torch.Generator().manual_seed(seed)
        batch = torch.rand(10, 1, 8, 8, generator=draw)
        plain = TrapWeights(scale=0.9)
        space.write(victim, with_trap_weights(layer, space, plain, everything, space.read(victim), draw))
        before = space.read(victim)
        loss = cross_entropy(victim(batch), torch.arange(10))
        grads = torch.autograd.grad(loss, list(victim.parameters()))
        change = -0.1 * torch.cat([grad.reshape(-1) for grad in grads]).double()
        update = IsolatedUpdate(
            (0,), 0, everything, change, torch.ones_like(change), before.double(), everything, before
        )
        found = invert(layer, update, store(0.0, 1.0), PLAIN, "corrected", 10).images
        errors = (found[:, None] - batch[None]).abs().flatten(2).amax(dim=2).min(dim=0).values
        recovered.append(float((errors < 1e-4).float().mean()))
    assert 0.65 < sum(recovered) / len(recovered) < 0.9


def test_rows_that_never_fire_tell_nothing(net, images):
    """All-negative rows on images without negative values give no candidate at all."""
    space, layer = ParameterSpace(net), layer_of(net)
    vector = space.read(net)
    vector[layer.weight.coordinates] = -vector[layer.weight.coordinates].abs() - 0.1
    vector[layer.bias.coordinates] = 0.0
    space.write(net, vector)
    everything = torch.arange(space.size)
    grads = torch.autograd.grad(cross_entropy(net(images), torch.arange(10)), list(net.parameters()))
    change = -torch.cat([grad.reshape(-1) for grad in grads]).double()
    update = IsolatedUpdate((0,), 0, everything, change, torch.ones_like(change), vector.double(), everything, vector)
    assert len(invert(layer, update, store(), PLAIN, "corrected", 10)) == 0


def test_networks_without_a_dense_first_layer_are_refused():
    """And those without a bias, in words."""
    assert "not dense" in first_dense(ParameterSpace(CNN(SHAPE)), SHAPE)
    assert "no bias" in first_dense(ParameterSpace(MLP(SHAPE, bias=False)), SHAPE)


def test_corners_are_the_pure_images(images):
    """Among hundreds of mixtures, successive projection finds the ten images they are mixed of."""
    draw = torch.Generator().manual_seed(2)
    shares = torch.rand(300, 10, generator=draw).double() ** 3
    pure = images.flatten(1).double()
    points = torch.cat([(shares / shares.sum(dim=1, keepdim=True)) @ pure, pure])
    assert sorted(corners(points, 10).tolist()) == list(range(300, 310))
    assert len(corners(points, 20)) <= 64
    assert len(corners(points[:0], 5)) == 0


def test_purity_prefers_corners_to_mixtures_and_to_whispers(images):
    """Neither images off the scale nor those of neurons that hardly moved are trusted."""
    mixture = images.mean(dim=0, keepdim=True)
    quiet, off = 1 - images[:1], images[:1] * 3 - 1
    candidates = torch.cat([images, mixture, quiet, off]).double()
    moved = torch.ones(13, dtype=torch.float64)
    moved[11] = 1e-6
    trust = purity(candidates, moved, 10)
    assert trust[:10].min() > 1 > trust[10:].max()
