"""Candidates that are trained through a client's local steps: the simulation is the training, and finds its images."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federation_kit import Blobs, Recorder, make_trainer, sgd, small_federation
from federation_under_attack import audit_of, trained
from test_gradient_matching import HIGH, LOW, SHAPE, conv_net, gradient, likeness, picture
from torch import nn

from app.attacks.reconstruction.base import to_pixels
from app.attacks.reconstruction.inversion.gradient_matching import GradientMatching, _Target
from app.attacks.reconstruction.inversion.local_steps import LocalSteps
from app.attacks.reconstruction.inversion.uploads import GradientInversion
from app.federation.local_training import LocalTraining
from app.metrics.reconstruction import Reconstruction
from app.models import CNN, MLP, DataShape

RECIPES = {
    "plain": ({}, {}),
    "momentum": ({"momentum": 0.9, "dampening": 0.3}, {}),
    "nesterov": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {}),
    "clipped": ({}, {"clip_norm": 0.05, "proximal": 0.7}),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_at_the_truth_nothing_is_left(recipe):
    """One image per step, then a short batch, in two epochs: the distance from a real client's update is 0.

    With the images of another client, or in another order, it is not.
    """
    sgd_settings, local_settings = RECIPES[recipe]
    local = LocalTraining(batch_size=2, epochs=2, shuffle=False, optimizer=sgd(0.1, **sgd_settings), **local_settings)
    federation, recorder = small_federation(partial(CNN, u=2, norm="group"), local=local), Recorder()
    data = Blobs((3, 5), shape=DataShape(1, 8, 8, 4))
    make_trainer(1, "64-true", [recorder], limit_val_batches=0).fit(federation, datamodule=data)
    uploads = {client: vector for client, vector, _ in recorder.updates}
    space, net = federation.space, federation.net
    space.write(net, recorder.started[0])
    images, labels = data.store.batch(data.train_indices(0), torch.float64)
    steps = LocalSteps.of(local, 0.1, 3)
    assert [batch.tolist() for batch in steps.batches] == [[0, 1], [2], [0, 1], [2]]

    def distance(update, images):
        change = (recorder.started[0] - update)[: space.trainable]
        return float(_Target(net.train(), change, None, labels, steps).distance(images).detach())

    assert abs(distance(uploads[0], images)) < 1e-10
    assert distance(uploads[0], images.flip(0)) > 1e-6
    assert distance(uploads[1], images) > 1e-3


def test_a_single_step_is_the_attack_as_it_was():
    """Bit for bit, whether steps are given or not."""
    net, image = conv_net(), picture()
    seen = gradient(net, image, torch.tensor([2]))
    steps = LocalSteps.of(LocalTraining(batch_size=4, optimizer=sgd(0.1)), 0.1, 1)
    arguments = (net, seen, None, SHAPE, 1, None, (LOW, HIGH))
    plain, stepwise = (
        GradientMatching(steps=20).images(*arguments, torch.Generator().manual_seed(0), given)
        for given in (None, steps)
    )
    assert torch.equal(plain.images, stepwise.images)
    assert torch.equal(plain.losses, stepwise.losses)


def updated(net, images, labels, steps):
    """What several steps of torch's SGD change, flat."""
    net = net.train()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=steps.lr)
    for batch in steps.batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()
    change = before - nn.utils.parameters_to_vector(net.parameters()).detach()
    nn.utils.vector_to_parameters(before.clone(), net.parameters())
    return change


def test_steps_of_one_image_each_need_the_simulation():
    """Three images, one per step of a dense network: simulated, they come back; taken for one gradient, they blur.

    The wrong order of the batches is no better than that.
    """
    shape = DataShape(1, 4, 4, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = MLP(shape, hidden=(60,))
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    steps = LocalSteps.of(LocalTraining(batch_size=1, shuffle=False, optimizer=sgd(0.5)), 0.5, 3)
    seen = updated(net, images, torch.arange(3), steps)
    search = GradientMatching(steps=150, labels="known", tv=0.0)
    given = {"mean": None, "simulated": steps, "reversed": replace(steps, batches=steps.batches[::-1])}
    found = {
        name: search.images(
            net, seen, None, shape, 3, torch.arange(3), (LOW, HIGH), torch.Generator().manual_seed(0), how
        )
        for name, how in given.items()
    }
    alike = {name: float(likeness(images, one.images).min()) for name, one in found.items()}
    assert alike["simulated"] > 0.999
    assert float((found["simulated"].images - images).abs().max()) < 0.01
    assert found["simulated"].losses[0] < 1e-5
    assert max(alike["mean"], alike["reversed"]) < 0.99
    assert min(found["mean"].losses[0], found["reversed"].losses[0]) > 0.01


def test_the_option_reaches_the_attack(tmp_path):
    """A client of one upload over several steps: a note says what is done, and the objective is lower at its end."""
    data = Blobs((2, 2), shape=DataShape(1, 8, 8, 4))
    local = LocalTraining(batch_size=1, epochs=3, shuffle=False, optimizer=sgd(0.3))
    net = partial(MLP, hidden=(8,))
    audit = audit_of(*trained(tmp_path, 1, data=data, local=local, net=net, keep=(1, [])))
    results = {}
    for simulate in (False, True):
        attack = GradientInversion(clients=[0], steps=10, known_labels=True, simulate=simulate)
        (results[simulate],) = attack.findings(audit)
        assert isinstance(results[simulate].result, Reconstruction)
    assert "trained through" in results[True].conditions.notes[0]
    assert "not of one gradient" in results[False].conditions.notes[0]
    truth = to_pixels(data.store, data.store.batch(data.train_indices(0))[0])
    assert torch.allclose(results[True].pairs.truth.images.float(), truth.float(), atol=1e-6)
    assert not torch.equal(results[True].pairs.reconstructions, results[False].pairs.reconstructions)
