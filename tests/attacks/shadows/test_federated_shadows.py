"""Shadows that repeat the federation: who trains on what, and that the defenses are repeated too."""

import numpy as np
import pytest
from federation_under_attack import Again, audit_of, audited, trained

from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.shadows.federated import FederatedShadows
from app.attacks.shadows.shadow_store import ShadowSettings
from app.metrics.leakage import Leakage
from app.metrics.membership import NO_CLIENT


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A federation that leaks, and one that repeats it."""
    federation, transcript = trained(tmp_path_factory.mktemp("attacked"))
    again = Again(federation)
    return audit_of(federation, transcript, federations=again), again


def test_half_of_every_clients_samples(attacked, tmp_path):
    """In-out: each client trains on half of its own audited samples and on the attacker's data, never on others'."""
    audit, again = attacked
    again.runs.clear()
    source = FederatedShadows(audit.knowledge, audit.audited, (1, 2), again, count=2, cache=tmp_path)
    models = seen_models(audit, TargetSelection("uploads", 2, False), ())
    shadows = {client: source.shadows(model, "in-out").shadows for client, model in models.items()}
    assert len(again.runs) == 2, "one federation serves all clients"
    for client in audit.clients:
        own, sizes = audit.audited[client], audit.knowledge.plan_of(0).client_pool.sizes
        inside = [shadow.trained_on(own) for shadow in shadows[client]]
        assert np.array_equal(inside[0], ~inside[1])
        for number, shadow in enumerate(shadows[client]):
            assert set(shadow.members.tolist()) == again.runs[number][1][client]
            assert len(shadow.members) in (sizes[client], (len(own) + 1) // 2)
            assert np.isin(shadow.members, np.concatenate([own, audit.knowledge.auxiliary])).all()
            assert shadow.model.client == client
    whole = source.shadows(seen_models(audit, TargetSelection("global", 2, False), ())[NO_CLIENT], "in-out").shadows
    assert len(again.runs) == 2, "and the global model"
    assert np.array_equal(whole[0].trained_on(audit.audited[1]), shadows[1][0].trained_on(audit.audited[1]))


def test_own_data_only(attacked, tmp_path):
    """Out: no shadow client has seen an audited sample, and no two share one."""
    audit, again = attacked
    again.runs.clear()
    source = FederatedShadows(audit.knowledge, audit.audited, (1, 2), again, count=4, cache=tmp_path)
    model = seen_models(audit, TargetSelection("global", 2, False), ())[NO_CLIENT]
    for shadow in source.shadows(model, "out", first=2).shadows:
        assert np.isin(shadow.members, audit.knowledge.auxiliary).all()
        assert not np.isin(shadow.nonmembers, shadow.members).any()
    for _, members in again.runs:
        assert sum(map(len, members)) == len(set.union(*members))
        assert min(map(len, members)) >= 2
    assert len(again.runs) == 2


def test_kept_on_disk(attacked, tmp_path):
    """A second source runs nothing."""
    audit, again = attacked
    model = seen_models(audit, TargetSelection("global", 2, False), ())[NO_CLIENT]
    first = FederatedShadows(audit.knowledge, audit.audited, (1, 2), again, 2, tmp_path).shadows(model, "in-out")
    again.runs.clear()
    audit.knowledge.shadow_counts.clear()
    second = FederatedShadows(audit.knowledge, audit.audited, (1, 2), again, 2, tmp_path).shadows(model, "in-out")
    assert not again.runs
    assert audit.knowledge.shadow_counts == {"trained": 0, "reused": 2}
    assert not list(tmp_path.glob("*.lock"))
    assert first.shadows[1].model.key == second.shadows[1].model.key


def test_audit_with_repeated_federations(attacked):
    """The whole way: LiRA finds the members of uploads, and no result is called a stand-in."""
    audit, _ = attacked
    found = audited(audit, "lira-online", "yeom", shadows=ShadowSettings("federated", 4), calibrate=False)
    assert all(isinstance(finding.leakage, Leakage) for finding in found.values())
    assert found["lira-online.uploads"].leakage.auc.value > 0.95
    assert found["lira-online.global"].conditions.shadows == "4 federated"
    assert not any("stand-ins" in note for finding in found.values() for note in finding.notes)


def test_trajectories_of_several_rounds(tmp_path):
    """An attack network that reads three rounds is not used for two, though the same federations are the shadows."""
    federation, transcript = trained(tmp_path, rounds=3, epochs=2, keep=(3, []))
    audit = audit_of(federation, transcript, federations=Again(federation))
    settings = {"shadows": ShadowSettings("federated", 2), "calibrate": False, "rounds": (1, 2), "targets": ("global",)}
    found = audited(audit, "trajectory-uploads", **settings)
    assert isinstance(found["trajectory-uploads.global@2"].leakage, Leakage)
    assert isinstance(found["trajectory-uploads.global"].leakage, Leakage)
