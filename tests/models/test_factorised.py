"""A factorised network has the published size, keeps its choice apart from what is shared, and names what is wrong."""

import copy
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from torch import nn

from app.common.errors import UserError
from app.federation.parameters import ParameterSpace
from app.federation.submodels import ClientRound, Prefix
from app.models import CNN, MLP, ConvNet, DataShape, Factorised, LayerAxes, LeNet5, ibp
from app.models.base import ScalableNet
from app.models.factor_layers import FactorConv2d, FactorLinear

MNIST = DataShape(1, 28, 28, 10)
CIFAR10 = DataShape(3, 32, 32, 10)
SMALL = DataShape(1, 8, 8, 4)

NET = partial(MLP, hidden=(12, 6))
NAMED = {"layers.hidden1": 5, "layers.hidden2": 3}


def small(**options):
    torch.manual_seed(0)
    return Factorised(SMALL, **{"net": NET, "factors": NAMED, **options})


def shared_parameters(net):
    """Number of parameters that are not private, as WAFFLe's Table 1 counts them."""
    return sum(parameter.numel() for name, parameter in net.named_parameters() if name not in net.private_names())


def images(count=6):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("net", "shape", "factors", "dense", "shared"),
    [
        (MLP, MNIST, {"layers.hidden1": 120}, 158_800, 120_200),
        (ConvNet, MNIST, {"blocks.*.conv": 25}, 28_880, 27_555),
        (LeNet5, CIFAR10, {"conv*": 10, "hidden1": 60, "hidden2": 40}, 61_770, 42_790),
    ],
)
def test_shared_parameters_are_those_of_table_1(net, shape, factors, dense, shared):
    """Without biases: exact for the MLP; 10 more than printed for LeNet5, with strengths for both convolutions."""
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in net(shape, bias=False).parameters()) == dense
        made = Factorised(shape, partial(net, bias=False), factors)
    assert shared_parameters(made) == shared
    private = 3 * sum(layer.factors for layer in made.factor_layers().values())
    assert sum(parameter.numel() for parameter in made.parameters()) == shared + private


def test_published_counts_of_convolutions_follow_from_one_vector_of_strengths():
    """42,780 is ours less one vector of 10; 27,555 less one of 25 is 27,530, so that 18,155 is no such count."""
    with torch.device("meta"):
        lenet = Factorised(CIFAR10, partial(LeNet5, bias=False), {"conv*": 10, "hidden1": 60, "hidden2": 40})
        convnet = Factorised(MNIST, partial(ConvNet, bias=False), {"*conv": 25})
    assert shared_parameters(lenet) - 10 == 42_780
    assert shared_parameters(convnet) == 25 * (16 + 25) + 25 * (32 + 16 * 25) + 2 * 25 + 32 * 7 * 7 * 10
    assert shared_parameters(convnet) - 25 == 27_530
    assert 25 * (16 + 25) + 25 * (32 + 25) + 25 + 32 * 7 * 7 * 10 == 18_155  # conv2's input taken as 25


@pytest.mark.parametrize(("padding", "plain", "shared"), [(False, 54_216, 60_850), (True, 90_056, 96_690)])
def test_factors_of_appendix_c_are_more_parameters_than_they_replace(padding, plain, shared):
    """80 factors of a layer with 80 outputs: 80 (inputs + 80 + 1) parameters stand for 80 inputs."""
    net = partial(ConvNet, channels=(16, 16), kernel=3, padding=padding, hidden=(80, 60), bias=False)
    with torch.device("meta"):
        whole, factorised = net(CIFAR10), Factorised(CIFAR10, net, {"*conv": 10, "*hidden1": 80, "*hidden2": 40})
    assert sum(parameter.numel() for parameter in whole.parameters()) == plain
    assert shared_parameters(factorised) == shared


def test_a_smaller_dictionary_has_the_first_factors():
    """Coordinates of the whole network's vector, written into the smaller one, are its first factors; alpha stays."""
    torch.manual_seed(0)
    net = small(factors={"*hidden1": 5, "*hidden2": 4})
    few, space = net.scaled(0.5), ParameterSpace(net)
    index = Prefix().index(space, ClientRound(0, 0, 0.5, 1, 0))
    ParameterSpace(few).write(few, space.read(net)[index])
    for whole, part, kept in zip(net.factor_layers().values(), few.factor_layers().values(), (3, 2), strict=True):
        assert part.factors == kept
        assert part.alpha == whole.alpha
        assert torch.equal(part.left, whole.left[:, :kept])
        for name in ("right", "strength", "pi", "c", "d"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[:kept])
        assert torch.equal(part.bias, whole.bias)


@pytest.mark.parametrize("unqueried", ["everything", "prior"])
def test_unused_factors_of_the_servers_copy_are_switched_off(unqueried):
    """A network with its later factors off is the smaller network, exactly."""
    torch.manual_seed(0)
    net = small(factors={"*hidden1": 4, "*hidden2": 4}, unqueried=unqueried).double().eval()
    net.mask_private(used=0.5)
    for layer in net.factor_layers().values():
        assert layer.gates()[2:].tolist() == [0.0, 0.0]
        assert bool((layer.gates()[:2] > 0).all())
    net.mask_private(used=0)
    assert all(not layer.gates().any() for layer in net.factor_layers().values())


def test_the_default_is_waffles_mlp():
    """784-200-10 with 120 factors in the hidden layer and alpha = 120."""
    net = Factorised(MNIST)
    assert list(net.factor_layers()) == ["inner.layers.hidden1"]
    layer = net.factor_layers()["inner.layers.hidden1"]
    assert (tuple(layer.left.shape), tuple(layer.right.shape), layer.alpha) == ((200, 120), (120, 784), 120)
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_named_layers_are_replaced_and_keep_their_place_and_bias():
    """Only the named layers change, in the order of the network; a bias stays an ordinary shared parameter."""
    torch.manual_seed(0)
    plain = NET(SMALL)
    net = small()
    assert [name for name, _ in net.inner.named_modules()] == [name for name, _ in plain.named_modules()]
    assert isinstance(net.inner.layers.hidden1, FactorLinear)
    assert isinstance(net.inner.layers.classifier, nn.Linear)
    assert torch.equal(net.inner.layers.hidden2.bias, plain.layers.hidden2.bias)
    assert torch.equal(net.inner.layers.classifier.weight, plain.layers.classifier.weight)
    assert "inner.layers.hidden1.bias" not in net.private_names()


def test_convolutions_keep_stride_padding_and_dilation():
    """The map of a factorised convolution is as large as that of the plain one."""
    net = Factorised(MNIST, ConvNet, {"blocks.0.conv": 3})
    layer = net.inner.blocks[0].conv
    assert isinstance(layer, FactorConv2d)
    assert (layer.kernel_shape, layer.stride, layer.padding, layer.dilation) == ((1, 5, 5), (1, 1), (2, 2), (1, 1))
    assert isinstance(net.inner.blocks[1].conv, nn.Conv2d)


def test_a_full_name_counts_more_than_a_pattern():
    """In whatever order they are given; of two patterns the later one counts."""
    for factors in ({"layers.hidden1": 7, "*hidden*": 2}, {"*hidden*": 2, "layers.hidden1": 7}):
        net = small(factors=factors)
        assert [layer.factors for layer in net.factor_layers().values()] == [7, 2]
    assert [layer.factors for layer in small(factors={"*1": 2, "*hidden*": 4}).factor_layers().values()] == [4, 4]


def test_every_layer_with_cells_is_declared_and_only_factors_are_cut():
    """Running statistics of a norm too."""
    net = Factorised(SMALL, partial(CNN, u=2, statistics="running"), {"blocks.1.conv": 3})
    axes = net.layer_axes()
    own = {name: axis for name, axis in axes.items() if axis != LayerAxes()}
    assert own == {"inner.blocks.1.conv": LayerAxes(factors="inner.blocks.1.conv.factors")}
    cells = [*net.named_parameters(), *((name, b) for name, b in net.named_buffers() if b.is_floating_point())]
    assert set(axes) == {name.rpartition(".")[0] for name, _ in cells}


def test_private_names_are_pi_c_and_d_of_every_layer():
    """And nothing else; they are parameters."""
    net = small()
    assert set(net.private_names()) == {f"inner.layers.hidden{k}.{name}" for k in (1, 2) for name in ("pi", "c", "d")}
    assert set(net.private_names()) <= {name for name, _ in net.named_parameters()}
    assert set(net.clamp_ranges()) == set(net.private_names())


def test_bounds_are_those_of_logits_and_logs_in_the_units_that_are_kept():
    """+-6.9 for pi and +-log 999 for c and d, over sqrt(speed)."""
    clamp_ranges = small(speed=100.0).clamp_ranges()
    assert clamp_ranges["inner.layers.hidden1.pi"] == pytest.approx((-0.69, 0.69))
    assert clamp_ranges["inner.layers.hidden2.d"] == pytest.approx((-ibp.LOG_LIMIT / 10, ibp.LOG_LIMIT / 10))


@pytest.mark.parametrize("evaluation", ["expectation", "threshold", "sample"])
def test_a_concealed_network_uses_every_factor(evaluation):
    """Whatever a client had chosen, evaluation is that of the plain network with the weights composed at b = 1."""
    net = small(evaluation=evaluation)
    with torch.no_grad():
        for name in net.private_names():
            net.get_parameter(name).normal_()
    net.mask_private()
    plain = NET(SMALL)
    plain.load_state_dict({name: value for name, value in net.inner.state_dict().items() if value is not None}, False)
    for name in ("hidden1", "hidden2"):
        layer = net.inner.layers.get_submodule(name)
        weight = layer.left @ torch.diag(layer.strength) @ layer.right
        plain.layers.get_submodule(name).weight.data.copy_(weight)
    torch.testing.assert_close(net.eval()(images()), plain.eval()(images()))
    high = net.clamp_ranges()["inner.layers.hidden1.pi"][1]
    assert net.inner.layers.hidden1.pi.tolist() == pytest.approx([high] * 5)


def test_a_concealed_network_forgets_the_sticks_and_may_keep_the_prior():
    """c and d return to the prior, and pi as well where that is asked for."""
    fresh, net = small(unqueried="prior"), small(unqueried="prior")
    with torch.no_grad():
        for name in net.private_names():
            net.get_parameter(name).normal_()
    net.mask_private()
    for name in net.private_names():
        assert torch.equal(net.get_parameter(name), fresh.get_parameter(name)), name
    everything = small()
    with torch.no_grad():
        for name in everything.private_names():
            everything.get_parameter(name).normal_()
    everything.mask_private()
    for name in ("c", "d"):
        layers = everything.inner.layers.hidden1, fresh.inner.layers.hidden1
        assert torch.equal(*(layer.get_parameter(name) for layer in layers)), name


def test_noise_is_drawn_by_buffer_and_depends_on_the_generator_alone():
    """Two buffers per layer, of the parameters' type, uniform, and the same for the same seed."""
    net = small().double()
    drawn = net.sample_noise(torch.Generator().manual_seed(4))
    assert {name: len(value) for name, value in drawn.items()} == {
        f"inner.layers.hidden{k}.uniform_{kind}": size for k, size in ((1, 5), (2, 3)) for kind in "bv"
    }
    assert set(drawn) <= {name for name, _ in net.named_buffers()}
    assert not set(drawn) & set(net.state_dict())
    values = torch.cat(list(drawn.values()))
    assert values.dtype == torch.double
    assert len(values.unique()) == 16
    again = net.sample_noise(torch.Generator().manual_seed(4))
    assert all(torch.equal(again[name], value) for name, value in drawn.items())


def test_the_penalty_is_the_weighted_sum_of_divergences():
    """None without weight, so that nothing is computed."""
    net = small(kl_weight=0.3)
    expected = 0.3 * sum(layer.divergence() for layer in net.factor_layers().values())
    torch.testing.assert_close(net.penalty(), expected)
    assert small(kl_weight=0).penalty() is None


def test_scaled_rebuilds_the_same_architecture():
    """Settings and wrapped network included; the wrapped network's own options are not mixed with ours."""
    net = small(alpha=2.0, speed=10.0, evaluation="threshold", unqueried="prior", kl_weight=0.0)
    again = net.scaled(1.0)
    assert again.hparams == net.hparams
    assert [(n, p.shape) for n, p in again.named_parameters()] == [(n, p.shape) for n, p in net.named_parameters()]
    assert again.factor_layers()["inner.layers.hidden1"].settings == net.inner.layers.hidden1.settings
    assert (again.unqueried, again.kl_weight) == ("prior", 0.0)
    assert net.inner.hparams == NET(SMALL).hparams


def test_a_factorised_network_can_be_copied_and_pickled():
    """With the same answers."""
    net = small().eval()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(images()), net(images()))
        assert twin.private_names() == net.private_names()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"alpha": 0.0}, ["alpha is 0.0", "float > 0", "--model.net.alpha"]),
        ({"temperature": 0.0}, ["temperature is 0.0", "float > 0", "--model.net.temperature"]),
        ({"speed": -1.0}, ["speed is -1.0", "float > 0", "--model.net.speed"]),
        ({"speed": float("nan")}, ["speed is nan", "float > 0"]),
        ({"kl_weight": -0.1}, ["kl_weight is -0.1", "float >= 0", "--model.net.kl_weight"]),
        ({"threshold": 1.5}, ["threshold is 1.5", "float in [0, 1]", "--model.net.threshold"]),
        ({"kl": "exact"}, ["kl is 'exact'", "closed, sampled"]),
        ({"init": "zeros"}, ["init is 'zeros'", "balanced, ibp-wf"]),
        ({"evaluation": "mean"}, ["evaluation is 'mean'", "expectation, threshold, sample"]),
        ({"unqueried": "nothing"}, ["unqueried is 'nothing'", "everything, prior"]),
        ({"factors": {}}, ["factors names no layer", "layers.hidden1, layers.hidden2, layers.classifier"]),
        ({"factors": {"layers.hiden2": 4}}, ["'layers.hiden2', which is no layer", "use 'layers.hidden2'"]),
        ({"factors": {"*conv*": 4}}, ["'*conv*', which is no layer", "MLP has layers.hidden1"]),
        ({"factors": {"layers.activation1": 4}}, ["which is a ReLU", "use 'layers.", "MLP has layers.hidden1"]),
        ({"factors": {"layers.hidden1": 0}}, ["factors is {'layers.hidden1': 0}", "int >= 1"]),
        ({"net": partial(MLP, hidden=(0,))}, ["model.net.net.hidden is (0,)", "--model.net.net.hidden"]),
    ],
)
def test_every_mistake_is_told_with_its_remedy(options, told):
    """Cause and option are named, and there is one problem only."""
    with pytest.raises(UserError) as error:
        small(**options)
    (problem,) = error.value.problems
    assert all(part in str(problem) for part in told), problem
    assert problem.cause
    assert problem.consequence
    assert problem.remedy


def test_mistakes_are_told_all_at_once():
    """Numbers first, which the other checks presume to be in their ranges; then choices and layers."""
    with pytest.raises(UserError) as error:
        small(alpha=-1.0, speed=0.0, rate=2.0, factors={"nowhere": 0})
    assert [problem.cause.split()[0] for problem in error.value.problems] == [
        f"--model.net.{name}" for name in ("factors", "alpha", "speed", "rate")
    ]
    with pytest.raises(UserError) as error:
        small(kl="exact", init="zeros", factors={"nowhere": 1})
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [({"groups": 2}, "convolution of 2 groups"), ({"padding": 1, "padding_mode": "circular"}, "mode circular")],
)
def test_convolutions_that_are_no_plain_products_are_refused(options, told):
    """Groups would need one factorisation each; other paddings are not what the layer does."""

    class Odd(ScalableNet):
        def __init__(self, shape, rate=1.0):
            super().__init__()
            self.save_hyperparameters()
            self.conv = nn.Conv2d(2, 4, 3, **options)

        def layer_axes(self):
            return {"conv": LayerAxes()}

        def forward(self, images):
            return self.conv(images).mean(dim=(2, 3))

    with pytest.raises(UserError, match=told) as error:
        Factorised(DataShape(2, 8, 8, 4), Odd, {"conv": 2})
    assert "none that can be" in str(error.value)


def built_by_command_line(*arguments, config=None):
    """What `--net` and its options, or a configuration, build for MNIST."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--net", type=Callable[[DataShape], ScalableNet], default=CNN)
    parsed = parser.parse_string(yaml.safe_dump(config)) if config else parser.parse_args(arguments)
    return parser.instantiate_classes(parsed).net(MNIST)


def test_the_command_line_builds_nested_networks():
    """With options of the wrapped network, and with names of layers that contain dots."""
    given = ["--net.net", "app.models.MLP", "--net.net.bias", "false", "--net.factors", '{"layers.hidden1": 100}']
    net = built_by_command_line("--net", "app.models.Factorised", *given)
    assert (net.inner.hparams.bias, net.inner.layers.hidden1.factors) == (False, 100)
    assert shared_parameters(net.scaled(1.0)) == shared_parameters(net) == 100 * 984 + 100 + 2000
    copy.deepcopy(net)


def test_the_options_of_the_default_network_do_not_reach_another_one():
    """ConvNet without hidden layers, although the MLP has one: else 27,555 parameters would be 327,475."""
    inner = {"class_path": "app.models.ConvNet", "init_args": {"bias": False}}
    options = {"net": inner, "factors": {"blocks.0.conv": 25, "blocks.1.conv": 25}}
    net = built_by_command_line(config={"net": {"class_path": "app.models.Factorised", "init_args": options}})
    assert shared_parameters(net) == 27_555
    given = ["--net.net", "app.models.ConvNet", "--net.net.bias", "false", "--net.factors", '{"*conv": 25}']
    assert shared_parameters(built_by_command_line("--net", "app.models.Factorised", *given)) == 27_555
