"""Noise that is correlated over rounds, against the matrices that it stands for."""

import numpy as np
import pytest
import torch

from app.privacy.correlated_noise import CorrelatedNoise, root_coefficients, squared_sensitivities

ROUNDS = 13
KINDS = [("tree", 1), ("banded", 1), ("banded", 4), ("banded", ROUNDS)]


def matrices(correlation, bands):
    """Encoder C, its rows in the order of the rounds, and the noise's decoder B, from what the class itself gives."""
    noise = CorrelatedNoise(correlation, bands)
    rows = [np.pad(row, (0, ROUNDS - len(row))) for round_ in range(ROUNDS) for row in noise.rows(round_)]
    units = iter(torch.eye(len(rows), dtype=torch.float64))
    rounds = [noise.next(lambda: next(units)).numpy() for _ in range(ROUNDS)]
    assert next(units, None) is None
    return np.stack(rows), np.cumsum(rounds, axis=0)


@pytest.mark.parametrize(("correlation", "bands"), KINDS)
def test_decoder_and_encoder_factor_the_prefix_sums(correlation, bands):
    """A = B C: what is released is the prefix sums, and noise B z, whose variances are the rows' squared norms."""
    encoder, decoder = matrices(correlation, bands)
    np.testing.assert_allclose(decoder @ encoder, np.tril(np.ones((ROUNDS, ROUNDS))), atol=1e-12)


def test_square_root_and_identity():
    """All bands: B = C, the square root of A. One band: fresh noise in every round."""
    encoder, decoder = matrices("banded", ROUNDS)
    np.testing.assert_allclose(encoder, decoder, atol=1e-12)
    np.testing.assert_allclose(root_coefficients(5), [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128])
    encoder, decoder = matrices("banded", 1)
    np.testing.assert_array_equal(encoder, np.eye(ROUNDS))
    np.testing.assert_allclose(decoder, np.tril(np.ones((ROUNDS, ROUNDS))), atol=1e-12)


def test_tree_has_honakers_variance():
    """1 / (2 - 2^-l) for a complete tree of l levels above its leaves; trees side by side add up."""
    _, decoder = matrices("tree", 1)
    variances = (decoder**2).sum(axis=1)
    assert [variances[2**level - 1] for level in range(4)] == pytest.approx(
        [1 / (2 - 2.0**-level) for level in range(4)]
    )
    assert variances[6] == pytest.approx(sum(1 / (2 - 2.0**-level) for level in range(3)))


@pytest.mark.parametrize(("correlation", "bands"), KINDS)
def test_sensitivity_is_that_of_the_worst_participation(correlation, bands):
    """Largest over clients of |C u| for the rounds u that a client is in; no changes of norm 1 move more."""
    rng = np.random.default_rng(0)
    present = rng.random((ROUNDS, 6)) < 0.4
    plan = [np.flatnonzero(row).tolist() for row in present]
    squares = squared_sensitivities(CorrelatedNoise(correlation, bands), plan, 6)
    encoder, _ = matrices(correlation, bands)
    assert squares[-1] == pytest.approx(((encoder @ present) ** 2).sum(axis=0).max())
    assert (np.diff(squares) >= 0).all()
    for _ in range(50):
        changes = rng.normal(size=(ROUNDS, 6, 3)) * present[..., None]
        changes /= np.maximum(np.linalg.norm(changes, axis=2, keepdims=True), 1e-12)
        moved = np.einsum("rt,tcd->rcd", encoder, changes)
        assert (moved**2).sum(axis=(0, 2)).max() <= squares[-1] * (1 + 1e-9)


def test_participation_decides_which_noise_is_better():
    """Largest variance of a prefix sum at one budget: the square root wins for one round per client, not for all."""

    def error(bands, plan):
        noise = CorrelatedNoise("banded", bands)
        _, decoder = matrices("banded", bands)
        return squared_sensitivities(noise, plan, ROUNDS)[-1] * (decoder**2).sum(axis=1).max()

    once, always = [[round_] for round_ in range(ROUNDS)], [list(range(ROUNDS))] * ROUNDS
    assert error(ROUNDS, once) < 0.5 * error(1, once)
    assert error(1, always) < error(ROUNDS, always)


def test_state_goes_on_where_it_was():
    """Bit for bit, at every round."""
    generator = torch.Generator().manual_seed(0)
    for correlation, bands in KINDS:
        whole, half = CorrelatedNoise(correlation, bands), CorrelatedNoise(correlation, bands)
        for _ in range(6):
            whole.next(lambda: torch.randn(2, generator=generator))
        half.load_state_dict(whole.state_dict())
        for _ in range(5):
            values = torch.randn(6, 2, generator=generator)
            first, second = iter(values), iter(values)
            assert torch.equal(whole.next(lambda it=first: next(it)), half.next(lambda it=second: next(it)))
