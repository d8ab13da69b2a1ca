"""A malicious server in federations that are not of the simplest kind: right numbers, or a reason for none."""

from functools import partial

import pytest
import torch
from federation_kit import make_trainer, sgd, small_federation
from malicious_kit import COHORTS, HIDDEN, Noise, attacked
from torch.optim import SGD

import app.federation.channels.masked as masked
from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.attacks.reconstruction.inversion.extraction import Matching
from app.common.errors import UserError
from app.federation.aggregation import QFFL, FedAdam, FedAvgM
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset, Prefix
from app.metrics.membership import NotAvailable
from app.models import MLP
from callbacks.attacks.malicious_server import MaliciousServer
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.secure_aggregation import SecureAggregation
from datamodules import Holdout, Iid

KEPT = TrapWeights(output="kept")
ORDINARY = {"allow_singletons": True, "model_bound": False, "refuse_repeated": False}
MASKED = partial(SecureAggregation, **ORDINARY, range=64.0, bits=32)


class Refuser(FederatedCallback):
    """Some clients refuse in some rounds."""

    def __init__(self, where):
        self.where = where

    def on_client_start(self, trainer, federation, client):
        if (client.round, client.client) in self.where:
            client.refusal = "test"


def test_weights_of_dp_fedavg_are_those_in_the_sum():
    """DP-FedAvg weighs by samples over the largest client; the server must subtract what it sent with that weight."""
    server, found, _ = attacked(
        RollingModel(traps=KEPT), (3, 5, 4), weighting="samples", callbacks=(DPFedAvg(noise=1e-9, clip=1e9),)
    )
    assert server._isolation_error < 1e-6
    assert found[0].result.oracle.recovered == 4


def test_noise_of_a_trusted_server_is_no_obstacle_to_another_one():
    """Client-level differential privacy trusts the server: a malicious one reads the sum before it adds any noise."""
    server, found, _ = attacked(RollingModel(), callbacks=(DPFedAvg(noise=10.0, clip=1e9),))
    assert server._isolation_error < 1e-6
    assert found[0].result.oracle.recovered == 4
    assert any("read before" in note for note in found[0].conditions.notes)


@pytest.mark.parametrize("optimizer", [FedAvgM, FedAdam])
def test_the_model_stays_what_it_was(optimizer):
    """Also with a server that has momentum."""

    def model(rounds, *callbacks):
        federation = small_federation(
            partial(MLP, hidden=(16,)),
            capacities=COHORTS,
            local=LocalTraining(batch_size=1000, optimizer=sgd(0.05)),
            server=optimizer,
        )
        make_trainer(rounds, "64-true", callbacks=callbacks, limit_val_batches=0).fit(federation, datamodule=Noise())
        return federation.space.read(federation.net)

    assert torch.equal(model(3, MaliciousServer(TrapServer(), round=3)), model(2))


def test_two_servers_in_one_round_are_refused():
    """Each believes that clients got what it sent itself."""
    with pytest.raises(UserError, match=r"(?i)malicious"):
        attacked(RollingModel(), server=MaliciousServer(TrapServer()), callbacks=(MaliciousServer(RollingModel()),))


def test_truth_leaves_out_clients_that_sent_nothing():
    """A client that refused has not trained on its image, and nobody could get it back."""
    _, found, _ = attacked(TrapServer(), (1,) * 6, [1.0] * 6, rounds=1, callbacks=(Refuser({(0, 3)}),))
    assert {score.client for score in found[0].result.per_image} == {0, 1, 2, 4, 5}
    assert found[0].conditions.clients == (0, 1, 2, 4, 5)


def test_truth_is_what_was_trained_on_in_the_round():
    """One step of two of four images: two images are the truth."""
    local = LocalTraining(batch_size=2, steps=1, optimizer=sgd(0.05))
    _, found, _ = attacked(RollingModel(), local=local)
    assert (found[0].result.oracle.recovered, found[0].result.oracle.of) == (2, 2)


@pytest.mark.parametrize("attack", [RollingModel(), ConvergenceRate()], ids=lambda attack: attack.name)
def test_one_refusal_does_not_hide_the_rest_of_the_cohort(attack):
    """The server knows who has sent something: the sum over the others of the cohort is still isolated."""
    last = attack.rounds - 1
    _, found, _ = attacked(
        attack, (4, 2, 2, 2), [1.0, 0.5, 0.5, 0.5], rounds=attack.rounds, callbacks=(Refuser({(last, 3)}),)
    )
    assert not isinstance(found[0].result, NotAvailable), found[0].result.reason


def test_round_of_nobody_is_no_crash():
    """Poisson sampling may draw nobody."""
    _, found, _ = attacked(RollingModel(), (2, 2, 2), participation=1e-9, sampling="poisson", rounds=4)
    assert isinstance(found[0].result, NotAvailable)


def test_absent_target_is_no_crash_while_waiting():
    """A width that nobody has."""
    with pytest.raises(UserError, match="no client has it"):
        attacked(ConvergenceRate(target=0.125, tolerance=1e-3), rounds=4)


def test_first_round_given_up_is_told(monkeypatch):
    """Secure aggregation gave up the round to subtract: nobody is in its sum."""
    unmasked = masked.MaskedChannel._unmasked

    def give_up(channel):
        if channel._federation.plan.round == 0:
            raise masked.AbortedRoundError("test")
        return unmasked(channel)

    monkeypatch.setattr(masked.MaskedChannel, "_unmasked", give_up)
    _, found, _ = attacked(RollingModel(others="frozen", traps=KEPT), (3, 5, 4), method=Prefix(), callbacks=(MASKED(),))
    assert isinstance(found[0].result, NotAvailable)


def test_personal_first_layer_is_not_available():
    """Nothing of it is ever sent; 0 of 4 would be a number in place of a result."""
    _, found, _ = attacked(RollingModel(), personal=["*hidden1*"])
    assert isinstance(found[0].result, NotAvailable)


@pytest.mark.parametrize("extra", [{"nesterov": True}, {"dampening": 0.5}], ids=str)
def test_weight_decay_is_corrected_for_every_sgd(extra):
    """Nesterov's momentum and dampening change how often decay pulls."""
    optimizer = partial(SGD, lr=1e-4, weight_decay=0.1, momentum=0.9, **extra)
    local = LocalTraining(batch_size=1, epochs=3, optimizer=optimizer)
    _, found, _ = attacked(RollingModel(traps=KEPT), (1, 1, 1), local=local)
    assert found[0].result.oracle.psnr_mean > 60


def test_weight_decay_is_corrected_at_the_rate_of_the_attacked_cohort():
    """Decay pulls by the learning rate: the attacker takes the one of the width that it attacks."""
    optimizer = partial(SGD, lr=1e-3, weight_decay=0.1, momentum=0.9)
    local = LocalTraining(batch_size=1, epochs=3, optimizer=optimizer, lr_factors=((0.25, 0.1),))
    _, found, _ = attacked(RollingModel(traps=KEPT), (1, 1, 1), local=local)
    assert found[0].result.oracle.psnr_mean > 60


def test_sent_values_are_added_up_over_unequal_submodels():
    """Random submodels of less than full width: no client holds all coordinates of the sum."""
    server, _, _ = attacked(
        TrapServer(KEPT), (2, 2, 2), [0.5, 0.25, 0.25], method=ChannelSubset.preset("USR"), rounds=1
    )
    update, theta = server._isolated, server.attack.announces(server._knowledge, 0)
    torch.testing.assert_close(update.sent, update.weight * theta[update.index].double())
    assert update.weight.unique().tolist() == [1.0, 2.0, 3.0]


def test_what_clients_keep_to_themselves_stays_theirs():
    """A personal classifier is neither overwritten nor sent; others then do not repeat themselves, and it shows."""
    seen = {}

    class Watching(FederatedCallback):
        """What a client starts from."""

        def on_client_start(self, trainer, federation, client):
            """The last coordinates of its vector are the classifier's biases."""
            seen.setdefault(client.client, []).append(client.received[-10:].clone())

    server, _, _ = attacked(RollingModel(), personal=["*classifier*"], callbacks=(Watching(),))
    assert all((vector != 0.25).any() for vector in seen[0])
    assert not torch.equal(*seen[0])
    assert len(server._isolated.index) == HIDDEN // 4 * 65
    assert server._isolation_error > 0.1


def test_rows_that_clients_do_not_send():
    """Label masks: the classifier's rows of absent classes are in nobody's sum; the first layer is as it was."""
    local = LocalTraining(batch_size=1000, optimizer=sgd(0.05), mask_labels=True)
    server, found, _ = attacked(RollingModel(), local=local)
    assert server._isolation_error <= 1e-11
    assert found[0].result.oracle.recovered >= 3


@pytest.mark.parametrize(("target", "client"), [(0.5, 1), (0.25, 2)])
def test_any_cohort_can_be_attacked(target, client):
    """By its width."""
    server, found, _ = attacked(RollingModel(target=target))
    assert found[0].conditions.clients == (client,)
    assert server._isolation_error <= 1e-11


def test_weights_by_losses_are_not_public():
    """q-FFL: the server cannot tell what it subtracts."""
    _, found, _ = attacked(RollingModel(), server_optimizer=partial(QFFL, q=1.0))
    assert "losses" in found[0].result.reason


def test_isolated_updates_can_be_searched():
    """Without traps, a search finds a client's image from the weights that were isolated, in a network of any kind."""
    attack = RollingModel(others="frozen")
    server = MaliciousServer(attack, reading=Matching(steps=300, tv=1e-4))
    _, found, _ = attacked(attack, (1, 1, 1), server=server, method=Prefix(), hidden=64)
    assert found[0].result.oracle.pearson_mean > 0.9
    assert (found[0].result.oracle.of, found[0].result.candidates) == (1, 1)


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (RollingModel, {"fill": float("nan")}, "fill of rolling-model is nan"),
        (RollingModel, {"noise": float("inf")}, "noise of rolling-model is inf"),
        (RollingModel, {"noise": 0.1, "others": "frozen"}, "frozen"),
        (ConvergenceRate, {"tolerance": 0.0}, "tolerance"),
    ],
)
def test_settings_that_cannot_work(make, settings, words):
    """Refused before any training."""
    with pytest.raises(UserError, match=words):
        attacked(make(**settings))


@pytest.mark.parametrize("label", ["a/b", "x" * 300, ".hidden"])
def test_labels_that_no_file_can_have(label):
    """Refused before any training, not after it."""
    with pytest.raises(UserError, match="label"):
        attacked(RollingModel(), server=MaliciousServer(RollingModel(), label=label))


def test_traps_that_are_fitted_recover_more():
    """Images of the attacker's own, from the same distribution, are all it takes; the result says so."""

    class Own(Noise):
        """The attacker owns half of the pool."""

        def __init__(self):
            super().__init__((40,) * 3)
            self.holdout = Holdout(0.0, 0.5, 0.0)
            self.partition = Iid(3, samples=16)

    local = LocalTraining(batch_size=1000, optimizer=sgd(0.05))
    found = {
        bias: attacked(RollingModel(traps=TrapWeights(bias=bias, output="loud")), data=Own(), local=local)[1][0]
        for bias in ("zero", "calibrated")
    }
    assert found["calibrated"].result.oracle.recovered > found["zero"].result.oracle.recovered + 3
    assert any("fitted" in note for note in found["calibrated"].conditions.notes)
