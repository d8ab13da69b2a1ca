"""WAFFLe's convolutional networks: published sizes, channel axes and image sizes."""

import pytest
import torch

from app.common.errors import UserError
from app.models import ConvNet, DataShape

FMNIST = DataShape(1, 28, 28, 10)
CIFAR10 = DataShape(3, 32, 32, 10)
APPENDIX_C = {"channels": (16, 16), "kernel": 3, "hidden": (80, 60)}


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        (FMNIST, {}, 28_880),
        (CIFAR10, {**APPENDIX_C, "padding": False}, 54_216),
        (CIFAR10, APPENDIX_C, 90_056),
        (FMNIST, {"channels": (), "hidden": (200,)}, 158_800),
    ],
)
def test_it_has_the_published_parameters(shape, options, expected):
    """Without biases; without any convolution it is the MLP."""
    with torch.device("meta"):
        net = ConvNet(shape, **options, bias=False)
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


def test_a_bias_adds_one_parameter_per_output():
    """Of every convolution and of every linear layer."""
    with torch.device("meta"):
        counts = [sum(p.numel() for p in ConvNet(CIFAR10, **APPENDIX_C, bias=b).parameters()) for b in (True, False)]
    assert counts[0] - counts[1] == 16 + 16 + 80 + 60 + 10


@pytest.mark.parametrize("options", [{}, {"padding": False}, {"kernel": 4, "padding": False}, APPENDIX_C])
@pytest.mark.parametrize("shape", [FMNIST, CIFAR10, DataShape(2, 33, 20, 3)])
def test_logits_have_one_column_per_class(options, shape):
    """Also for images that are not square."""
    net = ConvNet(shape, **options)
    assert net(torch.zeros(2, shape.channels, shape.height, shape.width)).shape == (2, shape.classes)


@pytest.mark.parametrize(("options", "smallest"), [({}, 4), ({"padding": False}, 16), ({"channels": (4,)}, 2)])
def test_an_image_is_refused_exactly_where_no_pixel_would_be_left(options, smallest):
    """And the remedy names an option that helps."""
    with torch.device("meta"):
        with pytest.raises(UserError, match=f"at least {smallest}x{smallest} pixels; these are {smallest - 1}x40"):
            ConvNet(DataShape(1, smallest - 1, 40, 10), **options)
        assert ConvNet(DataShape(1, smallest, 40, 10), **options)(torch.zeros(2, 1, smallest, 40)).shape == (2, 10)


def test_axes_follow_the_depth_and_the_first_linear_layer_reads_the_flattened_map():
    """Convolutions, hidden layers and the classifier, each reading what the one before writes."""
    axes = ConvNet(CIFAR10, **APPENDIX_C).layer_axes()
    ends = [(name, axis.output, axis.input, axis.spread) for name, axis in axes.items()]
    assert ends == [
        ("blocks.0.conv", "conv1", None, 1),
        ("blocks.1.conv", "conv2", "conv1", 1),
        ("layers.hidden1", "hidden1", "conv2", 64),
        ("layers.hidden2", "hidden2", "hidden1", 1),
        ("layers.classifier", None, "hidden2", 1),
    ]


@pytest.mark.parametrize("options", [{}, {**APPENDIX_C, "padding": False}])
def test_a_narrow_network_answers_as_the_full_one_with_its_other_channels_silenced(options):
    """What HeteroFL cuts out: the first channels of every axis, of the flattened map in whole channels."""
    torch.manual_seed(0)
    full = ConvNet(CIFAR10, **options).double()
    half = full.scaled(0.5).double()
    with torch.no_grad():
        for name, axis in full.layer_axes().items():
            big, small = full.get_submodule(name), half.get_submodule(name)
            rows = small.weight.shape[0]
            columns = small.weight.shape[1]
            small.weight.copy_(big.weight[:rows, :columns])
            small.bias.copy_(big.bias[:rows])
            if axis.output is not None:
                big.weight[rows:] = 0
                big.bias[rows:] = 0
    images = torch.randn(3, 3, 32, 32, dtype=torch.double)
    torch.testing.assert_close(half(images), full(images))


def test_dropout_acts_on_hidden_layers_in_training_only():
    """With all but surely dropped activations, the training answer is the classifier's bias."""
    torch.manual_seed(0)
    net = ConvNet(FMNIST, hidden=(20,), dropout=0.999999)
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(net(images), net.layers.classifier.bias.expand(2, -1))
    assert not torch.allclose(net.eval()(images), net.layers.classifier.bias.expand(2, -1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kernel": 0}, ["kernel is 0", "int >= 1", "--model.net.kernel"]),
        ({"kernel": 4}, ["an even number", "--model.net.kernel 5, or --model.net.padding false"]),
        ({"channels": (4, 0)}, ["channels is (4, 0)", "int >= 1", "--model.net.channels"]),
        ({"hidden": (-1,)}, ["hidden is (-1,)", "int >= 1", "--model.net.hidden"]),
        ({"dropout": 1.0}, ["dropout is 1.0", "in [0, 1)", "--model.net.dropout"]),
        ({"rate": 0.0}, ["rate is 0.0", "in (0, 1]", "--model.net.rate"]),
        ({"channels": (4,) * 6}, ["at least 64x64 pixels", "fewer --model.net.channels"]),
        ({"kernel": 9, "padding": False, "channels": (4,) * 2}, ["at least 28x28"]),
    ],
)
def test_every_mistake_is_told_with_its_remedy(options, told):
    """Cause and option are named."""
    shape = DataShape(1, 25, 25, 10) if options.get("kernel") == 9 else FMNIST
    with pytest.raises(UserError) as error:
        ConvNet(shape, **options)
    (problem,) = error.value.problems
    assert all(part in str(problem) for part in told), problem
