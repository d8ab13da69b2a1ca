"""Norms and the statistics they use in evaluation."""

import pytest
import torch
from torch import nn

from app.common.errors import UserError
from app.models import CNN, MLP, AlexNet, DataShape, ResNet18
from app.models.norms import make_norm, posthoc_statistics, uses_batch_statistics

DIGITS = DataShape(1, 8, 8, 10)


@pytest.mark.parametrize("statistics", ["batch", "posthoc"])
def test_untracked_batch_norm_evaluates_with_the_batch_itself(statistics):
    norm = make_norm("batch", 4, statistics).eval()
    x = 3 + 2 * torch.randn(20, 4, 5, 5)
    y = norm(x)
    assert not list(norm.buffers())
    torch.testing.assert_close(y.mean(dim=(0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.var(dim=(0, 2, 3), correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_running_batch_norm_tracks():
    norm = make_norm("batch", 4, "running")
    assert {name for name, _ in norm.named_buffers()} == {"running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize(("channels", "groups"), [(32, 4), (16, 2), (8, 1), (5, 1), (1, 1)])
def test_group_size_is_fixed_and_a_narrow_layer_is_one_group(channels, groups):
    assert make_norm("group", channels, channels_per_group=8).num_groups == groups


def test_no_norm_is_the_identity():
    x = torch.randn(2, 3, 4, 4)
    assert make_norm("none", 3)(x) is x


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (CNN(DIGITS), True),
        (CNN(DIGITS, statistics="running"), True),
        (CNN(DIGITS, norm="group"), False),
        (CNN(DIGITS, norm="none"), False),
        (ResNet18(DIGITS, base=2), True),
        (AlexNet(DIGITS, rate=0.1), True),
        (MLP(DIGITS), False),
        (nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), False),
        (nn.Sequential(nn.BatchNorm1d(3)), True),
    ],
)
def test_uses_batch_statistics(net, expected):
    assert uses_batch_statistics(net) is expected


def state(net):
    """Everything that posthoc statistics could leave behind."""
    layers = [(name, layer.training, dict(layer._buffers)) for name, layer in net.named_modules()]
    settings = [
        (n.momentum, n.track_running_stats, n.weight, n.bias) for n in net.modules() if isinstance(n, nn.BatchNorm2d)
    ]
    return layers, settings


def test_posthoc_statistics_are_the_averages_over_batches():
    first = make_norm("batch", 3, "posthoc")
    net = nn.Sequential(first, nn.ReLU(), nn.Conv2d(3, 2, 3), make_norm("batch", 2, "posthoc")).double()
    batches = [size + size * torch.randn(size, 3, 6, 6, dtype=torch.double) for size in (5, 9, 2)]
    inner = [net[2](net[1]((b - mean(b)[:, None, None]) / (var(b, 0) + 1e-5).sqrt()[:, None, None])) for b in batches]
    with posthoc_statistics(net, iter(batches)):
        for norm, maps in [(net[0], batches), (net[3], inner)]:
            torch.testing.assert_close(norm.running_mean, sum(map(mean, maps)) / 3)
            torch.testing.assert_close(norm.running_var, sum(var(m, 1) for m in maps) / 3)
        x = torch.randn(4, 3, 6, 6, dtype=torch.double)
        m, v = net[0].running_mean[:, None, None], net[0].running_var[:, None, None]
        torch.testing.assert_close(net[0](x), (x - m) / (v + 1e-5).sqrt())
        torch.testing.assert_close(net(x)[:1], net(x[:1]), msg="images no longer influence each other")


def mean(maps):
    return maps.mean(dim=(0, 2, 3))


def var(maps, correction):
    return maps.var(dim=(0, 2, 3), correction=correction)


@pytest.mark.parametrize("training", [True, False])
def test_the_net_is_as_before_once_posthoc_statistics_are_left(training):
    net = CNN(DIGITS, statistics="posthoc").train(training)
    net.blocks[1].eval()
    before, images = state(net), torch.randn(6, 1, 8, 8)
    logits = net(images)
    with posthoc_statistics(net, images.split(3)):
        assert not any(layer.training for layer in net.modules())
        assert not torch.allclose(net(images), logits)
    assert state(net) == before
    assert not list(net.buffers())
    assert all(parameter.grad is None for parameter in net.parameters())
    torch.testing.assert_close(net(images), logits, rtol=0, atol=0)


def test_the_net_is_as_before_when_evaluation_fails():
    net = CNN(DIGITS)
    before = state(net)
    with pytest.raises(KeyError), posthoc_statistics(net, [torch.randn(4, 1, 8, 8)]):
        raise KeyError
    assert state(net) == before


def test_scalers_and_dropout_rest_while_statistics_are_gathered():
    batches = [torch.randn(4, 1, 8, 8) for _ in range(2)]
    scaled = CNN(DIGITS, rate=0.5).train()
    plain = CNN(DIGITS, rate=0.5, scaler=False)
    plain.load_state_dict(scaled.state_dict())
    with posthoc_statistics(scaled, batches), posthoc_statistics(plain, batches):
        torch.testing.assert_close(scaled(batches[0]), plain(batches[0]), rtol=0, atol=0)


def test_running_statistics_are_left_alone():
    net = CNN(DIGITS, statistics="running").train()
    images = torch.randn(6, 1, 8, 8)
    net(images)
    expected = net.eval()(images)
    with posthoc_statistics(net, [images + 5]):
        torch.testing.assert_close(net(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("batches", "message"), [([], "no images to gather"), ([torch.zeros(1, 1, 8, 8)], "at least 2 images")]
)
def test_statistics_that_are_not_defined_are_refused(batches, message):
    net = CNN(DIGITS).train()
    before = state(net)
    with pytest.raises(UserError, match=message), posthoc_statistics(net, batches):
        pass
    assert state(net) == before


def test_one_large_image_has_statistics():
    net = CNN(DataShape(1, 16, 16, 10))
    with posthoc_statistics(net, [torch.randn(1, 1, 16, 16)]):
        assert net(torch.randn(1, 1, 16, 16)).isfinite().all()


def test_a_group_norm_that_does_not_divide_names_a_group_size_that_does():
    with pytest.raises(UserError, match=r"10, 20 channels do not split into groups of 8") as caught:
        CNN(DIGITS, u=10, norm="group")
    assert "--model.net.channels_per_group 10" in str(caught.value)
    assert [block.norm.num_groups for block in CNN(DIGITS, u=10, norm="group", channels_per_group=10).blocks] == [
        1,
        2,
        4,
        8,
    ]


def test_impossible_norms_are_refused():
    with pytest.raises(UserError, match="12 channels do not split"):
        make_norm("group", 12)
    with pytest.raises(UserError, match="channels_per_group is 0"):
        make_norm("group", 8, channels_per_group=0)
    with pytest.raises(UserError, match="norm is 'layer', which is not one of batch, group, none"):
        make_norm("layer", 8)
