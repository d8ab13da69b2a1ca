"""Seeded dropout, the Scaler, and options that networks refuse."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from app.common.errors import UserError
from app.models import CNN, MLP, AlexNet, ConvNet, DataShape, Factorised, LeNet5, ResNet18
from app.models.layers import PooledBlock, Scaler, SeededDropout, has_dropout, seed_dropout

GREY = DataShape(1, 28, 28, 10)
COLOUR = DataShape(3, 32, 32, 10)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_dropout_keeps_the_expected_fraction_and_the_mean():
    layer = SeededDropout(0.3)
    layer.generator = generator(0)
    y = layer(torch.ones(200_000))
    assert set(y.unique().tolist()) == {0.0, (torch.ones(()) / 0.7).item()}
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)  # five standard errors
    assert y.mean().item() == pytest.approx(1, abs=0.008)


def test_dropout_passes_gradients_through_the_same_mask():
    layer = SeededDropout(0.5)
    x = torch.randn(1000, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


@pytest.mark.parametrize("layer", [SeededDropout(0.0).train(), SeededDropout(0.9).eval()])
def test_dropout_is_the_identity_without_probability_or_in_evaluation(layer):
    x = torch.randn(50)
    assert layer(x) is x


def test_dropout_masks_depend_on_the_generator_alone():
    net, images = LeNet5(GREY, dropout=0.5), torch.randn(4, 1, 28, 28)

    def logits(seed):
        seed_dropout(net, generator(seed))
        torch.rand(7)  # the default generator moves on, as it would with other threads at work
        return net(images)

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))


def test_dropout_falls_back_to_the_default_generator():
    layer, x = SeededDropout(0.5), torch.ones(100)
    seed_dropout(layer, generator(1))
    seed_dropout(layer, None)
    first, second = (layer(x) for _ in range(2) if torch.manual_seed(5))
    assert torch.equal(first, second)


def test_dropout_masks_do_not_depend_on_the_memory_format():
    x = torch.ones(2, 3, 8, 8)
    layer = SeededDropout(0.5)
    layer.generator = generator(3)
    contiguous = layer(x)
    layer.generator = generator(3)
    assert torch.equal(layer(x.to(memory_format=torch.channels_last)), contiguous)


def test_dropout_is_reproducible_across_threads():
    def train(seed):
        net = nn.Sequential(SeededDropout(0.5), nn.Flatten(), SeededDropout(0.2))
        seed_dropout(net, generator(seed))
        return torch.stack([net(torch.ones(5, 40)) for _ in range(20)])

    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(train, range(8)))
    assert all(torch.equal(threaded[seed], train(seed)) for seed in range(8))


@pytest.mark.parametrize("build", [LeNet5, MLP, lambda s, **options: AlexNet(s, rate=0.1, **options)])
def test_has_dropout(build):
    assert has_dropout(build(COLOUR, dropout=0.5))
    assert not has_dropout(build(COLOUR))
    assert has_dropout(nn.Sequential(nn.Dropout2d(0.1)))
    assert not has_dropout(nn.Sequential(nn.Dropout(0.0)))


def test_scaler_divides_in_training_only_unless_kept():
    x = torch.randn(10)
    assert torch.equal(Scaler(0.25).train()(x), 4 * x)
    assert Scaler(0.25).eval()(x) is x
    assert torch.equal(Scaler(0.25, keep=True).eval()(x), 4 * x)
    assert Scaler(1.0).train()(x) is x


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    "build", [lambda **o: CNN(GREY, u=16, rate=0.5, **o), lambda **o: ResNet18(GREY, 16, rate=0.5, **o)]
)
def test_a_norm_cancels_the_scaler(build, norm):
    torch.manual_seed(0)
    scaled, plain = build(norm=norm).double(), build(norm=norm, scaler=False).double()
    plain.load_state_dict(scaled.state_dict())
    images = torch.randn(16, 1, 28, 28, dtype=torch.double)
    expected = scaled(images)
    torch.testing.assert_close(plain(images), expected, rtol=0, atol=2e-4)
    # Norm(x / r) with eps is Norm(x) with r^2 eps: the small difference above is entirely that of eps.
    for layer in plain.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.eps *= 0.5**2
    torch.testing.assert_close(plain(images), expected, rtol=1e-10, atol=1e-10)


def test_without_a_norm_the_scaler_acts_in_training_and_where_it_is_kept():
    options = {"norm": "none", "bias": False, "rate": 0.5}
    net, kept = CNN(GREY, **options), CNN(GREY, keep_scaling=True, **options)
    kept.load_state_dict(net.state_dict())
    images = torch.randn(2, 1, 28, 28)
    trained = net.train()(images)
    torch.testing.assert_close(trained, 2**4 * net.eval()(images))
    torch.testing.assert_close(kept.eval()(images), trained)


def test_uniform_initialisation():
    """All weights and biases between 0 and the given end, at every width; and printed, since shadows depend on it."""
    net = MLP(DataShape(1, 28, 28, 10), (500,), uniform=5e-4)
    for one in (net, net.scaled(0.25)):
        for parameter in one.parameters():
            assert 0 <= parameter.min() < parameter.max() <= 5e-4
        first = next(one.parameters())
        assert float(first.mean()) == pytest.approx(2.5e-4, rel=0.01)
        assert float(first.std()) == pytest.approx(5e-4 / 12**0.5, rel=0.01)
    assert "uniform=0.0005" in str(net)
    with pytest.raises(UserError, match="uniform is 0"):
        MLP(DataShape(1, 28, 28, 10), uniform=0.0)


@pytest.mark.parametrize("build", [CNN, LeNet5, AlexNet, MLP, ResNet18])
@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5])
def test_a_rate_outside_the_unit_interval_is_refused(build, rate):
    with pytest.raises(UserError, match=r"rate is (.|\n)*float in \(0, 1\]"):
        build(COLOUR, rate=rate)


@pytest.mark.parametrize("build", [LeNet5, AlexNet, MLP])
@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_an_impossible_dropout_is_refused(build, dropout):
    with pytest.raises(UserError, match=r"--model\.net\.dropout"):
        build(COLOUR, dropout=dropout)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: CNN(GREY, u=0), "--model.net.u"),
        (lambda: ResNet18(GREY, base=-1), "--model.net.base"),
        (lambda: MLP(GREY, [10, 0]), "--model.net.hidden"),
        (lambda: LeNet5(GREY, padding=-1), "--model.net.padding"),
        (lambda: LeNet5(DataShape(1, 9, 9, 10)), "--model.net.padding 4"),
        (lambda: AlexNet(GREY, "nasr"), "--model.net.variant bn"),
        (lambda: AlexNet(GREY, "large"), "not one of bn, nasr"),
        (lambda: Scaler(0.0), "rate of Scaler is 0.0"),
        (lambda: SeededDropout(2), "p of SeededDropout is 2"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(build, expected):
    with pytest.raises(UserError) as caught:
        build()
    assert expected in str(caught.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(UserError) as caught:
        CNN(DataShape(1, 4, 4, 10), u=0, channels_per_group=0, rate=3)
    assert len(caught.value.problems) == 3
    with pytest.raises(UserError) as caught:
        CNN(DataShape(1, 4, 4, 10), u=12, norm="group", statistics="none")
    assert len(caught.value.problems) == 3
    assert all(problem.consequence and problem.remedy for problem in caught.value.problems)


POOLED_NETS = {
    "batch norm": partial(CNN, u=4),
    "running statistics": partial(CNN, u=4, statistics="running"),
    "group norm": partial(CNN, u=8, norm="group"),
    "scaler without a norm": partial(CNN, u=4, norm="none", rate=0.5),
    "LeNet5": LeNet5,
    "AlexNet": partial(AlexNet, rate=0.1),
    "AlexNet without norms": partial(AlexNet, variant="nasr", rate=0.1),
    "ConvNet": partial(ConvNet, channels=(4, 6)),
    "Factorised": partial(Factorised, net=partial(ConvNet, channels=(4, 6)), factors={"*conv": 3}),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("values", ["normal", "ties", "not a number"])
@pytest.mark.parametrize("build", POOLED_NETS.values(), ids=POOLED_NETS)
def test_pooling_before_the_relu_changes_neither_outputs_nor_gradients(build, values, layout, monkeypatch):
    """Bit for bit, also where maxima are not unique and where values are NaN."""
    torch.manual_seed(0)
    net = build(COLOUR).to(memory_format=layout)
    images = torch.randn(6, 3, 32, 32)
    if values == "ties":
        images = images.round().clamp(0, 1)  # large areas of equal pixels
        images[:3] = 0
    if values == "not a number":
        images[0, :, 5, 7] = torch.nan
    images = images.contiguous(memory_format=layout)
    early = _answers(net, images)
    monkeypatch.setattr(PooledBlock, "forward", nn.Sequential.forward)
    for here, there in zip(early, _answers(net, images), strict=True):
        assert torch.equal(here.nan_to_num(nan=1e30), there.nan_to_num(nan=1e30))
    assert any(isinstance(layer, PooledBlock) for layer in net.modules())


def _answers(net, images):
    """Logits, gradients of the parameters and of the images."""
    net.train()
    images = images.clone().requires_grad_()
    logits = net(images)
    loss = nn.functional.cross_entropy(logits, torch.arange(len(images)))
    return [logits.detach(), *torch.autograd.grad(loss, [*net.parameters(), images], materialize_grads=True)]


def test_layers_in_place_of_a_relu_and_a_pool_keep_their_order():
    """Attacks replace both by smoothed layers, whose derivatives depend on the order."""
    block = CNN(COLOUR, u=4).blocks[0]
    assert list(dict(block.named_children())) == ["conv", "scaler", "norm", "activation", "pool"]
    called = []
    for name in ("activation", "pool"):
        block.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    block(torch.zeros(2, 3, 8, 8))
    assert called == ["pool", "activation"]
    block.activation = nn.Sigmoid()
    block.activation.register_forward_hook(lambda *_: called.append("activation"))
    block(torch.zeros(2, 3, 8, 8))
    assert called[2:] == ["activation", "pool"]
