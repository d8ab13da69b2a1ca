"""Source inference: members are attributed to the client that owns them, non-members and untrained ones by chance."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federation_under_attack import RandomLabels, audit_of, trained

from app.attacks.models import Responses
from app.attacks.source_inference import SourceFinding, SourceShare, calibrated, infer_sources
from app.attacks.targets import observed_uploads
from app.metrics.intervals import clopper_pearson
from app.metrics.membership import NotAvailable
from app.models import MLP
from app.result import Measurement
from app.results.attacks.source_inference import SourceRecord
from callbacks import SecureAggregation
from datamodules import Holdout

RATES = [1.0, 1.0, 0.25, 0.25]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Two wide and two narrow clients that memorise their samples."""
    data = RandomLabels(clients=4, samples=400)
    return audit_of(*trained(tmp_path_factory.mktemp("sources"), capacities=RATES, data=data))


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Three clients of full width after one round, which have no memory of each other's samples yet."""
    net = partial(MLP, hidden=(128,))
    return audit_of(*trained(tmp_path_factory.mktemp("equal"), rounds=1, net=net))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The same clients with a learning rate of 0."""
    return audit_of(*trained(tmp_path_factory.mktemp("still"), lr=0.0, epochs=1))


def share(finding, rule, group="all members"):
    """One row of a finding."""
    (found,) = [one for one in finding.shares if (one.rule, one.group) == (rule, group)]
    return found


@pytest.mark.parametrize("rule", ["loss", "calibrated"])
def test_owners_of_memorised_samples(memorised, untrained, rule):
    """Nearly all members; non-members and models that were not trained tell nothing; swapped owners are never right."""
    finding = infer_sources(memorised)
    assert finding.chance == pytest.approx(1 / 3)
    assert share(finding, rule).accuracy > 0.9
    assert share(finding, rule, "non-members").interval.contains(finding.chance)
    assert share(infer_sources(untrained), rule).interval.contains(finding.chance)
    sets = memorised.sets
    swapped = replace(memorised, sets=replace(sets, members=(*sets.members[1:], sets.members[0])))
    assert share(infer_sources(swapped), rule).accuracy < 0.1


def plain_attribution(audit, rule):
    """Client with the lowest mean loss for every member, one sample and one model at a time."""
    uploads = observed_uploads(audit.transcript.server_view(), audit.knowledge, audit.kept_rounds)

    def phi(net, samples):
        images, labels = audit.knowledge.store.batch(torch.from_numpy(samples))
        with torch.no_grad():
            chances = net(images).double().softmax(1)[torch.arange(len(labels)), labels].numpy()
        return np.log(chances), np.log(chances) - np.log1p(-chances)

    correct = {}
    for owner in audit.clients:
        samples, losses = audit.truth.members[owner], []
        for models in uploads.values():
            rounds = []
            for model in models:
                net = audit.query.network(model.snapshot)
                logs, logit = phi(net, samples)
                known = phi(net, audit.knowledge.population)[1]
                rounds.append(-logs if rule == "loss" else -(logit - known.mean()) / known.std())
            losses.append(sum(rounds) / len(rounds))
        correct[owner] = int((np.argmin(losses, axis=0) == owner).sum())
    return correct


@pytest.mark.parametrize("rule", ["loss", "calibrated"])
def test_agrees_with_a_plain_computation(unequal, rule):
    """All together, and by width of the owner."""
    finding, correct = infer_sources(unequal), plain_attribution(unequal, rule)
    assert share(finding, rule).correct == sum(correct.values())
    for rate in (1.0, 0.25):
        clients = [client for client, own in enumerate(RATES) if own == rate]
        row = share(finding, rule, f"members of width {rate:g}")
        assert row.clients == 2
        assert row.correct == sum(correct[client] for client in clients)
        assert row.samples == sum(len(unequal.truth.members[client]) for client in clients)


def responses(margins):
    """Of two classes, the first of which is the true one."""
    return Responses(np.stack([margins, np.zeros_like(margins)], axis=1), np.zeros(len(margins), dtype=np.int64))


def test_calibration_forgets_the_scale_of_a_model():
    """Margins that are stretched and shifted give the same numbers: those in standard deviations of the reference."""
    rng = np.random.default_rng(0)
    own, known = rng.normal(size=20), rng.normal(size=50)
    expected = -(own - known.mean()) / known.std()
    np.testing.assert_allclose(calibrated(responses(own), responses(known)), expected, atol=1e-12)
    stretched = calibrated(responses(4 * own + 3), responses(4 * known + 3))
    np.testing.assert_allclose(stretched, expected, atol=1e-9)


def test_calibration_finds_the_members_of_narrow_models():
    """A wide model is surer of everything, a narrow one of its members only by its own measure."""
    rng = np.random.default_rng(0)
    wide, narrow = ((rng.normal(size=500) * scale + shift, scale, shift) for scale, shift in ((3, 8), (1, 0)))
    known = [responses(rng.normal(size=500) * scale + shift) for _, scale, shift in (wide, narrow)]
    members = [responses(wide[0]), responses(narrow[0] + 4)]  # of the narrow one
    raw = np.argmin([one.losses for one in members], axis=0)
    assert (raw == 1).mean() < 0.2
    calm = np.argmin([calibrated(*pair) for pair in zip(members, known, strict=True)], axis=0)
    assert (calm == 1).mean() > 0.98


def test_not_available(tmp_path):
    """Where the server sees masks, and where one client alone takes part."""
    masked = infer_sources(audit_of(*trained(tmp_path / "masked", callbacks=[SecureAggregation()])))
    assert isinstance(masked, NotAvailable)
    assert "masked sums" in masked.reason
    alone = infer_sources(audit_of(*trained(tmp_path / "alone", data=RandomLabels(clients=1))))
    assert "nothing to choose from" in alone.reason
    assert "nothing to choose from" in SourceRecord.text([SourceRecord.of(alone)])


def test_without_a_population(tmp_path):
    """The attacker's own data take its place; with none at all, the raw loss is left, with a remark."""
    settings = {"epochs": 2, "data": RandomLabels(holdout=Holdout(0.5, 0.25, 0.0))}
    assert {one.rule for one in infer_sources(audit_of(*trained(tmp_path / "own", **settings))).shares} == {
        "loss",
        "calibrated",
    }
    settings["data"] = RandomLabels(holdout=Holdout(0.5, 0.0, 0.0))
    finding = infer_sources(audit_of(*trained(tmp_path / "none", **settings)))
    assert {one.rule for one in finding.shares} == {"loss"}
    assert any("data.holdout.population" in note for note in finding.notes)


def test_record(tmp_path):
    """What is shown, kept and read back: every share with its exact interval beside chance."""
    shares = (SourceShare("loss", "all members", 3, 40, 60), SourceShare("loss", "non-members", 3, 20, 60))
    record = SourceRecord.of(SourceFinding(shares, 3, 0.4, ("a remark",), 1.5))
    exact = clopper_pearson(40, 60)
    assert record.rows[0] == ("loss", "all members", 3, 60, 40, 40 / 60, exact.low, exact.high, 1 / 3)
    assert record.numbers["loss, all members, low"] == exact.low
    assert record.numbers["chance"] == pytest.approx(1 / 3)
    record.save(tmp_path)
    (loaded,) = Measurement.load_all(tmp_path)
    assert loaded.numbers == record.numbers
    assert SourceRecord.text([record]).splitlines()[-1] == "  a remark"
    assert "0.667" in SourceRecord.text([record])
