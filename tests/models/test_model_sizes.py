"""Published parameter counts, output shapes, and widths of scaled networks."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import UserError
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18
from app.models.base import scaled_width

DIGITS = DataShape(1, 8, 8, 10)
MNIST = DataShape(1, 28, 28, 10)
PADDED_MNIST = DataShape(1, 32, 32, 10)
FEMNIST = DataShape(1, 28, 28, 62)
CIFAR10 = DataShape(3, 32, 32, 10)
CIFAR100 = DataShape(3, 32, 32, 100)


def count(build, *args, **options):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(*args, **options).parameters())


CNN_COUNTS = [
    (CIFAR10, {8: 25_418, 16: 99_210, 32: 391_946, 64: 1_558_026}),
    (CIFAR100, {8: 31_268, 16: 110_820, 32: 415_076, 64: 1_604_196}),
    (FEMNIST, {8: 28_654, 16: 105_630, 32: 404_734, 64: 1_583_550}),
]


@pytest.mark.parametrize(("shape", "u", "expected"), [(s, u, n) for s, table in CNN_COUNTS for u, n in table.items()])
def test_cnn_has_the_published_parameters(shape, u, expected):
    assert count(CNN, shape, u=u) == expected
    assert count(CNN, shape, u=64, rate=u / 64) == expected


@pytest.mark.parametrize(
    ("build", "shape", "options", "expected"),
    [
        (LeNet5, PADDED_MNIST, {}, 61_706),
        (LeNet5, MNIST, {}, 61_706),
        (LeNet5, MNIST, {"padding": 0}, 44_426),
        (LeNet5, CIFAR10, {"bias": False}, 61_770),
        (AlexNet, CIFAR10, {"variant": "nasr"}, 2_472_266),
        (AlexNet, CIFAR100, {"variant": "nasr"}, 2_495_396),
        (AlexNet, CIFAR10, {}, 2_493_386),
        (AlexNet, CIFAR100, {"variant": "bn"}, 2_862_116),
        (MLP, MNIST, {}, 159_010),
        (MLP, MNIST, {"bias": False}, 158_800),
        (MLP, DIGITS, {"hidden": []}, 650),
        (ResNet18, CIFAR10, {}, 11_173_962),
    ],
)
def test_other_networks_have_the_published_parameters(build, shape, options, expected):
    assert count(build, shape, **options) == expected


@pytest.mark.parametrize("shape", [DIGITS, FEMNIST, CIFAR100, DataShape(2, 9, 17, 3), DataShape(3, 64, 33, 5)])
@pytest.mark.parametrize(
    ("build", "options"),
    [
        (CNN, {"u": 4}),
        (LeNet5, {"padding": 4}),
        (AlexNet, {"rate": 0.1}),
        (MLP, {"hidden": (7, 5)}),
        (ResNet18, {"base": 4}),
    ],
)
def test_logits_have_one_column_per_class(build, options, shape):
    net = build(shape, **options)
    assert net(torch.zeros(2, shape.channels, shape.height, shape.width)).shape == (2, shape.classes)


@pytest.mark.parametrize(
    ("build", "smallest"),
    [(CNN, 8), (LeNet5, 16), (AlexNet, 8), (lambda s: AlexNet(s, "nasr"), 29), (MLP, 1), (ResNet18, 1)],
    ids=["cnn", "lenet", "alexnet", "nasr", "mlp", "resnet"],
)
def test_an_image_is_refused_exactly_where_no_pixel_would_be_left(build, smallest):
    with torch.device("meta"):
        for side in range(1, smallest):
            with pytest.raises(UserError, match=f"at least {smallest}x{smallest} pixels; these are {side}x40"):
                build(DataShape(1, side, 40, 10))
        for side in (*range(smallest, smallest + 10), 31, 32, 33, 35):
            assert build(DataShape(1, side, 40, 10))(torch.zeros(2, 1, side, 40)).shape == (2, 10), side


@given(st.integers(1, 600), st.integers(1, 1000))
def test_width_is_the_exact_ceiling(width, thousandths):
    assert scaled_width(width, thousandths / 1000) == -(-width * thousandths // 1000)


def test_scaled_rebuilds_with_the_same_options_at_another_width():
    net = CNN(MNIST, u=10, norm="group", channels_per_group=5, bias=False, scaler=False)
    half = net.scaled(0.5)
    assert [block.conv.out_channels for block in half.blocks] == [5, 10, 20, 40]
    assert half.blocks[0].conv.bias is None
    assert (half.hparams.norm, half.hparams.rate, half.hparams.scaler) == ("group", 0.5, False)
    assert half.scaled(1.0).hparams == net.hparams


def test_scaled_widths_are_rounded_up():
    narrow = LeNet5(MNIST, rate=0.3)
    widths = [narrow.conv1.conv.out_channels, narrow.conv2.conv.out_channels]
    widths += [narrow.hidden1.out_features, narrow.hidden2.out_features, narrow.classifier.out_features]
    assert widths == [2, 5, 36, 26, 10]
    assert narrow.hidden1.in_features == 5 * 25


@pytest.mark.parametrize("build", [CNN, LeNet5, AlexNet, MLP, lambda s: ResNet18(s, base=4)])
def test_networks_can_be_copied_and_pickled(build):
    net = build(PADDED_MNIST)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.hparams == net.hparams
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), net.parameters(), strict=True))
