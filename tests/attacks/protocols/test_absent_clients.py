"""Clients that took part in no round: their samples are no members, and nobody audits them."""

import numpy as np
import pytest
from federation_under_attack import audit_of, audited, trained
from paper_kit import make_audit

from app.attacks.protocols.mapp_fl import MappFL
from app.attacks.targets import released_model
from app.federation.all_clients import Newcomers


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Two of three clients have memorised their samples; the third joins later."""
    return audit_of(*trained(tmp_path_factory.mktemp("joined"), newcomers=Newcomers(clients=1)))


def test_samples_of_newcomers_are_not_audited(joined):
    """They would pass for members that no attack finds."""
    (absent,) = {0, 1, 2} - set(joined.clients)
    own = np.concatenate([joined.sets.members[absent], joined.sets.nonmembers[absent]])
    for finding in audited(joined, "yeom").values():
        assert not np.isin(finding.scores.samples, own).any(), finding.conditions.label
        assert absent not in finding.scores.client_ids
        assert "1 of 3 clients took part in no round, and are not audited" in finding.notes


def test_the_global_model_is_as_large_as_what_was_trained_on(tmp_path):
    """Shadows follow its size, and all that clients own would be too much."""
    audit = make_audit(tmp_path, (20, 20, 20, 20), 40, rounds=1, participation=0.5)
    model = released_model(audit.transcript.external_view(), audit.knowledge, "run")
    assert model.size == sum(map(len, audit.truth.members)) == 40
    assert len(audit.rates) == 4


def test_papers_protocols_leave_them_out_too(tmp_path):
    """The server's members are those of the participants."""
    audit = make_audit(tmp_path, (60, 60, 60, 60), 300, rounds=1, participation=0.5)
    inside = np.concatenate([audit.sets.members[client] for client in audit.clients])
    (finding,) = (one for one in MappFL().findings(audit) if one.conditions.target == "global")
    assert np.isin(finding.scores.samples[finding.scores.members], inside).all()
    assert finding.notes[0] == "2 of 4 clients took part in no round, and are not audited"
