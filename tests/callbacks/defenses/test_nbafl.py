"""NbAFL: clipped weights, noise of the stated size on the way up and down, and an honest label."""

import math
import warnings
from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Reader, Recorder, run, sgd, small_federation
from scipy.stats import chi2

from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.models import CNN, MLP
from app.privacy.accounting import analytic_epsilon
from callbacks.defenses.nbafl import NbAFL

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
WIDE = partial(MLP, hidden=(64, 64))


def trained(*defenses, net=WIDE, rounds=1, data=None, **settings):
    """Final vector, uploads before and after the defense, and the aggregate before and after its second half."""
    before, after = Reader(), Recorder()
    federation = small_federation(net, local=LOCAL, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vector = run(federation, data, rounds, callbacks=[before, *defenses, after])
    return vector, before, after, federation


def assert_deviation(noise, expected):
    """The empirical variance lies in the central 99.9 % of its chi-square law."""
    low, high = chi2.ppf([0.0005, 0.9995], noise.numel()) / noise.numel()
    assert low <= float(noise.square().mean()) / expected**2 <= high


@pytest.mark.parametrize("variant", ["theorem", "weight-clip"])
def test_noise_on_the_way_up(variant):
    """Upload minus clipped weights is Gaussian noise of the calibrated size, another one for every client."""
    defense = NbAFL(epsilon=20.0, clip=1.0, delta=1e-3, variant=variant)
    _, before, after, federation = trained(defense)
    up, _ = defense.noise(federation)
    noises = []
    for place, (_, sent, _) in enumerate(after.updates):
        own = before.updates[place][1]
        assert own.norm() > 1.0
        noises.append(sent - own / own.norm())
        assert_deviation(noises[-1], up)
    assert abs(torch.corrcoef(torch.stack(noises)) - torch.eye(3)).max() < 0.1
    assert defense.measurements()["nbafl/noise_up"] == up


def test_noise_on_the_way_down():
    """Added to the mean by the theorem, not by the compared code."""
    defense = NbAFL(epsilon=5.0, clip=3.0, delta=1e-3, exposures=1)
    _, before, after, federation = trained(defense, rounds=4)
    _, down = defense.noise(federation)
    assert down > 0
    for (mean, _, _), (noised, _, _) in zip(before.aggregates, after.aggregates, strict=True):
        assert_deviation(noised - mean, down)
    compared = NbAFL(epsilon=5.0, clip=3.0, delta=1e-3, exposures=1, variant="weight-clip")
    _, before, after, _ = trained(compared, rounds=4)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(before.aggregates, after.aggregates, strict=True))


def test_noise_of_different_rounds_is_independent():
    """Else it could be subtracted."""
    defense = NbAFL(epsilon=20.0, clip=1.0, delta=1e-3)
    _, before, after, _ = trained(defense, rounds=2)
    noise = [sent - own / own.norm() for (_, sent, _), (_, own, _) in zip(after.updates, before.updates, strict=True)]
    assert abs(torch.corrcoef(torch.stack([noise[0], noise[3]]))[0, 1]) < 0.1


def test_a_short_vector_is_not_clipped_and_a_huge_budget_is_no_defense():
    """Clipping alone never lengthens; epsilon to infinity leaves plain training."""
    plain, *_ = trained(rounds=2)
    defended, *_ = trained(NbAFL(epsilon=1e12, clip=1e6, delta=1e-3), rounds=2)
    torch.testing.assert_close(defended, plain, rtol=0, atol=1e-4)


def test_a_tiny_budget_destroys_the_model():
    """Noise of many times the weights."""
    vector, _, _, federation = trained(NbAFL(epsilon=1e-3, clip=10.0, delta=1e-3))
    assert vector.norm() > 1e4
    assert federation.report.server.accuracy < 0.7


def test_buffers_are_not_noised():
    """A running variance must stay what it was."""
    net = partial(CNN, u=4, statistics="running")
    _, before, after, federation = trained(NbAFL(delta=1e-3), net=net, data=Blobs(shape=PICTURES))
    start = federation.space.trainable
    for one, other in zip(before.updates, after.updates, strict=True):
        assert torch.equal(one[1][start:], other[1][start:])
        assert not torch.equal(one[1][:start], other[1][:start])
    assert torch.equal(before.aggregates[0][0][start:], after.aggregates[0][0][start:])


def test_coordinates_that_nobody_sent_get_no_noise():
    """The server has no mean to noise there."""
    defense = NbAFL(epsilon=5.0, delta=1e-3, exposures=1)
    _, before, after, _ = trained(defense, capacities=[0.5, 0.5, 0.5], rounds=4)
    (mean, weight, _), (noised, _, _) = before.aggregates[0], after.aggregates[0]
    assert (weight == 0).any()
    assert torch.equal(mean[weight == 0], noised[weight == 0])
    assert (mean[weight > 0] != noised[weight > 0]).all()


def test_the_nominal_budget_is_called_nominal():
    """In the warning before the run and in the record after it, with what the noise really proves."""
    federation, defense = small_federation(TINY_MLP, local=LOCAL), NbAFL(epsilon=8.0, delta=1e-3)
    with pytest.warns(UserWarning, match="nominal, not a guarantee"):
        run(federation, rounds=2, callbacks=[defense])
    statement = defense.statement(federation)
    assert statement.nominal
    assert not statement.meaningful
    assert statement.epsilon == 8.0
    assert "nominal" in statement.line()
    assert any("proves an epsilon of" in note for note in statement.notes)


def test_worst_case_noise_proves_its_epsilon():
    """Sensitivity 2C instead of 2C/m: m times the noise; the proof is by exact composition over a client's uploads."""
    published, proved = (NbAFL(0.9, 1e-3, sensitivity=kind) for kind in ("published", "worst-case"))
    _, _, _, federation = trained(published, rounds=2)
    assert proved.noise(federation)[0] == pytest.approx(5 * published.noise(federation)[0])
    _, _, _, federation = trained(proved, rounds=2)
    statement = proved.statement(federation)
    assert not statement.nominal
    assert statement.meaningful
    assert statement.epsilon == analytic_epsilon(proved.noise(federation)[0] / (2 * 30.0), 1e-3, releases=2) < 0.9
    assert dict(statement.clients) == dict.fromkeys(range(3), statement.epsilon)


def test_only_the_rounds_of_a_client_are_counted():
    """Partial participation: a client that uploads once has spent less than one that uploads twice."""
    defense = NbAFL(2.0, 1e-3, sensitivity="worst-case", variant="weight-clip")
    _, _, _, federation = trained(defense, rounds=5, participation=0.4, data=Blobs((5, 6, 7, 8, 9)))
    uploads = [client for round_ in range(5) for client in federation.client_pool.participants(round_)]
    spent = dict(defense.statement(federation).clients)
    assert set(spent) == set(uploads)
    ranked = sorted(spent, key=lambda client: spent[client])
    assert [uploads.count(client) for client in ranked] == sorted(uploads.count(client) for client in ranked)
    assert len(set(spent.values())) == len({uploads.count(client) for client in spent}) > 1


def test_secret_noise_differs_from_run_to_run():
    """And keyed noise does not."""
    keyed = [trained(NbAFL(delta=1e-3))[0] for _ in range(2)]
    secret = [trained(NbAFL(delta=1e-3, secret_noise=True))[0] for _ in range(2)]
    assert torch.equal(*keyed)
    assert not torch.equal(*secret)


def test_bad_settings_are_refused_together():
    """Budget, norm, delta and exposures; delta is measured against the largest client, exposures against the run."""
    with pytest.raises(UserError) as error:
        trained(NbAFL(epsilon=-1.0, clip=0.0, delta=0.0, exposures=0), rounds=2)
    causes = [problem.cause.split()[0] for problem in error.value.problems]
    assert causes == [f"--defenses.NAME.{name}" for name in ("epsilon", "delta", "clip", "exposures")]
    with pytest.raises(UserError) as error:
        trained(NbAFL(delta=0.1, exposures=3), rounds=2)
    assert [problem.cause.split()[0] for problem in error.value.problems] == ["delta", "exposures"]
    with pytest.raises(UserError, match="logarithm"):
        trained(NbAFL(epsilon=1e3, delta=1e-3, exposures=1), rounds=2, participation=0.4)
    assert math.isfinite(trained(NbAFL(delta=0.09))[0].sum())
