"""Gradient ascent by a malicious server or participant: who is found, what it changes, and where it cannot be."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import LocalTraining, sgd
from federation_under_attack import audit_of, audited, trained
from torch.nn.functional import cross_entropy

from app.attacks.membership.gradient_ascent import ascend
from app.attacks.model_query import ModelQuery
from app.attacks.models import Snapshot
from app.common.errors import UserError
from app.federation.parameters import FlatNet, ParameterSpace
from app.metrics.membership import NotAvailable
from app.models import MLP
from callbacks import GradientAscent, Paillier, SecureAggregation
from callbacks.attacks.membership_inference import public_knowledge
from datamodules import FederatedDataModule, Holdout, Iid, RawData

SERVER, PARTICIPANT = "gradient-ascent.uploads", "gradient-ascent.global"


class Easy(FederatedDataModule):
    """Two classes far apart in many dimensions: the losses of non-members are low, too, so the loss tells little."""

    def __init__(self):
        super().__init__(Iid(2), Holdout(0.5, 0.1, 0.1), None, 0)

    def load(self):
        """Noise, and a common direction that tells the class."""
        draw = np.random.default_rng(3)
        labels = draw.integers(0, 2, 260)
        direction = draw.normal(size=(12, 12, 1))
        means = 6 * (2 * labels - 1)[:, None, None, None] * direction / np.linalg.norm(direction)
        images = torch.from_numpy(draw.normal(size=(260, 12, 12, 1)) + means).float()
        test = torch.arange(260) >= 240
        return RawData.divided(images, torch.from_numpy(labels), test, class_names=("0", "1"), mean=(0.0,), std=(1.0,))


def attacked(folder, *callbacks, **settings):
    """A federation under attack, and its results by label."""
    federation, transcript = trained(folder, callbacks=callbacks, **settings)
    return federation, transcript, {result.label: result for result in federation.results}


def area(result):
    """Area under the ROC curve."""
    return result.leakage.auc.value


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """Clients of two widths that fit their random labels, under both adversaries."""
    both = (GradientAscent(strength=0.1), GradientAscent("participant", strength=0.1))
    return attacked(tmp_path_factory.mktemp("m"), *both, rounds=3, capacities=[1.0, 1.0, 0.5])


def test_memorised_members_are_found(memorised):
    """By the server nearly all of them; a participant sees them through the mean of three."""
    assert area(memorised[2][SERVER]) > 0.95
    assert area(memorised[2][PARTICIPANT]) > 0.75


def test_results_are_ordinary_findings(memorised):
    """Adversary, targets, and rows of the right clients; a participant does not attack itself."""
    results = memorised[2]
    assert [results[label].conditions.adversary for label in (SERVER, PARTICIPANT)] == ["malicious", "malicious-client"]
    assert set(results[SERVER].scores.clients) == {0, 1, 2}
    assert set(results[PARTICIPANT].scores.clients) == {1, 2}
    sets = memorised[0].data.membership
    for result in (results[SERVER], results[PARTICIPANT]):
        rows = result.scores
        members = np.concatenate(sets.members)
        np.testing.assert_array_equal(rows.members, np.isin(rows.samples, members))
        assert "has changed the model" in result.notes[0]
    assert [row.rate for row in results[SERVER].capacities] == [1.0, 0.5]


def test_nothing_is_found_where_nothing_is_learnt(tmp_path):
    """Clients that do not train cannot react: chance, within four standard deviations."""
    both = (GradientAscent(), GradientAscent("participant"))
    results = attacked(tmp_path, *both, rounds=3, lr=0.0, epochs=1)[2]
    for result in results.values():
        rows = result.scores
        deviation = np.sqrt((len(rows.members) + 1) / (12 * rows.member_count * rows.nonmember_count))
        assert abs(area(result) - 0.5) < 4 * deviation


def test_it_finds_what_the_loss_alone_does_not(tmp_path):
    """Where non-members fit as well, raised losses do not come down again: far ahead of the passive attack."""
    task = {
        "rounds": 4,
        "net": partial(MLP, hidden=(32,)),
        "local": LocalTraining(epochs=4, batch_size=10, optimizer=sgd(0.03)),
    }
    federation, transcript, _ = attacked(tmp_path / "a", data=Easy(), **task)
    passive = audited(audit_of(federation, transcript), "yeom", calibrate=False)
    server = attacked(tmp_path / "b", GradientAscent(isolate=True), data=Easy(), **task)[2]
    participant = attacked(tmp_path / "c", GradientAscent("participant"), data=Easy(), **task)[2]
    assert area(server[SERVER]) > area(passive["yeom.uploads"]) + 0.15
    assert area(participant[PARTICIPANT]) > area(passive["yeom.global"])


@pytest.mark.parametrize("adversary", ["server", "participant"])
def test_strength_zero_changes_nothing(tmp_path, adversary):
    """Bit for bit the model of a federation without it, and yet a result."""
    plain = attacked(tmp_path / "a", epochs=1)[0]
    watched, _, results = attacked(tmp_path / "b", GradientAscent(adversary, strength=0.0), epochs=1)
    assert torch.equal(plain.space.read(plain.net), watched.space.read(watched.net))
    assert len(results) == 1
    raised = attacked(tmp_path / "c", GradientAscent(adversary), epochs=1)[0]
    assert not torch.equal(plain.space.read(plain.net), raised.space.read(raised.net))


@pytest.mark.parametrize("channel", [SecureAggregation, partial(Paillier, simulate=True, range=4.0)])
@pytest.mark.filterwarnings("ignore:Paillier")
def test_hidden_uploads_stop_the_server_only(tmp_path, channel):
    """It stays honest, and its result says why; the participant goes on."""
    both = (GradientAscent(), GradientAscent("participant", strength=0.01))
    _, _, results = attacked(tmp_path, channel(), *both, epochs=2, lr=0.1)
    assert isinstance(results[SERVER].leakage, NotAvailable)
    assert "no local model" in results[SERVER].leakage.reason
    assert not results[SERVER].failed
    assert 0 <= area(results[PARTICIPANT]) <= 1


def test_steps_are_those_of_sgd_uphill(memorised):
    """A network of the narrow width, against torch's own optimiser with `maximize`."""
    federation, ids = memorised[0], np.arange(9)
    net = federation.net.scaled(0.5)
    space = ParameterSpace(net)
    start = Snapshot(1, 0.5, space.read(net))
    query = ModelQuery(public_knowledge(federation, 1))
    raised = ascend(query, start, ids, 0.3, 2).vector
    images, labels = federation.data.store.batch(torch.from_numpy(ids))
    steps = torch.optim.SGD(net.eval().parameters(), lr=0.3, maximize=True)
    for _ in range(2):
        steps.zero_grad()
        cross_entropy(net(images), labels).backward()
        steps.step()
    torch.testing.assert_close(raised, FlatNet(space, net).read())
    assert not torch.equal(raised, start.vector)


def test_state_survives_a_checkpoint(memorised):
    """What was seen before an interruption is there afterwards."""
    attack = next(one for one in memorised[0].trainer.callbacks if isinstance(one, GradientAscent))
    other = GradientAscent()
    other.load_state_dict(attack.state_dict())
    assert other._margins.keys() == attack._margins.keys() == {0, 1, 2}
    np.testing.assert_array_equal(other._margins[1], attack._margins[1])


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"rounds": [3]}, "round 3 of 2"),
        ({"adversary": "participant", "rounds": [2]}, "round 2 of 2"),
        ({"victims": [7]}, "no client 7"),
        ({"adversary": "participant", "isolate": True}, "isolate"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, settings, cause):
    """Before any training."""
    with pytest.raises(UserError, match=cause):
        attacked(tmp_path, GradientAscent(**settings))


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"steps": 0}, {"samples": 3}])
def test_values_out_of_range_are_refused(tmp_path, settings):
    """Before any training."""
    with pytest.raises(UserError, match=f"attacks.NAME.{next(iter(settings))} is"):
        attacked(tmp_path, GradientAscent(**settings))
