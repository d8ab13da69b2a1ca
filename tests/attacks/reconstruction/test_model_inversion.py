"""Model inversion: closed forms, statistics that fit, and the classifier that judges the result."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.reconstruction.inversion.deep_inversion import DeepInversion, tracked_norms
from app.attacks.reconstruction.inversion.evaluator import train_evaluator
from app.attacks.reconstruction.inversion.mi_face import MIFace
from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.metrics.image_similarity import pearson_matrix
from app.metrics.membership import NotAvailable
from app.models.base import DataShape
from app.models.cnn import CNN
from app.models.mlp import MLP
from app.models.resnet import ResNet18
from datamodules.store import ImageStore

TWO = DataShape(1, 8, 8, 2)
LOW, HIGH = torch.tensor([-3.0]), torch.tensor([3.0])


def seeded(build, seed=1000):
    """A network whose values depend on nothing but the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def gaussians(seed, count=400):
    """Two classes round +mu and -mu."""
    draw = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, 8, 8, generator=draw) / 2
    labels = torch.randint(0, 2, (count,), generator=draw)
    return centre, (2 * labels - 1).view(-1, 1, 1, 1) * centre + torch.randn(count, 1, 8, 8, generator=draw), labels


def regression(images, labels, steps):
    """Multinomial logistic regression after so many steps of gradient descent."""
    net = seeded(lambda: MLP(TWO, hidden=()))
    optimizer = SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net


def invert(attack, net, labels=(0, 1), shape=TWO, start=None, seed=0, low=LOW, high=HIGH):
    """The attack on a network."""
    draw = torch.Generator().manual_seed(seed)
    return attack.images(net, torch.tensor(labels), shape, (low, high), start, draw)


@pytest.mark.parametrize(("prior", "seed"), [("black", 0), ("mean", 1), ("noise", 2)])
def test_a_linear_model_shows_its_class_mean(prior, seed):
    """Whatever the search begins with; of both classes, the other one with the other sign."""
    centre, images, labels = gaussians(seed)
    found = invert(MIFace(prior=prior), regression(images, labels, 200), start=torch.zeros(1, 8, 8)).images
    alike = pearson_matrix(centre[None], found)[0]
    assert alike[1] >= 0.85
    assert alike[0] <= -0.85


def test_an_untrained_model_shows_nothing():
    """The same search finds nothing of the means of 20 worlds."""
    alike = []
    for seed in range(20):
        centre, images, labels = gaussians(seed)
        found = invert(MIFace(steps=40, l2=0.01), regression(images, labels, 0)).images
        alike.append(float(pearson_matrix(centre[None], found)[0, 1]))
    assert abs(np.mean(alike)) < 0.1
    assert max(np.abs(alike)) < 0.4


def test_the_minimum_of_the_objective():
    """Without a variation term, the derivative vanishes: 2 l2 x = p(other) (w_y - w_other)."""
    _, images, labels = gaussians(0)
    net = regression(images, labels, 100).double()
    found = invert(MIFace(steps=400, l2=0.5, tv=0.0), net).images.flatten(1)
    weight = net.layers.classifier.weight.detach()
    wrong = net(found.view(-1, 1, 8, 8)).softmax(dim=1).detach()[1, 0]
    assert torch.allclose(2 * 0.5 * found[1], wrong * (weight[1] - weight[0]), atol=1e-8)


def test_images_do_not_depend_on_each_other():
    """One class alone gives what it gives beside others; repeated labels give repeated images."""
    _, images, labels = gaussians(0)
    net = regression(images, labels, 50)
    both, alone = invert(MIFace(steps=50), net, (0, 1, 1)), invert(MIFace(steps=50), net, (1,))
    assert torch.allclose(both.images[1], alone.images[0], atol=1e-6)
    assert torch.allclose(both.images[1], both.images[2], atol=1e-6)
    assert torch.allclose(both.losses[1], alone.losses[0], atol=1e-6)
    assert both.labels.tolist() == [0, 1, 1]


def test_the_best_restart_wins_for_every_image():
    """Losses never grow with the number of restarts, and the first restart begins with the bare prior."""
    net = seeded(lambda: CNN(TWO, u=4, norm="group"))
    one, four = (invert(MIFace(steps=10, restarts=restarts), net, (0, 1, 0)) for restarts in (1, 4))
    assert (four.losses <= one.losses).all()
    assert (four.losses < one.losses).any()
    assert torch.equal(one.images, invert(MIFace(steps=10), net, (0, 1, 0), seed=1).images)


def test_network_and_global_generator_are_left_alone():
    """Modes, gradients, values and torch's own generator are as before; images stay in their box."""
    net = seeded(lambda: CNN(TWO, u=4, statistics="running")).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.random.get_rng_state()
    found = invert(DeepInversion(steps=5, lr=50.0), net)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(layer.training for layer in net.modules())
    assert all(value.requires_grad and value.grad is None for value in net.parameters())
    assert found.images.min() >= -3
    assert found.images.max() <= 3
    assert torch.equal(found.images, invert(DeepInversion(steps=5, lr=50.0), net).images)


def test_the_mean_must_be_given():
    """Refused without it; wrong settings are refused all at once."""
    with pytest.raises(UserError, match="mean image"):
        invert(MIFace(prior="mean", steps=1), seeded(lambda: MLP(TWO)))
    with pytest.raises(UserError, match=r"steps of MIFace is 0[\s\S]*momentum of MIFace is 1[\s\S]*l2 of MIFace is -1"):
        MIFace(steps=0, l2=-1.0, momentum=1.0)


def fit_statistics(net, images):
    """Give every batch norm, layer by layer, the statistics of its inputs in evaluation mode."""
    for norm in tracked_norms(net):
        heard = []
        handle = norm.register_forward_pre_hook(lambda _, inputs, heard=heard: heard.append(inputs[0]))
        with torch.no_grad():
            net.eval()(images)
        handle.remove()
        values = heard[0].transpose(0, 1).flatten(1)
        norm.running_mean, norm.running_var = values.mean(dim=1), values.var(dim=1)


def test_statistics_of_their_own_batch_fit():
    """The term is 0 on the batch that made the statistics, also as torch itself gathers them, and not on another."""
    draw = torch.Generator().manual_seed(0)
    batch, other = torch.randn(2, 16, 1, 8, 8, generator=draw, dtype=torch.float64)
    net = seeded(lambda: CNN(TWO, u=4, statistics="running")).double()
    fit_statistics(net, batch)
    assert DeepInversion().penalty(net, batch) < 1e-6
    assert DeepInversion().penalty(net, other + 0.5) > 0.1
    single = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=1.0)).double()
    single.train()(batch)
    assert DeepInversion().penalty(single.eval(), batch) < 1e-6


def test_the_statistics_term_by_hand():
    """Distance of means plus distance of variances, times weight and number of images, summed over layers."""
    net = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm2d(2)).double().eval()
    for norm in net:
        norm.eps = 0.0
    values = torch.tensor([[3.0, 4.0], [5.0, 4.0]], dtype=torch.float64).view(2, 2, 1, 1)
    # means (4, 4) against 0 and variances (2, 0) against 1, in both layers alike
    term = DeepInversion(statistics=0.5).penalty(net, values)
    assert term.item() == pytest.approx(0.5 * 2 * 2 * (32**0.5 + 2**0.5))


def test_statistics_move_the_images():
    """Images sought with the term have statistics nearer to those remembered than images sought without."""
    batch = 0.5 + torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = seeded(lambda: CNN(TWO, u=4, statistics="running"))
    fit_statistics(net, batch)
    inversion = DeepInversion()
    labels = (0, 1) * 4
    plain = invert(MIFace(steps=60, prior="noise", lr=0.02), net, labels).images
    fitted = invert(DeepInversion(steps=60, lr=0.02), net, labels).images
    assert inversion.penalty(net, fitted) < inversion.penalty(net, plain) / 2


def test_one_restart_wins_for_all_images_that_share_statistics():
    """The result is one of the restarts as a whole, the one with the smallest sum."""
    net = seeded(lambda: CNN(TWO, u=4, statistics="running"))
    fit_statistics(net, torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    attack, draw, labels = DeepInversion(steps=3), torch.Generator().manual_seed(0), torch.tensor([0, 1, 1, 0])
    single = [attack.images(net, labels, TWO, (LOW, HIGH), None, draw) for _ in range(3)]
    best = min(single, key=lambda found: float(found.losses.sum()))
    found = invert(DeepInversion(steps=3, restarts=3), net, (0, 1, 1, 0))
    assert torch.equal(found.images, best.images)
    assert torch.equal(found.losses, best.losses)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: CNN(TWO, u=8, norm="group"), "no batch normalisation"),
        (lambda: CNN(TWO, u=4, norm="none"), "no batch normalisation"),
        (lambda: CNN(TWO, u=4, statistics="batch"), "no running statistics"),
        (lambda: CNN(TWO, u=4, statistics="posthoc"), "no running statistics"),
        (lambda: CNN(TWO, u=4, statistics="running"), "initial values"),
    ],
)
def test_obstacles(build, reason):
    """A network that remembers nothing of its training images cannot be attacked with its memory."""
    net = build()
    assert reason in DeepInversion().obstacle(net)
    assert MIFace().obstacle(net) is None


@pytest.mark.parametrize("build", [CNN, ResNet18])
def test_no_obstacle_after_training(build):
    """One training batch fills the statistics."""
    net = build(TWO, statistics="running")
    net.train()(torch.randn(4, 1, 8, 8))
    assert DeepInversion().obstacle(net) is None


def attackers_knowledge(norm, statistics="batch"):
    """Three classes with centres far apart, 300 samples, of which the attacker owns 100."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    centres = torch.rand(3, 8, 8, 1, generator=draw)
    images = (centres[labels] + 0.2 * torch.randn(300, 8, 8, 1, generator=draw)).clamp(0, 1)
    store = ImageStore(images, labels, torch.tensor([0.5]), torch.tensor([0.3]), 3)
    net = seeded(lambda: CNN(store.shape, u=4, norm=norm, statistics=statistics))
    local = LocalTraining(batch_size=20, optimizer=partial(SGD, lr=0.1, momentum=0.9), mask_labels=True)
    return PublicKnowledge(net, store, local, (0.1, 0.1), auxiliary=np.arange(100, 200)), centres


@pytest.mark.parametrize(("norm", "statistics"), [("group", "batch"), ("batch", "batch"), ("batch", "running")])
def test_the_evaluator_knows_the_classes(norm, statistics):
    """Trained on the attacker's data alone; it says the same of an image, whatever is asked beside it."""
    knowledge, centres = attackers_knowledge(norm, statistics)
    trained = train_evaluator(knowledge, epochs=10)
    images = ((centres - 0.5) / 0.3).movedim(-1, 1)
    assert trained.accuracy >= 0.9
    assert np.isin(trained.samples, knowledge.auxiliary).all()
    assert len(trained.samples) == 80
    assert trained.predict(images).tolist() == [0, 1, 2]
    assert [int(trained.predict(image[None])) for image in images] == [0, 1, 2]


def test_the_evaluator_is_reproducible_and_bounded():
    """The seed decides, not the values of the attacked network; `most` bounds the samples; no data, no evaluator."""
    knowledge, _ = attackers_knowledge("group")
    first = train_evaluator(knowledge, epochs=1)
    other = replace(knowledge, prototype=seeded(lambda: CNN(knowledge.store.shape, u=4, norm="group"), seed=7))
    assert torch.equal(first.snapshot.vector, train_evaluator(other, epochs=1).snapshot.vector)
    again = train_evaluator(replace(knowledge, seed=1), epochs=1)
    assert not torch.equal(first.snapshot.vector, again.snapshot.vector)
    assert len(train_evaluator(knowledge, epochs=1, most=50).samples) == 40
    poor = train_evaluator(replace(knowledge, auxiliary=np.arange(5)))
    assert isinstance(poor, NotAvailable)
    assert "--data.holdout.shadow" in poor.reason
