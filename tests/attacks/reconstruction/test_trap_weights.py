"""Trap weights: signs, scales, and how many images fire alone."""

import pytest
import torch

from app.attacks.reconstruction.active.trap_weights import Calibration, TrapWeights
from app.common.ranges import range_problems


def drawn(seed=0):
    """A generator."""
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("layout", "axis"), [("row", 1), ("column", 0)])
def test_half_of_every_line_is_negative_and_the_rest_smaller(layout, axis):
    """Positive weights have the sizes of the negative ones, times the scale."""
    weights = TrapWeights(layout=layout, scale=0.8).matrix(30, 20, drawn())
    lines = weights if axis == 1 else weights.T
    for line in lines:
        negative, positive = (-line[line < 0]).sort().values, line[line > 0].sort().values
        assert len(negative) == len(positive) == lines.shape[1] // 2
        torch.testing.assert_close(positive, 0.8 * negative)


def test_odd_lines_have_one_more_negative():
    """The sum of a line is negative in any case."""
    weights = TrapWeights(scale=1.0).matrix(50, 7, drawn())
    assert ((weights < 0).sum(dim=1) == 4).all()


def test_lines_differ_and_are_shuffled():
    """Signs are dealt anew to every line."""
    signs = TrapWeights().matrix(40, 64, drawn()).sign()
    assert len(torch.unique(signs, dim=0)) == 40


def test_same_generator_same_weights():
    """Everybody who is to get the same model gets it."""
    assert torch.equal(TrapWeights().matrix(5, 6, drawn(3)), TrapWeights().matrix(5, 6, drawn(3)))


def alone(traps, images, rows, seed):
    """Share of the images that some row fires for alone."""
    fires = images @ traps.matrix(rows, images.shape[1], drawn(seed)).T > 0
    single = fires & (fires.sum(dim=0, keepdim=True) == 1)
    return float(single.any(dim=1).float().mean())


def test_share_that_fires_alone_is_that_of_independent_rows():
    """Ten images of 64 uniform pixels, 100 rows: 1 - (1 - q (1 - q)^9)^100 for a row that fires with chance q."""
    traps = TrapWeights(scale=0.9)
    batches = [torch.rand(10, 64, generator=drawn(1000 + seed)) for seed in range(60)]
    chance = float((torch.cat(batches) @ traps.matrix(2000, 64, drawn(1)).T > 0).float().mean())
    shares = [alone(traps, batch, 100, seed) for seed, batch in enumerate(batches)]
    expected = 1 - (1 - chance * (1 - chance) ** 9) ** 100
    assert 0.65 < expected < 0.9
    assert abs(sum(shares) / len(shares) - expected) < 0.08


def test_calibrated_biases_make_rows_fire_for_one_image_of_the_batch():
    """On images around 0, for which half of all rows fire without a bias, nearly every image gets a row of its own."""
    own, batches = torch.randn(800, 64, generator=drawn(1)), torch.randn(20, 20, 64, generator=drawn(2))
    weights = TrapWeights().matrix(400, 64, drawn(3))
    biases = Calibration(own, 20).biases(weights)

    def found(shift):
        fires = batches @ weights.T + shift > 0
        single = fires & (fires.sum(dim=1, keepdim=True) == 1)
        return float(fires.float().mean()), float(single.any(dim=2).float().mean())

    chance, share = found(biases)
    assert abs(chance - 1 / 20) < 0.01
    assert share > 0.95
    assert found(0.0)[1] < 0.1


def test_a_single_image_makes_every_row_fire():
    """There is nobody else to tell it from."""
    own = torch.randn(500, 16, generator=drawn(1))
    weights = TrapWeights().matrix(30, 16, drawn(3))
    assert ((own @ weights.T + Calibration(own, 1).biases(weights) >= 0).float().mean()) > 0.99


def test_loud_layers_follow_small_traps():
    """Loud output weights, no output bias, and traps that are smaller by the square of the loudness."""
    quiet, loud = TrapWeights(), TrapWeights(output="loud", loudness=10.0)
    torch.testing.assert_close(loud.matrix(4, 6, drawn()) * 100, quiet.matrix(4, 6, drawn()))
    assert abs(float(loud.behind((100, 50), drawn()).std()) - 10) < 0.5
    assert not loud.behind((7,), drawn()).any()
    assert quiet.behind((7, 3), drawn()) is None


@pytest.mark.parametrize(
    ("settings", "what"), [({"sigma": 0.0}, "sigma"), ({"scale": 1.5}, "scale"), ({"loudness": -1.0}, "loudness")]
)
def test_nonsense_is_refused(settings, what):
    """With the name of the setting."""
    assert [problem.cause.split()[0] for problem in range_problems(TrapWeights(**settings))] == [what]
