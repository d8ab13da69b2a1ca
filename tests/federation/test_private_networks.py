"""Networks with a part that belongs to the client: it trains, it stays, and every executor trains it alike."""

from functools import partial

import pytest
import torch
from federation_kit import Blobs, Recorder, Reports, make_trainer, run, sgd, small_federation

from app.common.errors import UserError
from app.federation.client import ClientModule
from app.federation.evaluation import Evaluation
from app.federation.local_training import LocalTraining
from app.models import CNN, MLP, DataShape, Factorised
from app.models.ibp import LIMIT

SIZES = (12, 7, 10)
FACTORS = {"layers.hidden1": 5}
SHAPE = DataShape(1, 4, 4, 3)
WAFFLE = partial(Factorised, net=partial(MLP, hidden=(6,), bias=False), factors=FACTORS, speed=50.0)
EXECUTORS = ("sequence", "threads", "vectorised")
LOCAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.1))


def waffle(net=WAFFLE, **settings):
    """A small federation with private choices."""
    return small_federation(net, **{"local": LOCAL, **settings})


def trained(**settings):
    """Final vector, private values and reports of two rounds."""
    federation, reports = waffle(evaluation=Evaluation(), workers=2, **settings), Reports()
    end = run(federation, Blobs(SIZES, nonmembers=0.3), 2, [reports])
    return end, federation.personal.state_dict(), reports.rounds


@pytest.mark.parametrize("local", [{}, {"proximal": 0.5}, {"clip_norm": 0.05}, {"optimizer": sgd(0.1, momentum=0.5)}])
def test_executors_agree_on_private_networks(local):
    """Noise and bounds are every client's own, however many are trained at once."""
    settings = LocalTraining(**{"batch_size": 4, "epochs": 2, "optimizer": sgd(0.1), **local})
    reference, *others = (trained(executor=executor, local=settings) for executor in EXECUTORS)
    for other in others:
        torch.testing.assert_close(other[0], reference[0], rtol=0, atol=1e-11)
        for client, values in reference[1].items():
            torch.testing.assert_close(other[1][client], values, rtol=0, atol=1e-11)
        for mine, theirs in zip(other[2][-1].clients, reference[2][-1].clients, strict=True):
            assert mine.loss == pytest.approx(theirs.loss, abs=1e-9)
            assert mine.trained_own == theirs.trained_own


@pytest.mark.parametrize("rule", ["threshold", "sample"])
def test_executors_agree_on_other_rules_of_evaluation(rule):
    """A sampled choice is drawn by client and round, not by who happens to evaluate it."""
    net = partial(WAFFLE, evaluation=rule)
    reference, *others = (trained(net=net, executor=executor) for executor in EXECUTORS)
    for other in others:
        assert [c.trained_common for c in other[2][-1].clients] == [c.trained_common for c in reference[2][-1].clients]


def test_nothing_private_is_ever_sent():
    """Messages hold exactly the shared coordinates; the server's private coordinates never move."""
    recorder, federation = Recorder(), waffle()
    end = run(federation, Blobs(SIZES), 2, [recorder])
    private = federation.space.matching(["*.pi", "*.c", "*.d"])
    assert int(private.sum()) == 15
    shared = (~private).nonzero().flatten()
    assert recorder.messages
    assert all(torch.equal(message.index, shared) for message in recorder.messages)
    layer = federation.net.factor_layers()["inner.layers.hidden1"]
    assert layer.eval().gates().tolist() == [1.0] * 5
    assert torch.equal(end[private], federation.space.read(federation.net)[private])


def test_clients_start_from_the_prior_and_go_on_from_their_own():
    """The first round starts from the initial choice, not from the server's; the next one from where the last ended."""

    class Starts(Recorder):
        def on_broadcast(self, trainer, federation, client, vector):
            """After private coordinates are in place."""
            self.started.append((federation.plan.round, client, vector.clone()))

        def on_round_start(self, trainer, federation, plan):
            """The private values before the round."""
            self.before = dict(federation.personal.state_dict())

    recorder, federation = Starts(), waffle()
    run(federation, Blobs(SIZES), 2, [recorder])
    mask = federation.personal.mask
    for round_, client, vector in recorder.started:
        expected = federation.personal.initial if round_ == 0 else recorder.before[str(client)]
        assert torch.equal(vector[mask], expected)
    values = [federation.personal.of(client) for client in range(3)]
    assert all(not torch.equal(own, federation.personal.initial) for own in values)
    assert not torch.equal(values[0], values[1])


def test_private_values_stay_within_their_bounds():
    """Whatever the learning rate: the logit is never beyond its limit after a round."""
    fast = partial(Factorised, net=partial(MLP, hidden=(6,), bias=False), factors=FACTORS, speed=1e6)
    for executor in EXECUTORS:
        federation = waffle(net=fast, executor=executor)
        run(federation, Blobs(SIZES), 2)
        layer = federation.net.factor_layers()["inner.layers.hidden1"]
        low, high = layer.clamp_ranges()["pi"]
        for client in range(3):
            logits = federation.personal.of(client)[:5]
            assert logits.min() >= low
            assert logits.max() <= high
            assert high * 1e3 == pytest.approx(LIMIT)


def test_private_values_survive_a_checkpoint(tmp_path):
    """Two rounds, saved, loaded and continued, end where four rounds in one go do, bit for bit."""
    whole = waffle()
    expected = run(whole, Blobs(SIZES), 4)
    first = waffle()
    trainer = make_trainer(2)
    trainer.fit(first, datamodule=Blobs(SIZES))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = waffle()
    make_trainer(4).fit(second, datamodule=Blobs(SIZES), ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(second.space.read(second.net), expected)
    for client, values in whole.personal.state_dict().items():
        assert torch.equal(second.personal.state_dict()[client], values)


def test_the_divergence_counts_by_one_over_the_samples():
    """A client's local objective is the cross-entropy plus the network's penalty divided by its training samples."""
    torch.manual_seed(0)
    net = WAFFLE(SHAPE).double()
    client = ClientModule(net, LOCAL)
    client.share.fill_(1 / 7)
    batch = (torch.randn(4, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
    plain = client.data_loss(batch)
    assert float(client.training_step(batch) - plain) == pytest.approx(float(net.penalty()) / 7, rel=1e-5)


def test_factors_and_submodels_are_refused_together():
    """A choice of channels says nothing about factors."""
    with pytest.raises(UserError, match="WAFFLe and submodels do not go together"):
        run(waffle(capacities=[1.0, 0.5, 0.5]), Blobs(SIZES), 1)


def test_networks_without_a_private_part_are_as_before():
    """The hooks of other networks do nothing: no private names, no penalty, no noise, no bounds."""
    net = CNN(DataShape(1, 8, 8, 3))
    assert net.private_names() == ()
    assert net.penalty() is None
    assert not net.sample_noise(torch.Generator())
    assert not net.clamp_ranges()
