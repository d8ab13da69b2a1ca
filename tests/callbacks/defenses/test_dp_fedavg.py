"""DP-FedAvg: bounded influence, noise on the sum, fixed denominators, and a budget that is kept."""

import warnings
from functools import partial

import pytest
import torch
from federation_kit import (
    PICTURES,
    TINY_MLP,
    Blobs,
    Reader,
    Recorder,
    make_trainer,
    run,
    sgd,
    small_federation,
    whole_batch,
)
from scipy.stats import chi2

from app.common.errors import UserError
from app.federation.aggregation import QFFL, FedAvg
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset
from app.models import CNN, MLP
from callbacks.defenses.dp_fedavg import DPFedAvg

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
WIDE = partial(MLP, hidden=(64, 64))


def trained(*defenses, net=TINY_MLP, rounds=1, data=None, **settings):
    """Final vector, and recorders before and after the defenses."""
    before, after = Reader(), Recorder()
    federation = small_federation(net, local=LOCAL, **settings)
    vector = run(federation, data, rounds, callbacks=[before, *defenses, after])
    return vector, before, after, federation


@pytest.mark.parametrize("capacities", [None, [1.0, 0.5, 0.5]])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_without_noise_and_clipping_it_is_the_plain_mean(capacities, weighting):
    """All clients take part, so the expected weights are the actual ones."""
    plain, *_ = trained(rounds=2, capacities=capacities, weighting=weighting)
    defended, *_ = trained(DPFedAvg(noise=0.0, clip=float("inf")), rounds=2, capacities=capacities, weighting=weighting)
    torch.testing.assert_close(defended, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("capacities", [[1.0], [1.0, 0.5, 0.5]])
def test_a_client_changes_the_sum_by_at_most_the_norm(capacities):
    """Leaving out any one client moves the sum by at most S, and by hardly less where its change is clipped."""
    clip = 0.05

    class Absent(FederatedCallback):
        """Keeps one client away."""

        def __init__(self, client):
            self.client = client

        def withdraws(self, federation, client):
            return client == self.client

    def total(absent):
        _, _, after, federation = trained(DPFedAvg(noise=0.0, clip=clip), Absent(absent), capacities=capacities)
        mean, weight, _ = after.aggregates[0]
        return weight * (mean - after.started[0]), after, federation

    everyone, after, _ = total(-1)
    for _, sent, index in after.updates:
        assert (sent - after.started[0][index]).norm() <= clip * (1 + 1e-9)
    influence = [float((everyone - total(client)[0]).norm()) for client in range(3)]
    assert max(influence) <= clip * (1 + 1e-9)
    assert min(influence) > 0.9 * clip, "changes must be long enough to be clipped for the test to mean something"


def test_noise_on_the_sum_and_fixed_denominators():
    """Every coordinate's sum gets noise of z S, and is divided by the expected weight, whoever takes part."""
    settings = {"capacities": [1.0, 0.5, 0.5, 0.5], "participation": 0.5, "sampling": "poisson", "net": WIDE}
    data = Blobs((5, 8, 11, 6))
    _, before, after, federation = trained(DPFedAvg(noise=2.0, clip=0.3), data=data, rounds=3, **settings)
    narrow = torch.zeros(federation.space.size)
    narrow[federation.plan_of(0).index(1)] = 1
    expected = (0.5 * (1 + 3 * narrow)).double()
    takers, noises = set(), []
    for number, (mean, weight, _) in enumerate(after.aggregates):
        plain, actual, _ = before.aggregates[number]
        assert torch.equal(weight, expected)
        takers.add(len(federation.client_pool.participants(number)))
        start = after.started[number]
        noise = expected * (mean - start) - actual * (plain - start)
        noises.append(noise)
        low, high = chi2.ppf([0.0005, 0.9995], noise.numel()) / noise.numel()
        assert low <= float(noise.square().mean()) / 0.6**2 <= high
    assert len(takers) > 1
    assert (torch.corrcoef(torch.stack(noises)) - torch.eye(3)).abs().max() < 0.1, "else it could be subtracted"


def test_noise_moves_the_model_even_if_nobody_takes_part():
    """Else an empty round would show, whatever the server does with a mean; weights that no client can train stay."""
    settings = {"participation": 1e-6, "sampling": "poisson", "capacities": [0.5, 0.5, 0.5]}
    vector, _, after, federation = trained(DPFedAvg(noise=1.0), **settings)
    half, *_ = trained(DPFedAvg(noise=1.0), server=partial(FedAvg, lr=0.5), **settings)
    torch.testing.assert_close(half - after.started[0], (vector - after.started[0]) / 2)
    assert not federation.client_pool.participants(0)
    trainable = torch.zeros(federation.space.size, dtype=torch.bool)
    trainable[federation.plan_of(0).index(0)] = True
    assert (vector != after.started[0])[trainable].all()
    assert torch.equal(vector[~trainable], after.started[0][~trainable])


def test_huge_noise_destroys_the_model():
    """A multiplier of 1000."""

    def accuracy(noise):
        federation = small_federation(local=whole_batch(lr=2.0, epochs=10))
        run(federation, Blobs((20, 20, 20), tests=100), rounds=5, callbacks=[DPFedAvg(noise=noise, clip=5.0)])
        return federation.report.server.accuracy

    assert accuracy(0.0) > 0.9
    assert accuracy(1000.0) < 0.7


def test_weights_are_bounded():
    """A client with max_samples or more counts fully, a smaller one in proportion."""
    _, _, after, _ = trained(DPFedAvg(noise=0.0, max_samples=8), weighting="samples")
    assert torch.equal(after.aggregates[0][1], torch.full_like(after.aggregates[0][1], 5 / 8 + 1 + 1))


@pytest.mark.parametrize(("accountant", "epsilon"), [("rdp", 5.64), ("prv", 4.80)])
def test_epsilon_counts_the_sampling_of_clients(accountant, epsilon):
    """q = .1, z = 1, 100 rounds, delta 1e-3."""
    defense = DPFedAvg(noise=1.0, delta=1e-3, accountant=accountant)
    federation = small_federation(local=LOCAL, participation=0.1, sampling="poisson")
    data = Blobs((1,) * 20)
    run(federation, data, rounds=1, callbacks=[defense])
    for round_ in range(1, 100):
        defense.ledger.enter(round_, "", defense.ledger.entered(0, ""))
    statement = defense.statement(federation)
    assert statement.epsilon == pytest.approx(epsilon, abs=0.006)
    assert (statement.unit, statement.nominal, statement.sampling) == (
        "client",
        False,
        "Poisson over clients, rate 0.1",
    )


def test_a_budget_chooses_the_noise_and_is_kept():
    """The run ends within the budget, and not far below it."""
    defense = DPFedAvg(target_epsilon=3.0)
    _, before, _, federation = trained(defense, rounds=5)
    assert len(before.aggregates) == 5
    assert 2.9 < defense.statement(federation).epsilon <= 3.0
    assert defense.measurements()["dp_fedavg/epsilon"] == defense.statement(federation).epsilon


def test_the_run_ends_when_the_budget_is_spent():
    """With noise and a budget, rounds are cut; one more would have exceeded it."""
    defense = DPFedAvg(target_epsilon=6.0, noise=2.0)
    federation = small_federation(TINY_MLP, local=LOCAL)
    trainer = make_trainer(50, callbacks=[defense])
    with pytest.warns(UserWarning, match="budget is spent after"):
        trainer.fit(federation, datamodule=Blobs())
    assert 1 < trainer.current_epoch < 50
    assert defense.statement(federation).epsilon <= 6.0 < defense._epsilon(federation, following=0)


def test_resuming_keeps_the_budget(tmp_path):
    """Epsilon and the model after an interruption are those of the uninterrupted run."""

    def fit(rounds, checkpoint=None):
        federation, defense = small_federation(TINY_MLP, local=LOCAL), DPFedAvg(noise=1.0)
        trainer = make_trainer(rounds, callbacks=[defense])
        trainer.fit(federation, datamodule=Blobs(), ckpt_path=checkpoint, weights_only=True)
        return trainer, federation, defense

    whole = fit(4)
    half, *_ = fit(2)
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = fit(4, tmp_path / "half.ckpt")
    epsilons = [defense.statement(federation).epsilon for _, federation, defense in (whole, resumed)]
    assert epsilons[0] == epsilons[1]
    assert torch.equal(*[federation.space.read(federation.net) for _, federation, _ in (whole, resumed)])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"net": partial(CNN, u=4, statistics="running")}, "running statistics"),
        ({"server": QFFL}, "by their loss"),
        ({"local": LocalTraining(mask_labels=True, optimizer=sgd())}, "mask_labels"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(settings, words):
    """Statistics without noise, weights by loss, rows chosen by classes."""
    federation = small_federation(**{"net": TINY_MLP, "local": LOCAL, **settings})
    with pytest.raises(UserError, match=words):
        run(federation, Blobs(shape=PICTURES), rounds=1, callbacks=[DPFedAvg(noise=1.0)])


def test_a_fixed_number_of_clients_is_warned_of_and_labelled():
    """The accountant assumes a coin per client."""
    defense, federation = DPFedAvg(noise=1.0), small_federation(TINY_MLP, local=LOCAL, participation=0.5)
    with pytest.warns(UserWarning, match="fixed number of participants"):
        run(federation, rounds=1, callbacks=[defense])
    assert defense.statement(federation).nominal
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(small_federation(TINY_MLP, local=LOCAL), rounds=1, callbacks=[DPFedAvg(noise=1.0)])


def test_under_every_kind_of_submodel_the_expected_weights_are_those_of_the_plan():
    """Federated Dropout: each client has its own coordinates in every round."""
    settings = {"capacities": [1.0, 0.5, 0.5], "method": ChannelSubset.preset("fdropout")}
    _, _, after, federation = trained(DPFedAvg(noise=0.1), rounds=2, **settings)
    for number, (_, weight, _) in enumerate(after.aggregates):
        expected = torch.zeros(federation.space.size, dtype=torch.float64)
        for client in range(3):
            expected[federation.plan_of(number).index(client)] += 1
        assert torch.equal(weight, expected)


def test_bad_settings_are_refused_together():
    """No budget, no bound, and a delta as large as one client in all."""
    with pytest.raises(UserError) as error:
        trained(DPFedAvg(clip=float("inf"), delta=0.4))
    causes = " / ".join(problem.cause for problem in error.value.problems)
    for words in ("neither a budget nor noise", "clip of DPFedAvg is infinite", "delta"):
        assert words in causes
    for name, wrong in {"target_epsilon": -1.0, "noise": -1.0, "clip": 0.0, "max_samples": 0}.items():
        with pytest.raises(UserError, match=f"{name} is {wrong}"):
            trained(DPFedAvg(**{"noise": 1.0, name: wrong}))
