"""DP-FTRL and adaptive clipping through the federation: identity, budgets, and resumption."""

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Reader, Recorder, make_trainer, run, sgd, small_federation

from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.privacy.accounting import analytic_epsilon, composed_epsilon
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_ftrl import DPFTRL

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
SIZES = (5, 8, 11, 6)


def fit(defense, rounds=4, checkpoint=None, **settings):
    """The trainer and the federation."""
    federation = small_federation(TINY_MLP, local=LOCAL, **settings)
    trainer = make_trainer(rounds, callbacks=[defense])
    trainer.fit(federation, datamodule=Blobs(SIZES), ckpt_path=checkpoint, weights_only=True)
    return trainer, federation


def vector(federation):
    return federation.space.read(federation.net)


@pytest.mark.parametrize("correlation", ["tree", "banded"])
def test_without_noise_it_is_the_plain_mean(correlation):
    """Also with unequal submodels."""
    settings = {"net": TINY_MLP, "local": LOCAL, "capacities": [1.0, 0.5, 0.5, 1.0]}
    plain = run(small_federation(**settings), Blobs(SIZES), 3)
    free = DPFTRL(noise=0.0, clip=float("inf"), correlation=correlation)
    torch.testing.assert_close(run(small_federation(**settings), Blobs(SIZES), 3, callbacks=[free]), plain)


def test_one_band_is_dp_fedavg_bit_for_bit():
    """With all clients in every round, noise and budget."""
    banded, independent = DPFTRL(noise=1.0, bands=1), DPFedAvg(noise=1.0)
    (_, one), (_, other) = fit(banded), fit(independent)
    assert torch.equal(vector(one), vector(other))
    assert banded.statement(one).epsilon == independent.statement(other).epsilon


@pytest.mark.parametrize("correlation", ["tree", "banded"])
def test_epsilon_is_that_of_one_gaussian_mechanism(correlation):
    """At the sensitivity of the public plan: what all rounds add up to, exactly; less for a client in few rounds."""
    defense = DPFTRL(noise=2.0, clip=0.3, correlation=correlation, delta=1e-5)
    _, federation = fit(defense, participation=0.5)
    sensitivity = defense._encoded(federation)[-1] ** 0.5
    spent = composed_epsilon(defense.ledger.history(-1), 1e-5)
    assert spent == pytest.approx(analytic_epsilon(2.0 / sensitivity, 1e-5), rel=1e-6)
    everywhere = DPFTRL(noise=2.0, correlation=correlation)
    _, all_rounds = fit(everywhere)
    assert everywhere._encoded(all_rounds)[-1] > sensitivity**2
    statement = defense.statement(federation)
    assert (statement.nominal, statement.sampling) == (False, "public plan")


def test_budget_is_kept_and_hardly_less():
    """By the noise that is chosen for the planned rounds."""
    defense = DPFTRL(target_epsilon=4.0, accountant="prv")
    _, federation = fit(defense, participation=0.5)
    assert 3.9 < defense.statement(federation).epsilon <= 4.0


@pytest.mark.parametrize("correlation", ["tree", "banded"])
def test_resumed_run_ends_bit_for_bit_where_the_whole_one_does(tmp_path, correlation):
    """Noise of earlier rounds is in the checkpoint."""
    _, whole = fit(DPFTRL(noise=1.0, correlation=correlation), 5)
    half, _ = fit(DPFTRL(noise=1.0, correlation=correlation), 3)
    half.save_checkpoint(tmp_path / "half.ckpt")
    defense = DPFTRL(noise=1.0, correlation=correlation)
    _, resumed = fit(defense, 5, tmp_path / "half.ckpt")
    assert torch.equal(vector(resumed), vector(whole))


def test_coins_are_refused():
    """The sensitivity rests on a public plan."""
    with pytest.raises(UserError, match="drawn by coins"):
        fit(DPFTRL(noise=1.0), sampling="poisson", participation=0.5)


def test_noise_of_neighbouring_rounds_cancels():
    """The sum over rounds has the noise of the matrix product, less than independent noise would have."""
    before, after, defense = Reader(), Recorder(), DPFTRL(noise=3.0, clip=1e-3, bands=8)
    federation = small_federation(TINY_MLP, local=LOCAL, capacities=[1.0])
    run(federation, Blobs((6,)), 8, callbacks=[before, defense, after])
    noise = sum(
        (mean - plain).double() for (mean, _, _), (plain, _, _) in zip(after.aggregates, before.aggregates, strict=True)
    )
    first, last = noise.norm(), after.aggregates[0][0].numel() ** 0.5 * 3e-3
    assert 1.0 < float(first / last) < 1.8 < 8**0.5


def test_norm_moves_to_the_quantile_and_survives_a_restart(tmp_path):
    """From a norm far too large, without noise; a resumed run goes on with the norm it had."""
    settings = {"noise": 0.0, "clip": 50.0, "quantile": 0.5, "clip_rate": 1.0}
    whole = DPFedAvg(**settings)
    _, ended = fit(whole, 6)
    assert whole.measurements()["dp_fedavg/clip"] == pytest.approx(50.0 * 2.718281828 ** (-0.5 * 6))
    half, _ = fit(DPFedAvg(**settings), 3)
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = DPFedAvg(**settings)
    _, federation = fit(resumed, 6, tmp_path / "half.ckpt")
    assert resumed._norm == whole._norm == resumed.statement(federation).clip
    assert torch.equal(vector(federation), vector(ended))


def test_bits_are_part_of_the_budget():
    """Changes get more noise for them, and epsilon is that of the noise alone."""
    adaptive, fixed = DPFedAvg(noise=1.0, quantile=0.5, count_noise=1.0), DPFedAvg(noise=1.0)
    (_, one), (_, other) = fit(adaptive, 2), fit(fixed, 2)
    assert adaptive.statement(one).epsilon == fixed.statement(other).epsilon
    assert adaptive._change_noise(one, 1.0) == pytest.approx((1 - 1 / 4) ** -0.5)
    with pytest.raises(UserError, match="on the number of unclipped clients"):
        fit(DPFedAvg(noise=1.0, quantile=0.5, count_noise=0.4), 1)
    (_, few) = fit(DPFedAvg(noise=1.0, quantile=0.5), 1)
    assert DPFedAvg(noise=1.0, quantile=0.5)._change_noise(few, 1.0) == pytest.approx((1 - 1 / 4) ** -0.5)
