"""Distributed differential privacy: what sums get, whoever drops out; and the budget that pays for it."""

import math
import warnings
from functools import partial

import pytest
import torch
from accounting_oracle import rdp_oracle
from channel_kit import ENCRYPTED, NET, SIMULATED, SIZES, Dying, over
from federation_kit import PICTURES, TINY_MLP, Blobs, Recorder, make_trainer, run, sgd, small_federation, whole_batch
from scipy.stats import chi2

from app.common.errors import UserError
from app.federation.aggregation import QFFL
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import FedRolex
from app.models import CNN
from app.privacy.accounting import Steps
from callbacks.defenses.distributed_dp import DistributedDP
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.secure_aggregation import SecureAggregation

LOCAL = LocalTraining(batch_size=8, optimizer=sgd(0.2))
MASKED = partial(SecureAggregation, k=2)
CHANNELS = {"masked": MASKED, "simulated": SIMULATED, "paillier": ENCRYPTED}
WIDTHS = [1.0, 0.5, 0.5, 0.5, 1.0, 0.5, 1.0, 0.5]
"""Three clients hold all coordinates, eight those of the narrow ones."""


def trained(*defenses, rounds=1, net=NET, sizes=SIZES, **settings):
    """What the clients sent and the server got, and the federation."""
    recorder = Recorder()
    federation = small_federation(**{"net": net, "local": LOCAL, "capacities": WIDTHS, **settings})
    run(federation, Blobs(tuple(sizes)), rounds, callbacks=[*defenses, recorder])
    return recorder, federation


def clipped_sum(recorder, round_, clip, weights=None, clients=range(8)):
    """The oracle: the clients' changes, clipped and weighted, added up in floating point."""
    start = recorder.started[round_].double()
    total = torch.zeros_like(start)
    for client, vector, index in recorder.updates[8 * round_ : 8 * round_ + 8]:
        change = vector - start[index]
        factor = min(1.0, clip / float(change.norm().clamp(min=1e-9))) * (weights[client] if weights else 1)
        if client in clients:
            total[index] += factor * change
    return total


def noise_of(recorder, round_, clip, **settings):
    """What a round's sums hold beside the changes."""
    mean, weight, _ = recorder.aggregates[round_]
    return weight * (mean - recorder.started[round_]) - clipped_sum(recorder, round_, clip, **settings)


def is_noise(values, deviation):
    """Whether the variance of values is that of Gaussian noise, up to the growth of the norm by rounding."""
    low, high = chi2.ppf([1e-4, 1 - 1e-4], values.numel()) / values.numel()
    return low <= float((values / deviation).square().mean()) <= high * 1.02


def narrow_cells(federation):
    """(coordinates) bool, those of the narrow clients."""
    narrow = torch.zeros(federation.space.size, dtype=torch.bool)
    narrow[federation.plan_of(0).index(1)] = True
    return narrow


@pytest.mark.parametrize("channel", CHANNELS)
def test_without_noise_it_is_the_sum_of_clipped_updates(channel):
    """HeteroFL of two widths, up to the rounding."""
    recorder, _ = trained(CHANNELS[channel](), DistributedDP(noise=0.0, clip=0.1, bits=32))
    assert noise_of(recorder, 0, 0.1).abs().max() < 1e-5
    assert recorder.aggregates[0][1].max() == recorder.aggregates[0][2] == 8
    assert clipped_sum(recorder, 0, 0.1).norm() > 0.1


def test_weights_by_samples_are_at_most_1():
    """In proportion to the samples of the largest client."""
    recorder, _ = trained(MASKED(), DistributedDP(noise=0.0, clip=0.1, bits=32), weighting="samples")
    weights = [size / max(SIZES) for size in SIZES]
    assert noise_of(recorder, 0, 0.1, weights=weights).abs().max() < 1e-4
    assert float(recorder.aggregates[0][1].max()) == pytest.approx(sum(weights), rel=1e-4)


@pytest.mark.parametrize("mechanism", ["gaussian", "skellam"])
@pytest.mark.parametrize("channel", ["masked", "simulated"])
def test_all_sums_have_the_stated_noise(channel, mechanism):
    """Those of three and those of eight contributors, where nobody may drop out; another one in every round."""
    noise, clip = 3.0, 0.1
    defense = DistributedDP(noise=noise, clip=clip, mechanism=mechanism, dropouts=0.0, colluders=0, bits=16)
    recorder, federation = trained(CHANNELS[channel](), defense, rounds=4)
    noises = torch.stack([noise_of(recorder, round_, clip) for round_ in range(4)])
    for block in (narrow_cells(federation), ~narrow_cells(federation)):
        assert is_noise(noises[:, block].flatten(), noise * clip)
    assert (torch.corrcoef(noises) - torch.eye(4)).abs().max() < 0.3, "else it could be subtracted"


@pytest.mark.parametrize("gone", [(), (3,), (0, 3)])
def test_drop_outs_leave_the_stated_noise(gone):
    """A third may drop out and one client reveal its noise: 2 of 3 and 6 of 8 must stay, 1 and 5 noises be enough."""
    noise, clip = 3.0, 0.1
    defense = DistributedDP(noise=noise, clip=clip)
    recorder, federation = trained(over(Dying(gone, "masked"), MASKED), defense)
    clients = set(range(8)) - set(gone)
    values, narrow = noise_of(recorder, 0, clip, clients=clients), narrow_cells(federation)
    wide = len(clients & {0, 4, 6})
    assert is_noise(values[narrow], noise * clip * math.sqrt(len(clients) / 5))
    assert is_noise(values[~narrow], noise * clip * math.sqrt(wide))


@pytest.mark.parametrize(("channel", "step"), [("masked", "masked"), ("paillier", "ciphertext")])
def test_where_too_many_drop_out_no_sum_is_read(channel, step):
    """Two of the three wide clients: what the third adds is too little, although the narrow ones are enough."""
    defense = DistributedDP(noise=1.0, clip=0.1)
    with pytest.warns(UserWarning, match="less noise than they need"):
        recorder, _ = trained(over(Dying((0, 4), step), CHANNELS[channel]), defense)
    mean, weight, count = recorder.aggregates[0]
    assert (count, float(weight.max())) == (0, 0.0)
    assert torch.equal(mean, recorder.started[0].double())


class Bending(FederatedCallback):
    """A defense after which one client's update is what a test says."""

    def __init__(self, value):
        self.value = value

    def on_client_update(self, trainer, federation, update):
        """Half of the coordinates."""
        if update.client == 5:
            update.vector[::2] = self.value


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, -1e30])
@pytest.mark.parametrize("first", [True, False])
def test_no_update_moves_a_sum_by_more_than_the_norm(value, first):
    """Neither does it keep its client out, where its values are finite or bent before."""
    clip, defenses = 0.1, [DistributedDP(noise=0.0, clip=0.1, bits=32), Bending(value)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder, _ = trained(MASKED(), *(reversed(defenses) if first else defenses))
    mean, weight, count = recorder.aggregates[0]
    total = weight * (mean - recorder.started[0])
    others = clipped_sum(recorder, 0, clip, clients=set(range(8)) - {5})
    assert float((total - others).norm()) <= clip * (1 + 1e-4)
    assert count == (8 if first or math.isfinite(value) else 7)


def test_huge_noise_destroys_the_model():
    """A multiplier of 200."""

    def accuracy(noise):
        federation = small_federation(local=whole_batch(lr=2.0, epochs=10))
        defenses = [MASKED(), DistributedDP(noise=noise, clip=5.0, bits=32)]
        run(federation, Blobs((20, 20, 20), tests=100), rounds=5, callbacks=defenses)
        return federation.report.server.accuracy

    assert accuracy(0.0) > 0.9
    assert accuracy(200.0) < 0.7


@pytest.mark.parametrize("mechanism", ["gaussian", "skellam"])
def test_a_budget_chooses_the_noise_and_is_kept(mechanism):
    """Epsilon is dp-accounting's of Gaussian noise with the multiplier that bounds the mechanism."""
    defense = DistributedDP(target_epsilon=3.0, mechanism=mechanism, bits=24)
    _, federation = trained(MASKED(), defense, rounds=5)
    statement = defense.statement(federation)
    assert 2.9 < statement.epsilon <= 3.0
    assert (statement.unit, statement.nominal, len(statement.clients)) == ("client", False, 8)
    assert defense.measurements()["distributed_dp/epsilon"] == statement.epsilon
    truth = rdp_oracle([Steps(statement.noise, 1.0, 5)], statement.delta)
    assert statement.epsilon == pytest.approx(truth, rel=0.01)


def test_only_rounds_that_a_client_takes_part_in_count():
    """Four of eight in every round: nobody in all six."""
    defense = DistributedDP(target_epsilon=4.0, bits=24, dropouts=0.0)
    channel = SecureAggregation(allow_singletons=True)
    _, federation = trained(channel, defense, rounds=6, participation=0.5, capacities=None)
    spent = dict(defense.statement(federation).clients)
    rounds = {client: sum(client in federation.client_pool.participants(one) for one in range(6)) for client in spent}
    assert len(set(rounds.values())) > 1
    for client, epsilon in spent.items():
        truth = rdp_oracle([Steps(defense.statement(federation).noise, 1.0, rounds[client])], 1e-5)
        assert epsilon == pytest.approx(truth, rel=0.01)
    assert 3.9 < max(spent.values()) <= 4.0


def test_the_run_ends_when_a_budget_is_spent():
    """One more round would have exceeded it."""
    defense = DistributedDP(target_epsilon=6.0, noise=2.0)
    federation = small_federation(TINY_MLP, local=LOCAL)
    trainer = make_trainer(50, callbacks=[MASKED(), defense])
    with pytest.warns(UserWarning, match="budget is spent after"):
        trainer.fit(federation, datamodule=Blobs())
    assert 1 < trainer.current_epoch < 50
    assert defense.statement(federation).epsilon <= 6.0 < defense._spent(federation, 0, further=1)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """The model bit for bit, and the ledger; more rounds get more noise, and stay within the target."""

    def fit(rounds, checkpoint=None, **settings):
        federation, defense = small_federation(TINY_MLP, local=LOCAL), DistributedDP(**settings)
        trainer = make_trainer(rounds, callbacks=[defense, MASKED()])
        trainer.fit(federation, datamodule=Blobs(), ckpt_path=checkpoint, weights_only=True)
        return trainer, federation, defense

    whole = fit(4, noise=1.0)
    fit(2, noise=1.0)[0].save_checkpoint(tmp_path / "half.ckpt")
    resumed = fit(4, tmp_path / "half.ckpt", noise=1.0)
    assert torch.equal(*[federation.space.read(federation.net) for _, federation, _ in (whole, resumed)])
    assert whole[2].state_dict() == resumed[2].state_dict()
    fit(2, target_epsilon=8.0)[0].save_checkpoint(tmp_path / "short.ckpt")
    _, federation, longer = fit(4, tmp_path / "short.ckpt", target_epsilon=9.0)
    noises = {steps.noise for steps in longer.ledger.history(0)}
    assert len(noises) == 2
    assert 8.9 < longer.statement(federation).epsilon <= 9.0


class Watch(FederatedCallback):
    """Looks whether whatever leaves was entered before."""

    kind = "recorder"

    def __init__(self):
        self.entered, self.left = [], []

    def on_spend(self, trainer, federation, spend):
        """Round, client and noise."""
        self.entered += [(spend.round, client, steps.noise) for client, steps in spend.steps.items()]

    def on_message(self, trainer, federation, message):
        """A masked update is on its way."""
        assert (message.round, message.client, 2.0) in self.entered
        self.left.append((message.round, message.client))


def test_the_budget_is_entered_before_an_update_leaves():
    """And a client whose update never left is given back its own."""

    class Away(FederatedCallback):
        """Client 3 stays out of the second round."""

        def withdraws(self, federation, client):
            return client == 3 and federation.plan.round == 1

    watch, defense = Watch(), DistributedDP(noise=2.0)
    _, federation = trained(SIMULATED(), defense, Away(), watch, rounds=2)
    assert len(watch.left) == 15
    assert {client: len(defense.ledger.history(client)) for client in range(8)} == dict.fromkeys(range(8), 1)
    counts = {client: sum(steps.count for steps in defense.ledger.history(client)) for client in range(8)}
    assert counts == {client: 1 if client == 3 else 2 for client in range(8)}
    assert federation.report.round == 2


def test_secret_noise_is_another_one_in_every_run():
    """And every attempt would count."""
    means = [trained(MASKED(), DistributedDP(noise=1.0, secret_noise=secret))[0] for secret in (True, True, False)]
    vectors = [recorder.aggregates[0][0] for recorder in means]
    assert not torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_a_server_with_the_key_of_paillier_sees_too_little_noise():
    """What one upload holds is the client's share alone, as the statement of the channel says."""
    recorder, _ = trained(SIMULATED(colluding=True), DistributedDP(noise=2.0, clip=0.1, colluders=0, dropouts=0.0))
    message = next(one for one in recorder.messages if one.client == 1)
    [(vector, index)] = [(vector, index) for client, vector, index in recorder.updates if client == 1]
    change = vector - recorder.started[0][index]
    share = message.payload - recorder.started[0][index] - change * min(1.0, 0.1 / float(change.norm()))
    assert is_noise(share, 0.2 / math.sqrt(8))


def test_rolling_windows_have_the_stated_noise():
    """FedRolex: other blocks in every round."""
    defense = DistributedDP(noise=3.0, clip=0.1, dropouts=0.0, colluders=0)
    recorder, _ = trained(SecureAggregation(allow_singletons=True), defense, rounds=3, method=FedRolex())
    held = recorder.aggregates[0][1] > 0
    assert is_noise(noise_of(recorder, 0, 0.1)[held], 0.3)


@pytest.mark.parametrize(
    ("defenses", "settings", "words"),
    [
        ((), {}, "add --config secure-aggregation"),
        ((MASKED(),), {"net": partial(CNN, u=4, statistics="running")}, "running variance could become negative"),
        ((MASKED(),), {"server": QFFL}, "by their loss"),
        ((MASKED(),), {"local": LocalTraining(mask_labels=True, optimizer=sgd())}, "mask_labels"),
        ((MASKED(), DPFedAvg(noise=1.0)), {}, "keep one of them"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(defenses, settings, words):
    """Uploads that can be read, statistics, weights by loss, rows chosen by classes, noise twice."""
    federation = small_federation(**{"net": TINY_MLP, "local": LOCAL, **settings})
    with pytest.raises(UserError, match=words):
        run(federation, Blobs(shape=PICTURES), rounds=1, callbacks=[DistributedDP(noise=1.0), *defenses])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "neither a budget nor noise"),
        ({"noise": 1.0, "delta": 0.5}, "below 0.12"),
        ({"noise": 30.0, "bits": 8}, "8 bits are too few for sums over 8 clients"),
        ({"noise": 1.0, "clip": math.inf}, "clip"),
        ({"noise": 1.0, "dropouts": 1.0}, "dropouts"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    """Before the first round."""
    with pytest.raises(UserError, match=words):
        trained(MASKED(), DistributedDP(**settings))


def test_two_units_are_not_added():
    """DP-SGD beside it: a warning, as for other budgets of clients."""
    with pytest.warns(UserWarning, match="epsilons mean different things"):
        trained(MASKED(), DPSGD(noise=1.0), DistributedDP(noise=1.0))
