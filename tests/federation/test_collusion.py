"""What participants who collude add to a server's view, against an adversary that computes it on its own."""

from functools import partial

import numpy as np
import pytest
import torch
from channel_kit import MASKED, SIMULATED
from federation_kit import Recorder, make_trainer, sgd, small_federation
from federation_under_attack import RandomLabels, audit_of, audited

from app.common.errors import UserError
from app.federation.collusion import JoinedTranscript, drawn_colluders
from app.federation.local_training import LocalTraining
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.metrics.membership import NotAvailable
from app.models import MLP

CLIENTS = 4
STEP = 2.0 * 2.0 / 2**24
"""Precision of the masked channel's integers."""


def kept(folder, *defenses, colluding=0, rounds=1, **settings):
    """A run of four clients, what they really sent, and its transcript."""
    sent = Recorder()
    settings.setdefault("local", LocalTraining(batch_size=20, epochs=2, optimizer=sgd(0.2)))
    federation = small_federation(partial(MLP, hidden=(8,)), **settings)
    recorder = TranscriptRecorder(folder, TranscriptSettings(rounds, colluding=colluding), announce=False)
    trainer = make_trainer(rounds, "32-true", [*defenses, sent, recorder], limit_val_batches=0)
    trainer.fit(federation, datamodule=RandomLabels(CLIENTS))
    return federation, {client: vector for client, vector, _ in sent.updates}, Transcript(folder)


def seen(transcript, colluders):
    """Uploads by client, as the colluding server sees them."""
    return {one.client: one for one in JoinedTranscript(transcript, colluders).server_view().uploads(1)}


def test_more_colluders_include_fewer():
    """Drawn by the seed, and not the first ones."""
    assert drawn_colluders(0, 9, 0) == ()
    for count in range(1, 9):
        assert set(drawn_colluders(3, 9, count)) < set(drawn_colluders(3, 9, count + 1))
    assert len({drawn_colluders(seed, 9, 3) for seed in range(9)}) > 5


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_all_but_one_take_their_updates_off_the_sum(tmp_path, weighting):
    """What is left is the upload of the only one who does not collude, up to the integer code."""
    federation, sent, transcript = kept(tmp_path, MASKED(), colluding=3, weighting=weighting)
    colluders = drawn_colluders(federation.seed, CLIENTS, 3)
    uploads = seen(transcript, colluders)
    (victim,) = set(range(CLIENTS)) - set(colluders)
    heaviest = max(federation.client_pool.sizes) if weighting == "samples" else 1
    for client, upload in uploads.items():
        tolerance = (STEP * CLIENTS * heaviest if client == victim else STEP) + 1e-6
        assert float((upload.payload - sent[client]).abs().max()) <= tolerance
    assert uploads[victim].form == "opened"


def test_independent_subtraction(tmp_path):
    """The adversary's own arithmetic: n times the next model, less the models of the three who tell theirs."""
    federation, sent, transcript = kept(tmp_path, MASKED(), colluding=3)
    colluders = drawn_colluders(federation.seed, CLIENTS, 3)
    (victim,) = set(range(CLIENTS)) - set(colluders)
    mean = transcript.client_view().aggregate(1).double()
    own = CLIENTS * mean - sum(sent[client].double() for client in colluders)
    torch.testing.assert_close(seen(transcript, colluders)[victim].payload.double(), own, atol=1e-5, rtol=0)


def test_fewer_see_the_sum_of_the_rest(tmp_path):
    """Two of four: no single upload of the others, and the reason says what is visible. The plain server sees none."""
    federation, _, transcript = kept(tmp_path, MASKED(), colluding=2)
    colluders = drawn_colluders(federation.seed, CLIENTS, 2)
    for client, upload in seen(transcript, colluders).items():
        assert (upload.payload is not None) == (client in colluders)
        if client not in colluders:
            assert upload.hidden == "the sum of 2 honest clients is visible, no single upload"
    assert all(one.payload is None and not one.hidden for one in transcript.server_view().uploads(1))


def test_unequal_widths_leave_weights_alone(tmp_path):
    """One wide and one narrow client left: the wide one is alone on its outer weights, and hidden on the others."""
    _, sent, transcript = kept(tmp_path, MASKED(), colluding=2, capacities=[1.0, 0.5, 1.0, 0.5], seed=1)
    colluders = drawn_colluders(1, CLIENTS, 2)
    honest = sorted(set(range(CLIENTS)) - set(colluders))
    uploads = seen(transcript, colluders)
    sizes = {client: len(sent[client]) for client in honest}
    assert len(set(sizes.values())) == 2, "one of each width"
    narrow, wide = sorted(honest, key=sizes.get)
    assert "alone" in uploads[wide].hidden
    assert "alone" not in uploads[narrow].hidden


@pytest.mark.parametrize("colluding", [0, 1])
def test_one_participant_opens_all_ciphertexts(tmp_path, colluding):
    """It holds the private key; without it, not even the model can be read."""
    federation, sent, transcript = kept(tmp_path, SIMULATED(), colluding=colluding)
    alone = transcript.server_view()
    assert not alone.readable(1)
    assert all(one.payload is None for one in alone.uploads(1))
    colluders = drawn_colluders(federation.seed, CLIENTS, 1)
    if not colluding:
        with pytest.raises(UserError, match="does not hold what these participants know"):
            seen(transcript, colluders)
        return
    joined = JoinedTranscript(transcript, colluders).server_view()
    assert torch.equal(joined.broadcast(1), transcript.client_view().broadcast(1))
    for upload in joined.uploads(1):
        assert upload.form == "opened"
        torch.testing.assert_close(upload.payload, sent[upload.client], atol=1e-5, rtol=0)


def test_what_was_not_recorded_is_refused(tmp_path):
    """Three collude, one was kept: an attack would take the others' uploads for honest ones."""
    federation, _, transcript = kept(tmp_path, MASKED(), colluding=1)
    with pytest.raises(UserError, match=r"--transcript\.colluding"):
        seen(transcript, drawn_colluders(federation.seed, CLIENTS, 3))


def test_colluders_give_their_data_and_are_not_audited(tmp_path):
    """Under a plain channel: their samples join the attacker's own, apart from all that are audited."""
    federation, _, transcript = kept(tmp_path)
    alone = audit_of(federation, transcript)
    joined = alone.joined_by(2)
    joined.check_disjoint()
    members = np.concatenate([alone.sets.members[client] for client in joined.colluders])
    assert np.isin(members, joined.knowledge.auxiliary).all()
    assert not np.isin(members, alone.knowledge.auxiliary).any()
    found = audited(joined, "yeom", targets=("global", "uploads"), calibrate=False)
    assert set(found) == {"yeom.global.colluding-2", "yeom.uploads.colluding-2"}
    for finding in found.values():
        assert finding.conditions.adversary == "colluding-clients"
        assert not set(finding.scores.clients.tolist()) & set(joined.colluders)
    with pytest.raises(UserError, match="4 of 4 clients are to collude"):
        alone.joined_by(4)
    assert alone.joined_by(0) is alone


@pytest.mark.parametrize(("colluding", "available"), [(3, True), (2, False)])
def test_an_audit_under_masks_follows_from_the_view(tmp_path, colluding, available):
    """The same scores as on the plain upload of the victim, or the reason in words."""
    federation, sent, transcript = kept(tmp_path / "masked", MASKED(), colluding=colluding)
    joined = audit_of(federation, transcript).joined_by(colluding)
    (found,) = audited(joined, "yeom", targets=("uploads",), calibrate=False).values()
    assert isinstance(found.scores, NotAvailable) != available
    if not available:
        assert "the sum of 2 honest clients is visible" in found.scores.reason
        return
    plain_federation, plain_sent, plain = kept(tmp_path / "plain")
    (victim,) = joined.clients
    assert torch.equal(plain_sent[victim], sent[victim])
    (other,) = audited(
        audit_of(plain_federation, plain).joined_by(3), "yeom", targets=("uploads",), calibrate=False
    ).values()
    np.testing.assert_allclose(found.scores.scores, other.scores.scores, atol=1e-4)
