"""The numbers that clients judge a received model by: closed forms, and known manipulations."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from app.models.layers import SeededDropout
from app.privacy.model_checks import (
    distinct_rows,
    gradient_ratio,
    least_distinct_rows,
    least_variation,
    repeated_share,
    variation,
    without_dropout,
)

CELLS = st.sets(st.integers(0, 12))


def coordinates(chosen):
    """Ascending int64 coordinates."""
    return torch.tensor(sorted(chosen), dtype=torch.long)


@given(CELLS, CELLS, st.sets(st.integers(0, 12)))
def test_common_coordinates_are_found_by_their_place_at_the_server(before, now, moved):
    """Written out as dictionaries; submodels that roll have few coordinates in common."""
    value = torch.arange(13.0)
    later = value.clone()
    later[coordinates(moved)] += 0.5
    share = repeated_share(coordinates(before), value[coordinates(before)], coordinates(now), later[coordinates(now)])
    common = before & now
    if not common:
        assert math.isnan(share)
    else:
        assert share == pytest.approx(len(common - moved) / len(common))


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[1, 2], [1, 2], [1, 2], [1, 2]], 0.25),
        ([[1, 2], [2, 1], [1, 2], [2, 1]], 0.5),
        ([[1, 2], [2, 1], [3, 0], [2, 2]], 1.0),
        ([[0, 0], [0, 0], [0, 0], [2, 2]], 1.0),
        ([[0, 0], [-0.0, 0], [0, 0], [0, -0.0]], 0.25),
        ([[0.0, 1], [-0.0, 1], [2, 1], [3, 1]], 0.75),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_distinct_rows_are_counted(rows, share, dtype):
    """Silent units are left out unless there is nothing else; minus zero is zero."""
    assert distinct_rows(torch.tensor(rows, dtype=dtype)) == share


def test_rows_of_a_convolution_are_its_filters():
    """Duplicated filters count once."""
    filters = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    assert distinct_rows(torch.cat([filters, filters])) == 0.5


def test_variation_of_known_distributions():
    """A constant, noise around one, a start between 0 and a bound, and values around zero."""
    steps = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    assert variation(torch.full((4, 5), 0.25)) == 0
    assert variation(torch.zeros(4, 5)) == 0
    assert variation(0.25 * (1 + 0.3 * (2 * steps - 1))) == pytest.approx(0.3 / math.sqrt(3))
    assert variation(5e-4 * steps) == pytest.approx(1 / math.sqrt(3))
    assert variation(torch.tensor([1.0, -1.0])) == math.inf
    assert variation(-torch.tensor([1.0, 3.0])) == pytest.approx(0.5)


def test_the_worst_layer_counts_and_small_ones_do_not():
    """Biases and tensors of a handful of coordinates are not judged."""
    good, filled = torch.arange(32.0).view(4, 8) - 15.5, torch.ones(4, 4)
    assert least_variation([good, filled]) == 0
    assert least_distinct_rows([good, filled]) == 0.25
    small = [torch.ones(3, 5), torch.ones(64)]
    assert least_variation(small) == least_distinct_rows(small) == math.inf
    assert least_distinct_rows([*small, good]) == 1


def ratio(net, samples=8, inputs=6):
    """Gradient ratio on fixed samples."""
    draws = torch.Generator().manual_seed(3)
    images, labels = torch.rand(samples, inputs, generator=draws), torch.arange(samples) % 4
    return gradient_ratio(net, cross_entropy(net(images.to(next(net.parameters()).dtype)), labels))


def net_of(bias=True):
    """Two layers with the default initialisation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20, bias), nn.ReLU(), nn.Linear(20, 4, bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_constant_fill_suppresses_the_gradient(dtype):
    """Equal rows of the last layer get errors that add up to zero; a random last layer passes them on."""
    net = net_of().to(dtype)
    assert ratio(net) > 0.1
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.25)
    assert ratio(net) < 1e-6
    with torch.no_grad():
        net[2].weight.normal_(0, 0.25)
    assert ratio(net) > 0.1


def test_the_ratio_is_of_the_first_over_the_last_layer():
    """Against gradients that were taken one by one; what is stored as gradient stays as it was."""
    net = net_of()
    images, labels = torch.rand(8, 6), torch.arange(8) % 4
    loss = cross_entropy(net(images), labels)
    found = gradient_ratio(net, loss)
    assert all(parameter.grad is None for parameter in net.parameters())
    cross_entropy(net(images), labels).backward()
    assert found == pytest.approx(float(net[0].weight.grad.norm() / net[2].weight.grad.norm()), rel=1e-5)


def test_networks_without_a_ratio_give_no_number():
    """One layer is first and last; a last layer without gradient can tell nothing."""
    assert math.isnan(ratio(nn.Sequential(nn.Linear(6, 4))))
    silent = net_of()
    with torch.no_grad():
        silent[0].weight.fill_(-1.0)
        silent[0].bias.fill_(-1.0)
    assert math.isnan(ratio(silent))


def test_probing_draws_nothing():
    """Training mode, as the client would train, but without dropout."""
    net = without_dropout(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), SeededDropout(0.5), nn.Dropout(0.5)).eval())
    assert [layer.training for layer in net] == [True, True, False, False]
    before = torch.get_rng_state()
    net(torch.rand(4, 6, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(before, torch.get_rng_state())
