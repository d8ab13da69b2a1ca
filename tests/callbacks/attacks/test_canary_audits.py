"""Audits by canaries in whole federations: what they measure of honest defenses, and of broken ones."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import LINEAR, TINY_MLP, Blobs, Recorder, make_trainer, run, sgd, small_federation
from torch.nn.functional import one_hot

from app.attacks.canaries import random_directions
from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.federation.plan import ClientPool
from app.models import CNN, MLP, DataShape
from app.privacy import noise as noise_module
from app.privacy import private_steps
from app.results.attacks.canaries import CanaryRecord
from callbacks import (
    DPSGD,
    ClientCanaryAudit,
    DPFedAvg,
    MembershipInference,
    NbAFL,
    RunRecorder,
    SampleCanaryAudit,
    SecureAggregation,
)
from callbacks.defenses import dp_fedavg, dp_sgd

PICTURE = DataShape(1, 16, 16, 4)
"""Large enough that the gradients of canaries are almost orthogonal."""

WHOLE = LocalTraining(batch_size=10_000, steps=1, optimizer=sgd(0.2))
WIDE = partial(MLP, hidden=(64,))


def audited(audit, *others, net=LINEAR, rounds=1, sizes=(40,), local=WHOLE, picture=PICTURE, **settings):
    """The result of an audit in a federation, and the federation."""
    federation = small_federation(net, local=local, **settings)
    run(federation, Blobs(sizes, picture), rounds, [*others, audit], precision="32-true")
    (record,) = (one for one in federation.results if isinstance(one, CanaryRecord))
    return record, federation


def weaker_noise(monkeypatch):
    """Mutant: half of the noise that is accounted for."""
    drawn = noise_module.NoiseStream.normal_like
    monkeypatch.setattr(
        noise_module.NoiseStream, "normal_like", lambda self, like, deviation: drawn(self, like, deviation / 2)
    )


def no_clipping_of_samples(monkeypatch):
    """Mutant: gradients enter the sum as they are."""
    monkeypatch.setattr(
        private_steps._Ghost, "clipped", lambda self, loss, samples, _: self._ghost.clipped(loss, samples, 1e30)
    )


def every_sample_in_every_step(monkeypatch):
    """Mutant: the sampling rate is 1, whatever is accounted for."""
    drawn = dp_sgd._poisson_batches
    monkeypatch.setattr(
        dp_sgd, "_poisson_batches", lambda client, steps, coins: drawn(client, replace(steps, rate=1.0), coins)
    )


def no_clipping_of_updates(monkeypatch):
    """Mutant: whole updates are not clipped."""
    monkeypatch.setattr(dp_fedavg, "clip_factor", lambda values, norm: 1.0)


DP_SGD = {
    "whole": (partial(DPSGD, noise=2.0, accountant="prv"), WHOLE, 1),
    "sampled": (
        partial(DPSGD, noise=1.5, accountant="prv"),
        LocalTraining(batch_size=42, steps=1, optimizer=sgd(0.2)),
        4,
    ),
}
"""A defense, local training and rounds: all samples in one step, or about every eighth in four."""


@pytest.mark.parametrize("setting", DP_SGD)
def test_dp_sgd_as_it_should_be(setting):
    """Canaries show a part of the claim and no more; other coins than those that were drawn show nothing."""
    defense, local, rounds = DP_SGD[setting]
    record, _ = audited(SampleCanaryAudit(count=600), defense(), local=local, rounds=rounds)
    (claim,) = record.claims
    assert (claim.unit, claim.verdict, record.broken) == ("sample", "consistent", ())
    assert 0 <= record.measured.bound <= record.measured.fitted_low <= claim.epsilon
    if setting == "whole":
        assert record.measured.fitted > claim.epsilon / 2, "the scores use most of what is released"
    others = np.random.default_rng(1).permutation(record.inserted)
    difference = abs(record.scores[others].mean() - record.scores[~others].mean())
    assert difference < 4 / np.sqrt(150), "four standard errors of standardised scores"


@pytest.mark.parametrize(
    ("mutant", "setting"),
    [
        (weaker_noise, "whole"),
        (no_clipping_of_samples, "whole"),
        (every_sample_in_every_step, "sampled"),
    ],
)
def test_mutants_of_dp_sgd_break_their_claim(mutant, setting, monkeypatch):
    """Measured above claimed is an error that names what is likely wrong."""
    mutant(monkeypatch)
    defense, local, rounds = DP_SGD[setting]
    record, _ = audited(SampleCanaryAudit(count=1000), defense(), local=local, rounds=rounds)
    (claim,) = record.broken
    assert "likely noise weaker than stated, gradients that are not clipped" in claim.text


@pytest.mark.parametrize("mutant", [None, weaker_noise, no_clipping_of_updates])
def test_dp_fedavg_and_its_mutants(mutant, monkeypatch):
    """Per client, by those who see the models; the honest defense is found consistent and not far from its claim."""
    if mutant is not None:
        mutant(monkeypatch)
    defense = DPFedAvg(noise=2.0, accountant="prv")
    record, _ = audited(ClientCanaryAudit(count=1000), defense, net=WIDE, sizes=(10, 10, 10))
    assert record.unit == "client"
    assert "outsiders" in record.adversary
    if mutant is None:
        (claim,) = record.claims
        assert claim.verdict == "consistent"
        assert claim.epsilon / 2 < record.measured.fitted < 1.5 * claim.epsilon
    else:
        (claim,) = record.broken
        assert "updates that are not clipped" in claim.text


def test_mutant_of_client_sampling(monkeypatch):
    """All clients take part although one in ten is accounted for."""
    audit, settings = partial(ClientCanaryAudit, count=400), {"participation": 0.1, "sampling": "poisson"}
    defense = partial(DPFedAvg, noise=1.0)
    honest, _ = audited(audit(), defense(), rounds=3, sizes=(5,) * 10, **settings)
    assert not honest.broken
    monkeypatch.setattr(ClientPool, "participants", lambda self, round_: tuple(range(len(self.sizes))))
    record, _ = audited(audit(), defense(), rounds=3, sizes=(5,) * 10, **settings)
    assert record.broken


def test_nbafl_is_nominal():
    """Per sample little shows; the local model that its unit speaks of is hardly hidden, which breaks no promise. The
    worst-case sensitivity keeps its claim. Coins choose between two versions, as its neighbours are replaced."""
    published, _ = audited(ClientCanaryAudit(count=200), NbAFL(clip=5.0), net=WIDE)
    (claim,) = published.claims
    assert claim.verdict == "refuted if scores are normal"
    assert claim.nominal
    assert not published.broken
    assert "no guarantee" in claim.text
    forced = abs(published.measured.inserted - 100)  # guesses of either kind are equally many
    assert published.measured.guessed - published.measured.correct == forced
    assert "two versions" in published.adjacency
    worst = NbAFL(epsilon=8.0, clip=5.0, sensitivity="worst-case")
    proved, _ = audited(ClientCanaryAudit(count=600), worst, net=WIDE)
    (claim,) = proved.claims
    assert claim.verdict == "consistent"
    assert 0.5 * claim.epsilon < proved.measured.fitted < 1.5 * claim.epsilon
    per_sample, _ = audited(SampleCanaryAudit(count=200), NbAFL(clip=5.0))
    assert per_sample.claims[0].verdict == "consistent"


@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("capacities", [[1.0], [1.0, 0.5]])
def test_memorised_canaries(score, capacities):
    """Without a defense, and with canaries learnt by heart, nearly every guess is right, in submodels too."""
    local = LocalTraining(batch_size=10_000, epochs=40 if score == "loss" else 1, optimizer=sgd(0.5))
    settings = {"net": WIDE, "capacities": capacities, "local": local, "sizes": (20, 20)}
    record, _ = audited(SampleCanaryAudit(count=160, score=score), rounds=2, **settings)
    assert record.measured.bound > 1.5
    assert not record.claims
    assert "nothing is claimed" in record.closing_rows()[0][2]


@pytest.mark.parametrize("score", ["gradient", "loss"])
def test_untrained_models_show_nothing(score):
    """A learning rate that moves nothing."""
    still = LocalTraining(batch_size=10_000, steps=1, optimizer=sgd(0.0))
    record, _ = audited(SampleCanaryAudit(count=200, score=score), local=still)
    assert record.measured.most < 0.3
    assert record.measured.fitted_least == 0 or np.isnan(record.measured.fitted_least)


def test_score_of_one_round_by_hand():
    """One step of softmax regression without bias: the ridge of the scores, from a closed form of every gradient."""
    audit, seen = SampleCanaryAudit(count=6), Recorder()
    net = partial(MLP, hidden=(), bias=False)
    federation = small_federation(net, local=WHOLE)
    run(federation, Blobs((12,), PICTURE), 1, [audit, seen], precision="64-true")
    before, (message,) = seen.started[0], seen.messages

    def gradients_of(batch):
        flat, labels = batch[0].flatten(1), batch[1]
        errors = (flat @ before.view(4, -1).T).softmax(dim=1) - one_hot(labels, 4)
        return (errors[:, :, None] * flat[:, None, :]).flatten(1)

    store = audit.canaries.store_like(federation.data.store)
    gradients = gradients_of(store.batch(torch.arange(6), torch.float64))
    members = federation.data.store.batch(torch.arange(12), torch.float64)
    moved = before - message.payload
    known, _ = torch.linalg.qr(torch.stack([gradients_of(members).sum(dim=0), gradients.sum(dim=0)]).T)
    rows, moved = gradients - gradients @ known @ known.T, moved - known @ (known.T @ moved)
    left, lengths, right = torch.linalg.svd(rows, full_matrices=False)
    kept = lengths > lengths[0] * 1e-4  # rows without their mean direction may lack one
    left, lengths, found = left[:, kept], lengths[kept], (right @ moved)[kept]
    noise = (moved.norm() ** 2 - found.norm() ** 2) / (len(moved) - 2 - len(found))
    share = (found.norm() ** 2 - len(found) * noise) / lengths.square().sum()
    ridge = lengths / (lengths**2 + noise / share) * found
    by_hand = left @ ridge * (lengths.square().mean() + noise / share)
    (record,) = (one for one in federation.results if isinstance(one, CanaryRecord))
    np.testing.assert_allclose(record.scores, by_hand.numpy(), rtol=1e-6)


def test_canary_clients_by_hand():
    """Without a defense, the mean is that of clients and inserted canaries, each as long as asked for."""
    audit, seen = ClientCanaryAudit(count=10, strength=2.0), Recorder()
    federation = small_federation(TINY_MLP)
    run(federation, Blobs((5, 8)), 1, [audit, seen])
    start, ((_, one, _), (_, two, _)) = seen.started[0], seen.updates
    length = 2.0 * float((one - start).norm() + (two - start).norm()) / 2
    directions = torch.stack(list(random_directions(len(start), 10, federation.seed)))
    inserted = torch.from_numpy(audit.inserted)
    total = (one - start) + (two - start) + length * directions[inserted].sum(dim=0)
    mean, _, updates = seen.aggregates[0]
    torch.testing.assert_close(mean - start, total / (2 + inserted.sum()))
    assert updates == 2 + int(inserted.sum())
    assert len(seen.messages) == 2, "no other attack or recorder sees canary clients"


def test_outsiders_measure_samples_under_dp_fedavg():
    """By the models of the rounds, beside no claim, since that is about clients."""
    record, _ = audited(SampleCanaryAudit(count=60), DPFedAvg(noise=1.0), sizes=(20, 20))
    assert "outsiders" in record.adversary
    assert not record.claims
    assert record.measured.canaries == 60


def test_claims_are_compared_with_their_own_neighbours_only():
    """DP-SGD adds or removes a sample, NbAFL replaces one: the coins cannot do both, and choose between two here."""
    record, _ = audited(SampleCanaryAudit(count=40), DPSGD(noise=1.0), NbAFL(clip=5.0))
    assert [claim.mechanism for claim in record.claims] == ["NbAFL (theorem)"]
    alone, _ = audited(SampleCanaryAudit(count=40), DPSGD(noise=1.0))
    assert [claim.mechanism for claim in alone.claims] == ["DP-SGD"]


def test_a_server_that_sees_sums_cannot_score_uploads():
    """Under masks the server has nothing; outsiders still have the models."""
    chosen = SampleCanaryAudit(count=40, adversary="server")
    record, _ = audited(chosen, SecureAggregation(), sizes=(20, 20, 20))
    assert "sees no single upload" in record.reason
    assert "N/A" in CanaryRecord.text([record])
    assert record.numbers == {}
    outside, _ = audited(SampleCanaryAudit(count=40), SecureAggregation(), sizes=(20, 20, 20))
    assert "outsiders" in outside.adversary


def test_an_interrupted_run_goes_on(tmp_path):
    """Scores of the rounds before are kept: the same result, bit for bit."""

    def trained(rounds, path=None):
        federation, audit = small_federation(local=WHOLE), SampleCanaryAudit(count=40)
        trainer = make_trainer(rounds, callbacks=[DPSGD(noise=1.0), audit])
        trainer.fit(federation, datamodule=Blobs((20,), PICTURE), ckpt_path=path, weights_only=False if path else None)
        return trainer, next(one for one in federation.results if isinstance(one, CanaryRecord))

    _, whole = trained(3)
    first, _ = trained(1)
    first.save_checkpoint(tmp_path / "one.ckpt")
    _, resumed = trained(3, str(tmp_path / "one.ckpt"))
    np.testing.assert_array_equal(resumed.scores, whole.scores)
    assert resumed.measured == whole.measured


def test_the_folder_shows_claimed_and_measured(tmp_path):
    """`privacy.json` has both, also from the membership attack; the result can be read again."""
    record, federation = audited(
        SampleCanaryAudit(count=60),
        DPSGD(noise=1.0),
        MembershipInference(["yeom"], ["global"], calibrate=False, controls="skip", adaptive=False),
        RunRecorder(tmp_path / "run"),
        sizes=(60,),
    )
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert privacy["budgets"][0]["epsilon"] == record.claims[0].epsilon
    canary = next(one for one in privacy["measured"] if one["label"] == "sample-canaries")
    assert canary["measured"]["bound"] == record.measured.bound
    assert canary["claims"][0]["verdict"] == "consistent"
    assert len(federation.data.membership.members[0]) == 60
    (loaded,) = CanaryRecord.load_all(tmp_path / "run")
    assert (loaded.measured, loaded.claims) == (record.measured, record.claims)
    np.testing.assert_array_equal(loaded.stored_arrays(["inserted"])["inserted"], record.inserted)
    assert CanaryRecord.text([loaded]) == CanaryRecord.text([record])


@pytest.mark.parametrize(
    ("callbacks", "settings", "words"),
    [
        ([SampleCanaryAudit(count=40)], {"personal": ["*"]}, "nothing to measure"),
        ([ClientCanaryAudit(count=40)], {"personal": ["*"]}, "nothing to measure"),
        ([ClientCanaryAudit(count=40), SecureAggregation()], {}, "no part in the keys"),
        ([ClientCanaryAudit(count=40)], {"weighting": "samples"}, "weighting uniform"),
        ([SampleCanaryAudit(count=4)], {}, "count to 60"),
        ([SampleCanaryAudit(count=40)], {"net": CNN}, "score loss"),
        ([SampleCanaryAudit(count=40, images="mislabelled")], {}, "population"),
    ],
)
def test_what_cannot_be_measured_is_refused(callbacks, settings, words):
    """Before any training, with cause, consequence and remedy."""
    with pytest.raises(UserError, match=words):
        run(small_federation(**settings), Blobs((5, 8, 11), PICTURE), 1, callbacks)
