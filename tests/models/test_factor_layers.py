"""A factor layer is the plain layer with the composed weight, however it computes; only b decides what it uses."""

import math

import pytest
import torch
from opacus import GradSampleModule
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from app.models import ibp
from app.models.factor_layers import (
    NOISE,
    PRIVATE,
    FactorConv2d,
    FactorLinear,
    FactorSettings,
    per_sample_gradients,
)

CONV_OPTIONS = [
    {},
    {"stride": (2, 1), "padding": (1, 2)},
    {"padding": "same", "dilation": (2, 2)},
    {"padding": "valid"},
]


def seeded(layer):
    """The layer in double precision, with noise and private parameters that tell factors apart."""
    generator = torch.Generator().manual_seed(5)
    layer.double()
    for name in NOISE:
        setattr(layer, name, torch.rand(layer.factors, generator=generator, dtype=torch.double))
    with torch.no_grad():
        layer.strength.uniform_(0.5, 2)
        for name in PRIVATE:
            spread = torch.randn(layer.factors, generator=generator, dtype=torch.double)
            getattr(layer, name).add_(spread / layer.settings.speed**0.5)
    return layer


def linear(factors=6, bias=True, **settings):
    torch.manual_seed(0)
    return seeded(FactorLinear(9, 7, factors, bias, FactorSettings(**settings)))


def conv(factors=4, bias=True, **options):
    torch.manual_seed(0)
    return seeded(FactorConv2d(3, 5, (3, 2), factors, bias, FactorSettings(), **options))


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.double)


def set_logits(layer, logits):
    with torch.no_grad():
        layer.pi.copy_(torch.as_tensor(logits, dtype=layer.pi.dtype) / layer.settings.speed**0.5)


def forced(layer, composes):
    layer._composes = lambda rows: composes
    return layer


@pytest.mark.parametrize("training", [True, False])
def test_both_computations_of_a_linear_layer_equal_the_composed_weight(training):
    """left diag(strength b) right, applied at once or in turn, with the bias once; gradients agree too."""
    layer, x = linear().train(training), images(11, 9)
    expected = functional.linear(x, layer.left @ torch.diag(layer.strength * layer.gates()) @ layer.right, layer.bias)
    slopes = []
    for composes in (True, False):
        out = forced(layer, composes)(x)
        torch.testing.assert_close(out, expected)
        used = [layer.left, layer.strength, layer.right, layer.bias, layer.pi]
        slopes.append(torch.autograd.grad(out.square().sum(), used))
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("options", CONV_OPTIONS)
@pytest.mark.parametrize("composes", [True, False])
def test_both_computations_of_a_convolution_equal_the_composed_kernel(options, composes):
    """`conv2d` with the composed kernel, for strides, paddings and dilations."""
    layer, x = conv(**options), images(2, 3, 8, 9)
    kernel = layer.weight().view(5, 3, 3, 2)
    expected = functional.conv2d(x, kernel, layer.bias, **options)
    torch.testing.assert_close(forced(layer, composes)(x), expected)
    assert layer._pixels(x) == math.prod(expected.shape[2:])


def test_the_cheaper_computation_is_chosen():
    """Counting multiplications: composing costs outputs x columns x (factors + rows), applying in turn the rest."""
    with torch.device("meta"):
        mlp = FactorLinear(784, 200, 120)
        narrow = FactorConv2d(1, 16, (5, 5), 25, padding=(2, 2))
        wide = FactorConv2d(16, 32, (5, 5), 25, padding=(2, 2))
    assert not mlp._composes(10)
    assert not mlp._composes(10**6)  # 120 * 984 < 784 * 200
    assert narrow._composes(10 * 28 * 28)
    assert not narrow._composes(1)
    assert not wide._composes(10 * 14 * 14)  # 25 * 432 < 32 * 400
    assert FactorLinear(9, 7, 6)._composes(100)


def test_relaxed_gates_come_from_the_buffers_in_training():
    """Training uses the relaxed choice at `uniform_b` and the temperature, and draws nothing itself."""
    layer = linear(temperature=0.4)
    state = torch.get_rng_state()
    torch.testing.assert_close(layer.gates(), ibp.relaxed_bernoulli(layer.logits(), layer.uniform_b, 0.4))
    layer(images(3, 9))
    layer.divergence()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("expectation", lambda pi, u: pi),
        ("threshold", lambda pi, u: torch.where(pi >= 0.6, pi, 0)),
        ("sample", lambda pi, u: (u < pi).double()),
    ],
)
def test_gates_in_evaluation_follow_the_rule_except_at_the_bounds(rule, expected):
    """The rule within the bounds, exactly 1 and exactly 0 at them."""
    layer = linear(evaluation=rule, threshold=0.6).eval()
    set_logits(layer, [ibp.LIMIT, -ibp.LIMIT, 0.3, 0.5, -1.0, 2.0])
    layer.uniform_b = torch.tensor([0.9999, 0.00001, 0.5, 0.7, 0.1, 0.2], dtype=torch.double)
    gates = layer.gates()
    assert gates[:2].tolist() == [1.0, 0.0]
    torch.testing.assert_close(gates[2:], expected(torch.sigmoid(layer.logits()), layer.uniform_b)[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("speed", [1.0, 300.0, 1000.0, 7.3])
def test_a_value_put_on_its_bound_is_certain_and_can_still_move(dtype, speed):
    """In every type, rounding leaves a projected value certain in evaluation and its gradient alive in training."""
    layer = FactorLinear(9, 7, 2, settings=FactorSettings(speed=speed)).to(dtype)
    low, high = layer.clamp_ranges()["pi"]
    with torch.no_grad():
        layer.pi.copy_(torch.tensor([low, high]))
        layer.pi.clamp_(low, high)
    assert layer.eval().gates().tolist() == [0.0, 1.0]
    (slope,) = torch.autograd.grad(layer.logits().sum(), layer.pi)
    assert (slope != 0).all()


def test_an_unused_factor_gets_no_gradient():
    """b = 0 exactly: nothing flows to the factor's column, row and strength, whichever way it is computed."""
    layer, x = linear().eval(), images(4, 9)
    set_logits(layer, [-ibp.LIMIT, 1.0, -ibp.LIMIT, 0.0, 2.0, ibp.LIMIT])
    for composes in (True, False):
        out = forced(layer, composes)(x).square().sum()
        left, strength, right = torch.autograd.grad(out, [layer.left, layer.strength, layer.right])
        for off in (0, 2):
            assert left[:, off].abs().max() == strength[off].abs() == right[off].abs().max() == 0
        assert (strength[[1, 3, 4, 5]] != 0).all()


@pytest.mark.parametrize("active", range(5))
def test_the_rank_is_the_number_of_factors_in_use(active):
    """W is a sum of as many rank-one matrices as factors are active."""
    layer = conv().eval()
    set_logits(layer, [ibp.LIMIT] * active + [-ibp.LIMIT] * (4 - active))
    assert torch.linalg.matrix_rank(layer.weight()) == active


@pytest.mark.parametrize("kl", ["closed", "sampled"])
def test_divergence_is_that_of_choices_plus_that_of_sticks(kl):
    """With the sticks drawn from `uniform_v` and, if sampled, the choice from `uniform_b`."""
    layer = linear(kl=kl, alpha=3.0)
    root = layer.settings.speed**0.5
    c, d, logits = (layer.c * root).exp(), (layer.d * root).exp(), layer.pi * root
    p = ibp.stick_probabilities(ibp.kumaraswamy(c, d, layer.uniform_v))
    choice = {
        "closed": ibp.bernoulli_kl(torch.sigmoid(logits), p),
        "sampled": ibp.concrete_kl(logits, p, layer.uniform_b),
    }[kl]
    torch.testing.assert_close(layer.divergence(), choice + ibp.kumaraswamy_beta_kl(c, d, 3.0))


@pytest.mark.parametrize("speed", [1.0, 1000.0])
def test_one_step_of_plain_descent_moves_the_logit_speed_times_as_far(speed):
    """The logit moves by lr * speed * its own gradient; so do the logs of c and d."""
    layer = FactorLinear(9, 7, 4, settings=FactorSettings(speed=speed)).double()
    x = images(5, 9)
    root = speed**0.5
    before = {name: getattr(layer, name).detach() * root for name in PRIVATE}
    (layer(x).square().sum() + layer.divergence()).backward()
    slopes = {name: getattr(layer, name).grad / root for name in PRIVATE}  # with respect to logit, log c, log d
    torch.optim.SGD(layer.parameters(), lr=1e-6).step()
    for name in PRIVATE:
        moved = getattr(layer, name).detach() * root - before[name]
        torch.testing.assert_close(moved, -1e-6 * speed * slopes[name], rtol=1e-6, atol=1e-15)
    assert (slopes["pi"] != 0).all()


def test_private_parameters_start_at_the_prior():
    """pi is the prior's mean, c is alpha and d is 1; alpha is the number of factors unless it is given."""
    layer = FactorLinear(9, 7, 20)
    assert layer.alpha == 20
    torch.testing.assert_close(torch.sigmoid(layer.logits()), ibp.prior_means(20.0, 20))
    root = layer.settings.speed**0.5
    torch.testing.assert_close((layer.c * root).exp(), torch.full((20,), 20.0))
    torch.testing.assert_close((layer.d * root).exp(), torch.ones(20))
    assert FactorLinear(9, 7, 20, settings=FactorSettings(alpha=2.5)).alpha == 2.5


@pytest.mark.parametrize("plain", [nn.Linear(300, 200), nn.Conv2d(12, 150, 5)], ids=["linear", "conv"])
def test_balanced_factors_compose_weights_as_large_as_torchs_own(plain):
    """With choices drawn from the prior, Var(W) is that of the plain layer; left and right are equally long."""
    torch.manual_seed(0)
    rows, columns = plain.weight.flatten(1).shape
    layer = FactorLinear(columns, rows, 80)
    chosen = torch.bernoulli(ibp.prior_means(80.0, 80).expand(200, 80))
    drawn = torch.stack([(layer.left * gates) @ layer.right for gates in chosen]).detach()
    assert float(drawn.var()) == pytest.approx(float(plain.weight.detach().var()), rel=0.05)
    assert float(plain.weight.detach().var()) == pytest.approx(1 / (3 * columns), rel=0.05)
    lengths = layer.left.detach().norm(dim=0).mean(), layer.right.detach().norm(dim=1).mean()
    assert float(lengths[0]) == pytest.approx(float(lengths[1]), rel=0.02)
    assert (layer.strength == 1).all()


def test_the_initialisation_of_ibp_wf():
    """Strengths of standard deviation .1, left and right as wide as Xavier's rule says."""
    torch.manual_seed(0)
    layer = FactorLinear(300, 200, 400, settings=FactorSettings(init="ibp-wf"))
    assert float(layer.strength.std()) == pytest.approx(0.1, rel=0.1)
    assert float(layer.left.var()) == pytest.approx(2 / 600, rel=0.05)
    assert float(layer.right.var()) == pytest.approx(2 / 700, rel=0.05)


@pytest.mark.parametrize(("layer", "shape"), [(linear(), (8, 9)), (conv(), (2, 3, 6, 5))], ids=["linear", "conv"])
def test_clients_stacked_by_vmap_are_computed_as_one_by_one(layer, shape):
    """Values and gradients of stacked parameters and noise equal those of every client alone."""
    generator = torch.Generator().manual_seed(1)
    x = images(3, *shape)
    values = {
        name: (tensor + 0.1 * torch.rand(3, *tensor.shape, generator=generator, dtype=tensor.dtype)).detach()
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]
    }
    values = {name: value.requires_grad_() for name, value in values.items()}

    class Objective(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).square().sum() + self.layer.divergence()

    def of(values, x):
        return functional_call(Objective(), {f"layer.{name}": value for name, value in values.items()}, (x,))

    together = vmap(of)(values, x)
    alone = torch.stack([of({name: value[k] for name, value in values.items()}, x[k]) for k in range(3)])
    torch.testing.assert_close(together, alone)
    trained = [values[name] for name, _ in layer.named_parameters()]
    slopes = [torch.autograd.grad(out.sum(), trained) for out in (together, alone)]
    torch.testing.assert_close(slopes[0], slopes[1])
    assert all(slope.abs().sum() > 0 for slope in slopes[0])


@pytest.mark.parametrize(("layer", "shape"), [(linear(), (4, 9)), (conv(), (4, 3, 6, 5))], ids=["linear", "conv"])
def test_gradients_of_single_samples_by_opacus_equal_autograds(layer, shape, monkeypatch):
    """With the layer's rule in Opacus, each sample's gradient is that of a pass with it alone, at the present noise."""
    for kind in (FactorLinear, FactorConv2d):
        rule = lambda layer, inputs, gradient: per_sample_gradients(layer, inputs[0], gradient)  # noqa: E731
        monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, kind, rule)
    net, x = nn.Sequential(layer, nn.Flatten()), images(*shape)
    wrapped = GradSampleModule(net, strict=False)
    for seed in (1, 2):  # the noise of the second step must not be that of the first
        generator = torch.Generator().manual_seed(seed)
        layer.uniform_b = torch.rand(layer.factors, generator=generator, dtype=torch.double)
        wrapped.zero_grad()
        wrapped(x).square().sum(dim=1).mean().backward()
        for sample in range(4):
            alone = layer.forward(x[sample : sample + 1]).square().sum()  # no hooks
            named = dict(layer.named_parameters())
            slopes = torch.autograd.grad(alone, list(named.values()), allow_unused=True)
            for (name, parameter), slope in zip(named.items(), slopes, strict=True):
                expected = torch.zeros_like(parameter) if slope is None else slope
                torch.testing.assert_close(parameter.grad_sample[sample], expected, msg=name)
    wrapped.to_standard_module()
