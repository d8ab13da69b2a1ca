"""Every adversary gets the view of its threat model and has no way to ask for more."""

import numpy as np
import pytest
import torch

from app.common.errors import UserError
from app.federation.channels.base import Message
from app.federation.transcript import ClientView, ExternalView, ServerView, Transcript


@pytest.fixture
def transcript(tmp_path):
    """One round with one plain message about coordinates 1 and 3 of five."""
    transcript = Transcript(tmp_path)
    transcript.record_broadcast(1, torch.arange(5.0))
    transcript.record_message(Message(7, 0, torch.tensor([1, 3]), torch.tensor([0.5, -1.0]), "plain", 8), coordinates=5)
    transcript.record_aggregate(1, torch.full((5,), 2.0))
    transcript.record_released(torch.ones(5))
    return transcript


def public(view):
    """What a view offers."""
    return {name for name in dir(view) if not name.startswith("_")}


def test_views_offer_exactly_what_the_adversary_sees(transcript):
    """Outside: the released model; a client: also the models of the rounds; the server: also messages."""
    assert public(transcript.external_view()) == {"released"}
    assert public(transcript.client_view()) == {"released", "broadcast", "aggregate", "rounds"}
    assert public(transcript.server_view()) == {"released", "broadcast", "aggregate", "rounds", "uploads", "readable"}
    assert not isinstance(transcript.external_view(), ClientView)
    assert not isinstance(transcript.client_view(), ServerView)
    assert isinstance(transcript.server_view(), ExternalView)


def test_half_precision_is_kept(tmp_path):
    """NumPy has no bfloat16; single precision holds all its values."""
    transcript, theta = Transcript(tmp_path), torch.tensor([1.0, 1 / 3, -3e38], dtype=torch.bfloat16)
    transcript.record_released(theta)
    assert torch.equal(transcript.external_view().released(), theta.float())


def test_values_come_back_exactly(transcript):
    """Arrays, coordinates and sender."""
    server = transcript.server_view()
    assert server.rounds == [1]
    assert server.broadcast(1).tolist() == [0, 1, 2, 3, 4]
    assert server.aggregate(1).tolist() == [2] * 5
    [upload] = server.uploads(1)
    assert (upload.client, upload.form) == (7, "plain")
    assert upload.payload.tolist() == [0.5, -1.0]
    assert upload.index.tolist() == [1, 3]
    assert upload.index.dtype == torch.int64


def test_message_without_payload(transcript):
    """Ciphertext leaves no values on disk."""
    transcript.record_message(Message(8, 0, torch.arange(5), None, "ciphertext", 640), coordinates=5)
    upload = transcript.server_view().uploads(1)[-1]
    assert upload.payload is None
    assert upload.index is None
    assert upload.form == "ciphertext"


def test_models_under_encryption(tmp_path):
    """Clients can read them and the server cannot, until the final one is released."""
    transcript = Transcript(tmp_path)
    transcript.record_broadcast(1, torch.arange(5.0), "ciphertext")
    transcript.record_aggregate(1, torch.full((5,), 2.0))
    transcript.record_broadcast(2, torch.arange(5.0), "masked")
    transcript.record_released(torch.ones(5))
    server, client = transcript.server_view(), transcript.client_view()
    assert (server.readable(1), server.readable(2)) == (False, True)
    for look in (server.broadcast, server.aggregate):
        with pytest.raises(UserError, match="the server sees ciphertext only in round 1"):
            look(1)
    assert client.broadcast(1).tolist() == [0, 1, 2, 3, 4]
    assert client.aggregate(1).tolist() == [2] * 5
    assert server.broadcast(2).tolist() == [0, 1, 2, 3, 4]
    assert server.released().tolist() == [1] * 5
    transcript.record_broadcast(1, torch.arange(5.0))
    assert server.readable(1), "as where a run is repeated without encryption"


def test_forgotten_round(transcript):
    """Gone from all views."""
    transcript.forget(1)
    assert transcript.rounds == []
    with pytest.raises(UserError, match="nothing to look at"):
        transcript.client_view().broadcast(1)


def test_arrays_with_objects_are_refused(transcript, tmp_path):
    """A transcript is data: pickled objects inside an array file are not loaded."""
    np.savez(tmp_path / "released.npz", theta=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        transcript.external_view().released()
