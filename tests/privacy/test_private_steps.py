"""DP-SGD steps: clipped means computed by hand, noise of the right size, and a network that is left as it was."""

from functools import partial

import pytest
import torch
from scipy.stats import chi2
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from app.common.errors import UserError
from app.common.seeding import derive_bytes
from app.models import CNN, MLP, DataShape, Factorised, LeNet5, ResNet18
from app.privacy.ghost_clipping import GhostClipping, supports_ghost
from app.privacy.noise import NoiseStream
from app.privacy.private_steps import Mechanism, PrivateSteps, unsupported_layers

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

METHODS = ("ghost", "hooks", "ew")
SHAPE = DataShape(3, 16, 16, 5)
NETS = {
    "mlp": partial(MLP, SHAPE, hidden=(12, 7)),
    "cnn": partial(CNN, SHAPE, u=8, norm="group"),
    "narrow cnn without bias": partial(CNN, SHAPE, u=16, norm="none", bias=False, rate=0.5),
    "lenet": partial(LeNet5, SHAPE),
    "resnet": partial(ResNet18, SHAPE, base=4, norm="group", channels_per_group=4),
    "tiny maps": partial(CNN, DataShape(1, 8, 8, 5), u=4, norm="group", channels_per_group=2),
}


def made(name="cnn", last=True, seed=1):
    """A network in double precision, and a batch of nine."""
    torch.manual_seed(seed)
    net = NETS[name]().double()
    shape = net.hparams["shape"]
    images = torch.randn(9, shape.channels, shape.height, shape.width, dtype=torch.double)
    if last:
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    return net, (images, torch.randint(0, 5, (9,)))


def first_channels(tensor):
    """The same in ordinary memory order, also where one channel makes either order look contiguous."""
    return tensor.reshape(-1).view(tensor.shape)


def sample_gradients(net, batch):
    """(samples, coordinates): every sample's gradient, by torch.func."""

    def loss(parameters, image, label):
        return cross_entropy(functional_call(net, parameters, (image[None],)), label[None])

    parameters = {name: first_channels(parameter.detach()) for name, parameter in net.named_parameters()}
    gradients = vmap(grad(loss), (None, 0, 0))(parameters, first_channels(batch[0]), batch[1])
    return torch.cat([gradients[name].flatten(1) for name in parameters], 1)


def flat(net):
    """All parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def step(net, batch, mechanism, seed=0, optimizer=None, **settings):
    """One private step (plain gradient descent with rate 1 unless told); returns the loss."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=1.0)
    steps = PrivateSteps(net, optimizer, mechanism, NoiseStream(derive_bytes(seed, "test")))
    loss = steps.step(batch, lambda part: cross_entropy(steps.net(part[0]), part[1]), **settings)
    steps.close()
    return loss


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_without_noise_a_step_is_the_clipped_mean(method, net, last):
    """Each gradient scaled to the norm where it is longer, over all layers together; in one part or in several."""
    for physical in (None, 4):
        network, batch = made(net, last)
        gradients = sample_gradients(network, batch)
        norms = gradients.norm(dim=1)
        clip = float(norms.median())
        before = flat(network)
        step(network, batch, Mechanism(clip, 0.0, method, physical))
        expected = ((clip / (norms + 1e-6)).clamp(max=1)[:, None] * gradients).mean(0)
        torch.testing.assert_close(before - flat(network), expected, rtol=0, atol=1e-11)
        assert not torch.allclose(before - flat(network), gradients.mean(0), atol=1e-4), "clipping must matter"


@pytest.mark.parametrize(
    ("inner", "factors"),
    [(partial(MLP, hidden=(12,)), {"*hidden1": 6}), (LeNet5, {"hidden1": 6, "*conv": 3})],
    ids=["linear", "convolutions"],
)
def test_factorised_layers_are_clipped_by_hooks(inner, factors):
    """Each sample's gradient of factors and private choices alike, at the noise that the step has drawn."""
    torch.manual_seed(1)
    network = Factorised(SHAPE, net=inner, factors=factors).double().train()
    for name, value in network.sample_noise(torch.Generator().manual_seed(2)).items():
        network.get_buffer(name).copy_(value)
    batch = torch.randn(9, 3, 16, 16, dtype=torch.double), torch.randint(0, 5, (9,))
    assert unsupported_layers(network, "hooks") == []
    assert unsupported_layers(network, "ghost")
    gradients = sample_gradients(network, batch)
    clip, before = float(gradients.norm(dim=1).median()), flat(network)
    step(network, batch, Mechanism(clip, 0.0, "hooks"))
    expected = ((clip / (gradients.norm(dim=1) + 1e-6)).clamp(max=1)[:, None] * gradients).mean(0)
    torch.testing.assert_close(before - flat(network), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_no_sample_moves_the_network_by_more_than_the_norm(method):
    """A single sample with a long gradient moves it by exactly the clipping norm, over the expected batch."""
    network, (images, labels) = made()
    for number in range(3):
        one, before = (images[number : number + 1], labels[number : number + 1]), flat(network)
        longest = float(sample_gradients(network, one).norm())
        step(network, one, Mechanism(0.1 * longest, 0.0, method, expected_batch=2.5))
        assert float((before - flat(network)).norm()) == pytest.approx(0.1 * longest / 2.5, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_with_adam_in_single_precision(method):
    """Fused optimisers read memory in the parameter's order: with channels last, too, all ways agree."""
    results = []
    for way, last in ((method, True), ("hooks", False)):
        network, (images, labels) = made("cnn", last)
        network = network.float()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
        step(network, (images.float(), labels), Mechanism(1.0, 0.5, way, expected_batch=9), optimizer=optimizer)
        results.append(flat(network))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=2e-4)


@pytest.mark.parametrize("method", METHODS)
def test_noise_has_the_standard_deviation_that_was_asked_for(method):
    """Noise times clip over the expected batch, by a chi-square interval; the mean is zero."""
    network, batch = made("lenet")
    noiseless, _ = made("lenet")
    step(noiseless, batch, Mechanism(0.5, 0.0, method, expected_batch=8.0))
    step(network, batch, Mechanism(0.5, 3.0, method, expected_batch=8.0))
    noise = (flat(noiseless) - flat(network)) / (3.0 * 0.5 / 8.0)
    low, high = chi2.ppf([0.0005, 0.9995], len(noise))
    assert low < float(noise.square().sum()) < high
    assert abs(float(noise.mean())) < 3.5 / len(noise) ** 0.5


def test_noise_is_the_same_for_all_methods_and_parts():
    """It depends on the generator alone, and is added once per step, not once per part."""
    results = []
    for method in METHODS:
        for physical in (None, 2):
            network, batch = made()
            step(network, batch, Mechanism(1.0, 2.0, method, physical, 9.0), seed=7)
            results.append(flat(network))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-13)
    other, batch = made()
    step(other, batch, Mechanism(1.0, 2.0, "ghost", None, 9.0), seed=8)
    assert not torch.allclose(flat(other), results[0], atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_moves_by_noise_alone(method):
    """Poisson sampling gives such batches: no forward pass, no loss, but noise, and the penalty counts as ever."""
    moved = []
    for expected_noise in (0.0, 2.0):
        network, (images, labels) = made()
        before = flat(network)
        loss = step(
            network,
            (images[:0], labels[:0]),
            Mechanism(1.0, expected_noise, method, expected_batch=4.0),
            penalty=lambda net=network: sum(p.square().sum() for p in net.parameters()) / 2,
        )
        assert loss.numel() == 0
        moved.append(before - flat(network) - before)
    torch.testing.assert_close(moved[0], torch.zeros_like(moved[0]), rtol=0, atol=1e-15)
    assert float(moved[1].std()) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_a_penalty_is_neither_clipped_nor_divided(method):
    """Its gradient is added to the clipped mean as it is, once per step, however small the clipping norm."""
    network, batch = made("mlp")
    step_size = 1e-3
    before = flat(network)
    gradients = sample_gradients(network, batch)
    clipped = (step_size / (gradients.norm(dim=1) + 1e-6))[:, None] * gradients
    step(
        network,
        batch,
        Mechanism(step_size, 0.0, method, physical_batch=4),
        penalty=lambda: 3.0 * sum(p.square().sum() for p in network.parameters()) / 2,
    )
    torch.testing.assert_close(before - flat(network), clipped.mean(0) + 3.0 * before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_mean_over_the_samples(method):
    """Parts of unequal length count by their samples."""
    network, batch = made()
    expected = cross_entropy(network(batch[0]), batch[1]).item()
    loss = step(network, batch, Mechanism(1.0, 1.0, method, physical_batch=4))
    assert loss.item() == pytest.approx(expected, abs=1e-14)
    assert not loss.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_the_network_is_left_plain(method):
    """Nothing of the private step remains, and plain training afterwards is what it would have been."""
    network, batch = made()
    plain, _ = made()
    keys = {layer: set(vars(layer)) for layer in network.modules()}
    strides = [parameter.stride() for parameter in network.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    steps = PrivateSteps(network, optimizer, Mechanism(1.0, 0.0, method), NoiseStream(bytes(32)))
    for _ in range(2):
        steps.step(batch, lambda part: cross_entropy(steps.net(part[0]), part[1]))
    steps.net(batch[0])  # a forward pass without a step, as when training fails
    steps.close()
    assert {layer: set(vars(layer)) for layer in network.modules()} == keys
    assert [parameter.stride() for parameter in network.parameters()] == strides
    for layer in network.modules():
        assert not layer._forward_hooks
        assert not layer._backward_hooks
        assert not layer._forward_pre_hooks
    for parameter in network.parameters():
        assert parameter.grad is None
        assert not vars(parameter)
    for net in (network, plain):
        cross_entropy(net(batch[0]), batch[1]).backward()
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("method", ["ghost", "hooks"])
def test_mixed_precision_rounds_activations_only(method):
    """Sums of gradients stay in single precision: the step of one sample has exactly the clipping norm."""
    network, (images, labels) = made("lenet")
    network, one = network.float(), (images[:1].float(), labels[:1])
    before = flat(network)
    with torch.autocast("cpu", torch.bfloat16):
        step(network, one, Mechanism(1e-2, 0.0, method, expected_batch=1.0))
    assert float((before - flat(network)).norm()) == pytest.approx(1e-2, rel=1e-3)


class _Twice(nn.Sequential):
    """Passes its layers twice."""

    def forward(self, images):
        """Through everything, two times."""
        return super().forward(super().forward(images))


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (_Twice(nn.Linear(5, 5)), "used twice"),
        (nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True)), "overwritten in place"),
    ],
    ids=["twice", "in place"],
)
def test_ghost_clipping_refuses_what_it_would_get_wrong(net, why):
    """A layer that is used twice, and an output that is overwritten, with a remedy that works."""
    batch = (torch.randn(4, 5), torch.randint(0, 5, (4,)))
    with pytest.raises(UserError, match=rf"{why}(?s:.*)clipping hooks"):
        step(net, batch, Mechanism(1.0, 0.0, "ghost"))
    if why == "used twice":
        step(net, batch, Mechanism(1.0, 0.0, "hooks"))


def test_ghost_clipping_counts_unused_layers_and_sequences():
    """A layer that the loss does not need gets no gradient; positions of a sequence share a weight."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)}).double()
    images, ghost = torch.randn(4, 6, 3).double(), GhostClipping(net)
    used = net["used"](images)
    net["unused"](images)
    gradients = ghost.clipped(used.square().sum() / 4, 4, clip=1e30)
    ghost.close()
    expected = torch.autograd.grad(net["used"](images).square().sum(), net["used"].parameters())
    for found, right in zip(gradients[:2], expected, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    assert all(not found.any() for found in gradients[2:])


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        (nn.LSTM(3, 3), METHODS),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), METHODS),
        (nn.Conv2d(4, 4, 3, groups=2), ("ghost",)),
        (nn.Conv2d(4, 4, 3, padding="same"), ("ghost",)),
        (nn.LayerNorm(4), ("ghost",)),
        (nn.Bilinear(2, 2, 2), ("ghost", "ew")),
        (nn.BatchNorm2d(4), ()),
        (nn.ReLU(), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_that_cannot_be_clipped_are_named(layer, refused):
    """By method; batch norm is left to the table of combinations."""
    net = nn.Sequential(nn.Linear(2, 2), layer)
    for method in METHODS:
        expected = [f"1 ({type(layer).__name__})"] if method in refused else []
        assert unsupported_layers(net, method) == expected


def test_whole_zoo_is_clipped_by_every_method():
    """With group norm or without norm."""
    for name in NETS:
        for method in METHODS:
            assert unsupported_layers(NETS[name](), method) == []
    assert supports_ghost(nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=(1, 2)))


def test_odd_convolutions_are_clipped_right():
    """Stride, dilation and uneven padding: ghost clipping against torch.func."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(1, 2))
    net = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(5))
    batch = (torch.randn(6, 3, 9, 7), torch.randint(0, 5, (6,)))
    net(batch[0])
    net, batch = net.double(), (batch[0].double(), batch[1])
    gradients, before = sample_gradients(net, batch), flat(net)
    norms = gradients.norm(dim=1)
    step(net, batch, Mechanism(float(norms.min()), 0.0, "ghost"))
    expected = ((norms.min() / (norms + 1e-6)).clamp(max=1)[:, None] * gradients).mean(0)
    torch.testing.assert_close(before - flat(net), expected, rtol=0, atol=1e-13)
