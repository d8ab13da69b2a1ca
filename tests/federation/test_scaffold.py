"""SCAFFOLD: control variates take away the drift of local steps, and are made of nothing but what is uploaded."""

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, make_trainer, run, sgd, small_federation, whole_batch
from quadratic_kit import Levels, Slope, square_losses
from torch.optim import SGD, Adam

from app.attacks.reconstruction.inversion.dense_layer import LinearTraining
from app.common.errors import UserError
from app.federation.aggregation import QFFL
from app.federation.local_training import LocalTraining
from app.federation.submodels import FedRolex
from callbacks import DPSGD, DPFedAvg, MemDefense, Paillier, SecureAggregation

SIZES = (5, 8, 11)
LEVELS = (0.5, 1.0, -0.8)
LR, STEPS = 0.4, 5
LOCAL = LocalTraining(batch_size=4, steps=3, optimizer=sgd(0.2), scaffold=True)


def by_hand(data, theta, rounds, chosen):
    """Algorithm 1 with option II on the quadratics; both control variates travel. Returns x and c."""
    x, c, own = theta.clone(), torch.zeros(3).double(), torch.zeros(len(LEVELS), 3).double()
    for round_ in range(rounds):
        moved, changes = [], []
        for client in chosen[round_]:
            y, curvature = x.clone(), LEVELS[client] ** 2
            for _ in range(STEPS):
                y = y - LR * (curvature * (y - data.optimum(client)) - own[client] + c)
            updated = own[client] - c + (x - y) / (STEPS * LR)
            moved.append(y - x)
            changes.append(updated - own[client])
            own[client] = updated
        x = x + torch.stack(moved).mean(dim=0)
        c = c + torch.stack(changes).sum(dim=0) / len(LEVELS)
    return x, c


class Participants(Recorder):
    """Who took part in which round."""

    def on_round_start(self, trainer, federation, plan):
        """The plan is known."""
        super().on_round_start(trainer, federation, plan)
        self.rounds = [*getattr(self, "rounds", []), plan.participants]


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_it_is_the_published_algorithm(monkeypatch, participation):
    """The server's model and control variate are those of clients that upload both, round by round."""
    square_losses(monkeypatch)
    recorder, data = Participants(), Levels(LEVELS)
    local = whole_batch(LR, STEPS, scaffold=True)
    federation = small_federation(Slope, local=local, participation=participation)
    end = run(federation, data, 6, [recorder])
    x, c = by_hand(data, recorder.started[0], 6, recorder.rounds)
    torch.testing.assert_close(end, x, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(federation.controls.server, c, rtol=1e-6, atol=1e-6)


def test_the_true_optimum_with_several_local_steps(monkeypatch):
    """FedAvg stops where clients' drifts cancel, which is elsewhere; SCAFFOLD where their gradients do."""
    square_losses(monkeypatch)
    ends, data = {}, Levels(LEVELS)
    for scaffold in (False, True):
        ends[scaffold] = run(small_federation(Slope, local=whole_batch(LR, STEPS, scaffold=scaffold)), data, 25)
    optima = torch.stack([data.optimum(client) for client in range(3)])
    curvatures = torch.tensor(LEVELS).double() ** 2
    drifts = 1 - (1 - LR * curvatures) ** STEPS
    true, biased = ((weights[:, None] * optima).sum(0) / weights.sum() for weights in (curvatures, drifts))
    assert float((true - biased).norm()) > 1e-2  # a thousand times what is allowed below
    torch.testing.assert_close(ends[True], true, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ends[False], biased, rtol=1e-5, atol=1e-5)


def test_one_local_step_is_fedavg():
    """With all clients and one step each, the corrections cancel in the mean."""
    ends = [run(small_federation(TINY_MLP, local=whole_batch(scaffold=one)), rounds=4) for one in (False, True)]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", ["threads", "vectorised"])
def test_executors_agree(executor):
    """Also with widths."""
    settings = {"local": LOCAL, "capacities": [1.0, 0.5, 0.5]}
    ends = [run(small_federation(TINY_MLP, executor=kind, **settings), rounds=4) for kind in ("sequence", executor)]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_the_servers_is_the_mean_of_those_of_the_holders():
    """Of every coordinate, over the clients whose submodel holds it, also with clients that sit rounds out."""
    federation = small_federation(TINY_MLP, local=LOCAL, capacities=[1.0, 0.5, 0.25], participation=0.67)
    run(federation, Blobs(SIZES), 5)
    total, holders = torch.zeros_like(federation.controls.server), torch.zeros_like(federation.controls.server)
    for client in range(3):
        index = federation.plan.index(client)
        holders[index] += 1
        own = torch.zeros(len(index)).double()
        federation.controls.clients.restore(client, index, own)
        total[index] += own
    assert len(federation.controls.clients.clients) > 1
    torch.testing.assert_close(federation.controls.server, total / holders, rtol=0, atol=1e-10)


@pytest.mark.parametrize("defense", [DPSGD(noise=1.0), MemDefense(gamma=0.5)], ids=["noise", "pruning"])
def test_controls_are_made_of_what_the_server_received(defense):
    """After noise and pruning: (received - uploaded) / (steps * lr) in the first round, and nothing of the client's."""
    recorder = Recorder()
    federation = small_federation(TINY_MLP, local=LOCAL)
    run(federation, Blobs(SIZES), 1, [defense, recorder])
    for message in recorder.messages:
        expected = (recorder.started[0] - message.payload) / (3 * 0.2)
        torch.testing.assert_close(federation.controls.clients.of(message.client), expected, rtol=0, atol=1e-12)


def test_noise_stays_in_place_under_dp_sgd():
    """Corrections are added after clipping: without noise, and with a bound that clips nothing, all is as without."""
    plain, private = (small_federation(TINY_MLP, local=LOCAL) for _ in range(2))
    settings = {"noise": 0.0, "clip": 1e6, "sampling": "shuffled"}
    ends = [run(plain, rounds=3), run(private, rounds=3, callbacks=[DPSGD(**settings)])]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


def test_client_level_noise_reaches_the_control_variate():
    """It is made of the noised mean; without noise it is the usual one."""
    federations = [small_federation(TINY_MLP, local=LOCAL) for _ in range(3)]
    for federation, defenses in zip(
        federations, ([], [DPFedAvg(noise=0.0, clip=1e6)], [DPFedAvg(noise=1.0)]), strict=True
    ):
        run(federation, Blobs(SIZES), 2, defenses)
    plain, quiet, noisy = (federation.controls.server for federation in federations)
    torch.testing.assert_close(quiet, plain, rtol=0, atol=1e-9)
    assert float((noisy - plain).norm()) > 1


def test_sums_are_enough():
    """Under secure aggregation the server's control variate is the same up to the rounding of the sums."""
    federations = [small_federation(TINY_MLP, local=LOCAL) for _ in range(2)]
    run(federations[0], Blobs(SIZES), 2)
    run(federations[1], Blobs(SIZES), 2, [SecureAggregation()])
    torch.testing.assert_close(federations[1].controls.server, federations[0].controls.server, rtol=0, atol=1e-3)


def test_controls_survive_a_checkpoint(tmp_path):
    """Two rounds, saved, loaded and continued, end where four rounds in one go do."""
    whole, first, second = (small_federation(TINY_MLP, local=LOCAL, participation=0.67) for _ in range(3))
    end = run(whole, Blobs(SIZES), 4)
    trainer = make_trainer(2)
    trainer.fit(first, datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    make_trainer(4).fit(second, datamodule=Blobs(SIZES), ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(second.space.read(second.net), end)
    assert torch.equal(second.controls.server, whole.controls.server)


def settings(**local):
    """Local training that is wrong in one point."""
    usual = {"batch_size": 4, "steps": 3, "optimizer": sgd(0.2), "scaffold": True}
    return {"local": LocalTraining(**(usual | local))}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (settings(steps=None), "local steps"),
        (settings(optimizer=Adam), "plain gradient descent"),
        (settings(optimizer=lambda p: SGD(p, 0.1, momentum=0.5)), "plain gradient descent"),
        (settings(clip_norm=1.0), "plain gradient descent"),
        (settings(lr_factors=((0.5, 0.1),)) | {"capacities": [1.0, 1.0, 0.5]}, "learning rates that differ"),
        (settings(mask_labels=True), "would depend on their data"),
        (settings() | {"weighting": "samples"}, "count by their samples"),
        (settings() | {"server": QFFL}, "would be weighted"),
        (settings() | {"personal": ["*"]}, "no uploads"),
        (settings() | {"method": FedRolex(), "capacities": [1.0, 0.5, 0.5]}, "submodels change"),
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong, message):
    """With cause, consequence and remedy."""
    with pytest.raises(UserError, match=message):
        run(small_federation(TINY_MLP, **wrong), Blobs(SIZES), 3)


def test_a_mean_that_the_server_cannot_read_is_refused():
    """Under Paillier's encryption the server could not work out its control variate."""
    with pytest.raises(UserError, match="could not read"):
        run(small_federation(local=LOCAL), Blobs(SIZES), 1, [Paillier(simulate=True)])


def test_attacks_that_take_updates_for_gradients_are_not_available():
    """They would find less than an adversary that takes the corrections off first."""
    assert "control variates" in LinearTraining.of(LOCAL, 0.2, 5)
