"""Federations whose clients hide which factors they use, under attack: who reads what, and that nothing else leaks."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from federation_under_attack import FEW, Again, RandomLabels, audit_of, audited, trained
from hidden_choice_kit import Planting, factorised, support

from app.attacks.adaptive.factor_choice import FactorChoice, FactorLayout, estimate
from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.protocols.waffle import WafflePaper
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob, initial_vector, train_centrally
from app.attacks.shadows.private_parts import READ_ALIKE, rounds_to_keep
from app.attacks.shadows.shadow_store import CentralShadows, ShadowOrder, ShadowSettings, train_or_find
from app.common.seeding import derive_key
from app.federation.checks.federation import composition_notes
from app.federation.kept_round import WHOLE
from app.federation.parameters import ParameterSpace
from app.metrics.leakage import Leakage
from app.metrics.membership import NO_CLIENT
from app.models import MLP
from callbacks.attacks.factor_recovery import true_choices
from callbacks.attacks.membership_inference import MembershipInference
from callbacks.defenses.secure_aggregation import SecureAggregation

NET = factorised(speed=100.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two rounds in which clients fit their samples and choose factors."""
    return trained(tmp_path_factory.mktemp("hidden"), epochs=4, net=NET)


@pytest.fixture(scope="module")
def audit(run):
    """That federation under attack."""
    return audit_of(*run, federations=Again(run[0]))


def uploads(audit, *adaptations):
    """What the server takes every client's last upload for."""
    return seen_models(audit, TargetSelection("uploads", audit.knowledge.rounds, False, adaptations), ())


def private_coordinates(federation):
    """Which coordinates of the server's vector never leave clients (bool)."""
    mask = torch.zeros(federation.space.size, dtype=torch.bool)
    mask[federation.personal.coordinates] = True
    return mask


def test_uploads_are_read_without_and_with_a_guess(run, audit):
    """Plain: what the server's own model says of all factors. Recovered: only choice coordinates differ from that."""
    federation, _ = run
    plain, recovered = uploads(audit), uploads(audit, FactorChoice())
    mask, server = private_coordinates(federation), federation.space.read(federation.net)
    choice = torch.zeros_like(mask)
    choice[FactorLayout.of(federation.net).choice_coordinates] = True
    for client in range(3):
        seen, guessed = plain[client].last.vector, recovered[client].last.vector
        assert torch.equal(seen[mask], server[mask])
        assert torch.equal(seen[~choice], guessed[~choice])
        assert not torch.equal(seen[choice], guessed[choice])
        assert plain[client].key != recovered[client].key


def test_planted_choices_are_recovered_through_the_federation(tmp_path):
    """Every client's own support, exactly, from its last upload."""
    federation, transcript = trained(tmp_path, epochs=2, callbacks=[Planting()], net=factorised())
    models = uploads(audit_of(federation, transcript), FactorChoice())
    layout, truth = FactorLayout.of(federation.net), true_choices(federation)
    for client, model in models.items():
        assert torch.equal(model.last.vector[layout.choice_coordinates] > 0, support(client))
        assert torch.equal(truth[client] > 0, support(client))


def test_nothing_private_is_in_the_transcript(run):
    """No message is about a private coordinate, and no file holds a value that a client keeps to itself."""
    federation, transcript = run
    server = federation.space.read(federation.net)[private_coordinates(federation)]
    initial, kept = federation.personal.initial, np.concatenate([federation.personal.of(one) for one in range(3)])
    secret = np.setdiff1d(kept, torch.cat([server, initial]).numpy())
    assert secret.size > 60, "clients have learnt something"
    files = sorted(path for path in transcript._folder.rglob("*") if path.is_file())
    assert [path.name for path in files] == ["released.npz", "round-00001.npz", "round-00002.npz"]
    arrays = {(path.name, name): array for path in files for name, array in np.load(path).items()}
    for place, array in arrays.items():
        assert not np.isin(array, secret).any(), place
        if place[1].startswith("index-"):
            assert not np.isin(array, federation.personal.coordinates.numpy()).any(), place
    uploads = [name for _, name in arrays if name.startswith("client-")]
    assert len(uploads) == 2 * 3, "every client's upload in both rounds"
    assert not any(name.endswith(WHOLE) for name in uploads), "each names its coordinates"


def test_audits_adapt_by_themselves(audit):
    """To the network's name; the global model holds nobody's choice, so that nobody is missed there."""
    assert [(part.name, part.traits) for part in audit.knowledge.defenses] == [("Factorised", {"hidden-choice"})]
    results = audited(audit, "yeom", calibrate=False)
    assert list(results) == ["yeom.global", "yeom.uploads", "yeom.uploads+recovered"]
    assert all(isinstance(finding.leakage, Leakage) for finding in results.values())
    assert FactorChoice.what in results["yeom.uploads+recovered"].notes
    assert not any("no attacker who adapts" in note for finding in results.values() for note in finding.notes)
    plain, guessed = (results[f"yeom.uploads{mark}"].scores.scores for mark in ("", "+recovered"))
    assert not np.array_equal(plain, guessed)
    assert list(audited(audit, "yeom", adaptive=False, calibrate=False)) == ["yeom.global", "yeom.uploads"]


def test_white_box_attacks_read_the_last_layer(audit):
    """What the classifier reads depends on the choice of factors before it."""
    samples = audit.knowledge.auxiliary[:6]
    plain, guessed = (uploads(audit, *how)[0] for how in ((), (FactorChoice(),)))
    inputs = [audit.query.activations(model, samples).inputs for model in (plain, guessed)]
    assert inputs[0].shape == inputs[1].shape == (6, 16)
    assert not np.array_equal(*inputs)


def test_a_network_without_a_choice_hides_nothing(tmp_path):
    """Nothing is added to its audit."""
    federation, transcript = trained(tmp_path, 1, epochs=1, net=partial(MLP, hidden=(8,)))
    audit = audit_of(federation, transcript)
    assert audit.knowledge.defenses == ()
    assert list(audited(audit, "yeom")) == ["yeom.global", "yeom.uploads"]


def test_waffles_protocol_gives_both_readings(audit):
    """The same figures for what an interceptor reads and for what it makes of it; only the former where it may not."""
    results = list(WafflePaper(shadows=2, clients=1, targets=["uploads"]).findings(audit))
    assert [finding.conditions.label for finding in results] == [
        "waffle.shokri.uploads",
        "waffle.shokri.uploads+recovered",
    ]
    for finding in results:
        assert [figure.name for figure in finding.figures] == ["accuracy %", "F1 %"]
        assert [client for client, _ in finding.figures[0].per_client] == [0]
        assert READ_ALIKE in finding.notes
        assert (FactorChoice.what in finding.notes) == finding.conditions.label.endswith("recovered")
    assert not np.array_equal(results[0].scores.scores, results[1].scores.scores)
    _, alone = WafflePaper(adaptive=False)._selections(audit)
    assert alone.adaptations == ()
    assert not MembershipInference(protocol="waffle", adaptive=False).protocol._adaptive


def shadows_of(audit, rounds, reading=None, seed=5):
    """Two shadows, read like a target that was read in some way."""
    jobs = [ShadowJob(number, 1.0, audit.knowledge.auxiliary[: 10 + number], seed) for number in range(2)]
    (models,) = train_or_find(audit.knowledge, [ShadowOrder(jobs, rounds, reading=reading)], ShadowCache(None))
    return jobs, models


@pytest.mark.parametrize("rounds", [(1,), (1, 2)])
def test_shadows_are_read_like_their_target(run, audit, rounds):
    """Their own choice is concealed, and guessed from their own last round where the target's was."""
    mask, server = private_coordinates(run[0]), run[0].space.read(run[0].net)
    reading = uploads(audit, FactorChoice())[0].reading
    jobs, plain = shadows_of(audit, rounds)
    _, guessed = shadows_of(audit, rounds, reading)
    kept = rounds_to_keep(audit.knowledge, rounds)
    assert kept == tuple(range(max(1, rounds[0] - 1), rounds[-1] + 1))
    whole = train_centrally(audit.knowledge, jobs, kept)
    layout = FactorLayout.of(audit.knowledge.prototype)
    for job, one, other, snapshots in zip(jobs, plain, guessed, whole, strict=True):
        assert one.rounds == other.rounds == rounds
        true = snapshots[-1].vector
        assert torch.equal(one.last.vector[~mask], true[~mask])
        assert torch.equal(one.last.vector[mask], server[mask])
        assert not torch.equal(true[mask], server[mask])
        start = initial_vector(audit.knowledge, 1.0, derive_key(5, "initialisation", job.number))
        steps = pairwise([start, *(snapshot.vector for snapshot in snapshots)])
        (layer,) = layout.layers
        expected = estimate(layer, sum(layer.scores((after - before).double()) for before, after in steps))
        assert torch.allclose(other.last.vector[layout.choice_coordinates].double(), expected)
        assert len({one.key, other.key}) == 2


def test_shadows_of_other_networks_are_as_they_were(tmp_path):
    """No round is added, and none is read again."""
    federation, transcript = trained(tmp_path, 1, epochs=1, net=partial(MLP, hidden=(8,)))
    audit = audit_of(federation, transcript)
    assert rounds_to_keep(audit.knowledge, (2, 5)) == (2, 5)
    jobs, models = shadows_of(audit, (1,))
    for model, (snapshot,) in zip(models, train_centrally(audit.knowledge, jobs, (1,)), strict=True):
        assert torch.equal(model.last.vector, snapshot.vector)


def test_shadows_are_kept_apart_by_their_reading(audit):
    """One source gives targets that were read differently different shadows."""
    source = CentralShadows(audit.knowledge, audit.audited, 2)
    plain, guessed = (source.shadows(uploads(audit, *how)[0], "out") for how in ((), (FactorChoice(),)))
    for one, other in zip(plain.shadows, guessed.shadows, strict=True):
        assert np.array_equal(one.members, other.members)
        assert not torch.equal(one.model.last.vector, other.model.last.vector)
    assert READ_ALIKE in plain.notes


def test_the_cache_knows_settings_that_layers_do_not_show(audit):
    """Two networks that print alike train differently."""
    cache, job = ShadowCache(None), ShadowJob(0, 1.0, audit.knowledge.auxiliary[:10], 0)
    nets = [factorised(speed=speed)(audit.knowledge.store.shape) for speed in (100.0, 100.0, 10.0)]
    keys = [cache.key(replace(audit.knowledge, prototype=net), job, (1,)) for net in nets]
    assert keys[0] == keys[1] != keys[2]


def test_federated_shadows_are_recovered_too(tmp_path):
    """Through the repeated federation, whose clients hide their choice like the target."""

    class Hidden(Again):
        def train(self, number, members, rounds, folder):
            data, empty = RandomLabels(), np.empty(0, dtype=np.int64)
            sets = replace(self.attacked.data.membership, members=tuple(members), nonmembers=(empty,) * 3)
            data.redealt(self.attacked.data, replace(sets, shadow=empty, population=empty))
            keep = (0, list(rounds))
            trained(folder, rounds[-1], data=data, seed=100 + number, keep=keep, epochs=1, net=NET)

    federation, transcript = trained(tmp_path, 1, epochs=1, net=NET, keep=(1, []))
    attacked = audit_of(federation, transcript, federations=Hidden(federation))
    settings = {"shadows": ShadowSettings("federated", 2), "calibrate": False, "targets": ("uploads",)}
    results = audited(attacked, "lira-offline", **settings)
    assert list(results) == ["lira-offline.uploads+retrained", "lira-offline.uploads+recovered+retrained"]
    assert all(isinstance(finding.leakage, Leakage) for finding in results.values())


def test_masked_uploads_show_no_factors(tmp_path):
    """Secure aggregation: N/A for both readings, with the reason, and a remark on the combination."""
    federation, transcript = trained(tmp_path, 1, epochs=1, net=NET, callbacks=[SecureAggregation()], keep=(1, []))
    results = audited(audit_of(federation, transcript), "yeom", targets=("uploads",), shadows=FEW)
    assert list(results) == ["yeom.uploads", "yeom.uploads+recovered"]
    assert all("masked sums only" in finding.leakage.reason for finding in results.values())
    assert any("which factors a client uses" in note for note in composition_notes(federation))


def test_the_released_model_uses_every_factor(run, audit):
    """Nobody's choice: choice coordinates are at the bound that means b = 1."""
    model = seen_models(audit, TargetSelection("global", audit.knowledge.rounds, False), ())[NO_CLIENT]
    layout = FactorLayout.of(run[0].net)
    assert layout.probabilities(model.last.vector[layout.choice_coordinates]).min() > 0.998
    assert ParameterSpace(run[0].net).size == len(model.last.vector)
