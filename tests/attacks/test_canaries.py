"""Canaries as data and as directions: drawn by fair coins, kept apart from every other set, and scored by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import PICTURES, Blobs
from torch.nn.functional import cross_entropy, one_hot

from app.attacks.canaries import (
    SampleCanaries,
    clipped_rows,
    decoded,
    random_directions,
    sample_gradients,
    sample_losses,
    standardised,
)
from app.models import CNN, MLP, DataShape

NETS = {"mlp": partial(MLP, hidden=(6,)), "cnn": partial(CNN, u=2, norm="none")}


def data(**settings):
    """A set-up data module with non-members."""
    module = Blobs((20, 30, 25), nonmembers=0.2, **settings)
    module.setup()
    return module


@pytest.mark.parametrize("pairs", [False, True])
def test_canaries_belong_to_no_set_but_the_training_data(pairs):
    """Clients train on their members and on what the coins say; everything else stays as it was."""
    plain, module = data(), data()
    canaries = SampleCanaries.drawn(module, 60, "noise", pairs, 5)
    canaries.insert_into(module)
    canaries.insert_into(module)  # in place of the first time, not beside it
    sets, first = module.membership, len(plain.store)
    sets.check_disjoint()
    for name in ("members", "nonmembers", "shadow", "population", "test"):
        for own, before in zip(getattr(sets, name), getattr(plain.membership, name), strict=True):
            np.testing.assert_array_equal(own, before)
    for client in range(3):
        added = module.train_indices(client)[len(sets.members[client]) :].numpy() - first
        own = canaries.clients == client
        np.testing.assert_array_equal(added, np.flatnonzero(own if pairs else own & canaries.inserted))
        assert module.sizes[client] == plain.sizes[client] + len(added)
    images, labels = module.store.images[first:], module.store.labels[first:]
    torch.testing.assert_close(images, canaries.images)
    expected = canaries.labels[torch.arange(60), torch.tensor(~canaries.inserted).long()] if pairs else canaries.labels
    assert torch.equal(labels, expected)
    assert not pairs or bool((canaries.labels[:, 0] != canaries.labels[:, 1]).all())
    module.remove_canaries()
    assert module.sizes == plain.sizes
    assert len(module.store) == first


def test_coins_are_fair_and_repeatable():
    """About half of many, another half for another seed, and in every client."""
    module = data()
    one, same, other = (SampleCanaries.drawn(module, 3000, "noise", False, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.inserted, same.inserted)
    assert torch.equal(one.images, same.images)
    assert 0.45 < np.mean(one.inserted != other.inserted) < 0.55
    shares = [one.inserted[one.clients == client].mean() for client in range(3)]
    assert 0.43 < min(shares) <= max(shares) < 0.57
    normalised = one.store_like(module.store).batch(torch.arange(3000))[0]
    assert abs(float(normalised.mean())) < 0.05, "else all gradients have the same direction"


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_single_samples(name):
    """As autograd gives them one by one, in the order of the flat vector."""
    net = NETS[name](PICTURES).eval()
    images, labels = torch.rand(5, 1, 8, 8), torch.arange(5) % 4
    found = sample_gradients(net, images, labels)
    for row, image, label in zip(found, images, labels, strict=True):
        loss = cross_entropy(net(image[None]), label[None])
        expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(net.parameters()))])
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)
    losses = cross_entropy(net(images), labels, reduction="none")
    torch.testing.assert_close(sample_losses(net, images, labels), losses)


def test_gradients_in_closed_form():
    """Softmax regression: (p - y) times the image."""
    net = MLP(DataShape(1, 2, 2, 3), hidden=(), bias=False).eval()
    images, labels = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 0])
    errors = net(images).softmax(dim=1) - one_hot(labels, 3)
    expected = (errors[:, :, None] * images.flatten(1)[:, None, :]).flatten(1)
    torch.testing.assert_close(sample_gradients(net, images, labels), expected)


def test_decoding():
    """Without noise the shares come out up to one constant, however alike the directions are and whatever else
    moved the model; with orthonormal directions and noise the order is that of plain products."""
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(20, 200, generator=generator) + 3 * torch.randn(200, generator=generator)
    shares, other = (torch.rand(20, generator=generator) < 0.5).float(), torch.randn(200, generator=generator)
    found = decoded(shares @ directions + 5 * other, directions, torch.stack([other, directions.sum(dim=0)]))
    assert np.corrcoef(found.numpy(), shares.numpy())[0, 1] > 0.999
    basis = torch.linalg.qr(torch.randn(200, 20, generator=generator))[0].T
    change = shares @ basis + torch.randn(200, generator=generator)
    plain, known = basis.double() @ change.double(), basis.sum(dim=0, keepdim=True)
    assert np.corrcoef(decoded(change, basis, known).numpy(), (plain - plain.mean()).numpy())[0, 1] > 0.999
    assert decoded(torch.zeros(200), directions, known).abs().max() == 0


def test_rows_directions_and_scales():
    """Norms at most as given, independent unit directions, and scores that can be compared between clients."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(clipped_rows(rows, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert torch.equal(clipped_rows(rows, float("inf")), rows)
    directions = torch.stack(list(random_directions(5000, 8, 3)))
    torch.testing.assert_close(directions @ directions.T, torch.eye(8).double(), atol=0.06, rtol=0)
    scores, clients = np.arange(30.0), np.repeat([0, 1, 2], [10, 15, 5])
    found = standardised(scores * np.where(clients == 1, 100, 1), clients)
    for client in (0, 1):
        own = found[clients == client]
        assert (own.mean(), own.std()) == pytest.approx((0, 1), abs=1e-9)
    np.testing.assert_array_equal(found[25:], scores[25:])
