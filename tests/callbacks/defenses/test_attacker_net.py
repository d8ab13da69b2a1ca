"""The attack network of adversarial regularisation: it learns what there is to learn, and nothing else."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, logsigmoid, softmax

from app.common.seeding import torch_generator
from callbacks.defenses.adversarial_regularisation import AttackerNet, InternalAttacker

CLASSES = 4


def adversary(width=0.1, lr=1e-3, seed=0, classes=CLASSES):
    """A small attacker that has learnt nothing."""
    return InternalAttacker(AttackerNet(classes, torch_generator(seed, "attacker"), width), lr)


def samples(count, generator):
    """Noise with random labels: they can only be memorised."""
    return torch.randn(count, 20, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


def model(memorised=None, steps=150):
    """A network with initial values, or one that has learnt samples by heart."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps if memorised is not None else 0):
        optimizer.zero_grad()
        cross_entropy(net(memorised[0]), memorised[1]).backward()
        optimizer.step()
    return net


def balanced_accuracy(memorise):
    """Of an attacker that has seen half of the members and half of the reference samples, on the other halves."""
    generator = torch.Generator().manual_seed(1)
    members, reference = samples(200, generator), samples(200, generator)
    net, attacker = model(members if memorise else None), adversary(0.2)
    with torch.no_grad():
        inside, outside = net(members[0]), net(reference[0])
    for _ in range(150):
        logits, labels = torch.cat([inside[:100], outside[:100]]), torch.cat([members[1][:100], reference[1][:100]])
        attacker.learn(logits, labels, 100)
    with torch.no_grad():
        recognised = attacker.net(softmax(inside[100:], 1), members[1][100:]) > 0
        alarms = attacker.net(softmax(outside[100:], 1), reference[1][100:]) > 0
    return float(recognised.double().mean() + 1 - alarms.double().mean()) / 2


def test_identical_distributions_cannot_be_told_apart():
    """Members and reference samples of an untrained model: a fair coin, within three standard deviations."""
    assert balanced_accuracy(memorise=False) == pytest.approx(0.5, abs=3 * 0.5 / 200**0.5)


def test_a_memorising_model_is_found_out():
    """Its members are recognised on fresh samples."""
    assert balanced_accuracy(memorise=True) > 0.8


def test_the_gain_falls_along_its_gradient():
    """A step of the model against it makes the attacker less sure of the members; the attacker gets no gradient."""
    generator = torch.Generator().manual_seed(2)
    members, reference = samples(100, generator), samples(100, generator)
    net, attacker = model(members, steps=40), adversary(0.2, lr=0.01)
    with torch.no_grad():
        both = torch.cat([net(members[0]), net(reference[0])])
    for _ in range(60):
        attacker.learn(both, torch.cat([members[1], reference[1]]), 100)
    seen = [parameter.grad.clone() for parameter in attacker.net.parameters()]
    before = attacker.gain(net(members[0]), members[1])
    before.backward()
    assert all(map(torch.equal, seen, (parameter.grad for parameter in attacker.net.parameters())))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.05 * parameter.grad
        assert attacker.gain(net(members[0]), members[1]) < before - 1e-3


def test_gain_and_step_in_closed_form():
    """Mean log h over members; the first step of Adam moves each value by the rate, up the gradient of both means."""
    attacker, twin = adversary(), adversary()
    logits, labels = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(0)), torch.arange(7) % CLASSES
    odds = attacker.net(softmax(logits, 1), labels)
    torch.testing.assert_close(attacker.gain(logits, labels), torch.sigmoid(odds).log().mean())
    twin.net.requires_grad_(True)
    odds = twin.net(softmax(logits, 1), labels)
    objective = logsigmoid(odds[:3]).mean() + torch.log(1 - torch.sigmoid(odds[3:])).mean()
    gradients = torch.autograd.grad(objective, list(twin.net.parameters()))
    attacker.learn(logits, labels, 3)
    for moved, start, gradient in zip(attacker.net.parameters(), twin.net.parameters(), gradients, strict=True):
        clear = gradient.abs() > 1e-5
        torch.testing.assert_close((moved - start)[clear], 1e-3 * gradient.sign()[clear], rtol=0, atol=5e-5)


def test_the_label_matters():
    """Equal outputs, other labels: other odds."""
    attacker = adversary()
    odds = attacker.net(torch.full((CLASSES, CLASSES), 1 / CLASSES), torch.arange(CLASSES))
    assert len(odds.unique()) == CLASSES


def test_sizes_of_the_published_code():
    """C-1024-512-64 and C-128-64, then 128-256-128-64-1: 652,801 parameters with ten classes."""
    net = AttackerNet(10, torch_generator(0, "attacker"))
    shapes = [tuple(layer.weight.shape[::-1]) for layer in net.modules() if isinstance(layer, nn.Linear)]
    outputs, labels = [(10, 1024), (1024, 512), (512, 64)], [(10, 128), (128, 64)]
    assert shapes == [*outputs, *labels, (128, 256), (256, 128), (128, 64), (64, 1)]
    assert sum(parameter.numel() for parameter in net.parameters()) == 652_801
    assert len(AttackerNet(3, torch_generator(0, "attacker"), 1e-6)(torch.ones(2, 3), torch.zeros(2).long())) == 2


def test_initial_values_come_from_the_key():
    """The same key, the same network; torch's own generator is not touched."""
    state = torch.get_rng_state()
    first, again, other = (adversary(seed=seed).net.state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert all(value.abs().max() <= 1.0 for value in first.values())


def test_state_is_a_copy_and_goes_on_alike():
    """A second attacker with the state of the first makes the same steps, and does not move the state."""
    logits, labels = torch.randn(6, CLASSES), torch.arange(6) % CLASSES
    first, second = adversary(), adversary(seed=1)
    first.learn(logits, labels, 3)
    state = {
        "net": {name: value.clone() for name, value in first.state_dict()["net"].items()},
        "moments": {
            number: {name: value.clone() for name, value in own.items()}
            for number, own in first.state_dict()["moments"].items()
        },
    }
    second.load_state_dict(state)
    kept = state["moments"][0]["exp_avg"].clone(), state["net"]["head.0.weight"].clone()
    for attacker in (first, second):
        attacker.learn(logits, labels, 3)
    assert all(map(torch.equal, first.net.parameters(), second.net.parameters()))
    assert torch.equal(state["moments"][0]["exp_avg"], kept[0])
    assert torch.equal(state["net"]["head.0.weight"], kept[1])
