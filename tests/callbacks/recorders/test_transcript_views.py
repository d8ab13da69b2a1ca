"""Every adversary gets the view of its threat model and has no way to ask for more."""

from zipfile import BadZipFile

import numpy as np
import pytest
import torch

from app.common.array_files import ArrayFile
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
    transcript.finish(1)
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
    transcript.record_message(Message(8, 1, torch.arange(5), None, "ciphertext", 640), coordinates=5)
    transcript.finish(2)
    [upload] = transcript.server_view().uploads(2)
    assert upload.payload is None
    assert upload.index is None
    assert upload.form == "ciphertext"


def test_models_under_encryption(tmp_path):
    """Clients can read them and the server cannot, until the final one is released."""
    transcript = Transcript(tmp_path)
    transcript.record_broadcast(1, torch.arange(5.0), "ciphertext")
    transcript.record_aggregate(1, torch.full((5,), 2.0))
    transcript.record_broadcast(2, torch.arange(5.0), "masked")
    transcript.finish(1)
    transcript.finish(2)
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
    transcript.finish(1)
    assert server.readable(1), "as where a run is repeated without encryption"


def test_forgotten_round(transcript):
    """Gone from all views."""
    transcript.forget(1)
    assert transcript.rounds == []
    with pytest.raises(UserError, match="nothing to look at"):
        transcript.client_view().broadcast(1)


def test_arrays_with_objects_are_refused(transcript, tmp_path):
    """A transcript is data: pickled objects inside an array file are not loaded."""
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "released.npz", theta=objects)
    np.savez(tmp_path / "round-00001.npz", broadcast=objects)
    for look in (transcript.external_view().released, lambda: transcript.client_view().broadcast(1)):
        with pytest.raises(ValueError, match="allow_pickle"):
            look()


def test_a_round_is_one_file(tmp_path):
    """However many clients there are; equal coordinates are kept once, and shared by the clients that have them."""
    transcript, odd = Transcript(tmp_path), torch.tensor([1, 3])
    for client in (30, 100_001, 4):
        transcript.record_message(Message(client, 0, odd.clone(), torch.full((2,), client), "plain", 8), coordinates=5)
    transcript.record_message(Message(5, 0, torch.arange(5), torch.zeros(5), "opened", 8), coordinates=5)
    assert not transcript.rounds, "the round is not finished"
    transcript.finish(1)
    assert [path.name for path in tmp_path.iterdir()] == ["round-00001.npz"]
    uploads = transcript.server_view().uploads(1)
    assert [(one.client, one.payload.tolist()[0]) for one in uploads] == [(4, 4), (5, 0), (30, 30), (100_001, 100_001)]
    assert uploads[0].index is uploads[2].index
    assert transcript.opened(1)
    assert sum(name.startswith("index") for name in np.load(tmp_path / "round-00001.npz").files) == 1


def test_reading_one_upload_reads_no_other(transcript, tmp_path, monkeypatch):
    """A round may be larger than the memory."""
    for client in range(50):
        transcript.record_message(Message(client, 1, torch.arange(5), torch.zeros(5), "plain", 8), coordinates=5)
    transcript.finish(2)
    read, plain = [], ArrayFile.read
    monkeypatch.setattr(ArrayFile, "read", lambda self, name: read.append(name) or plain(self, name))
    assert transcript.server_view().uploads(2)[7].payload.tolist() == [0] * 5
    assert read == ["client-00007.plain.whole"]


def test_parts_of_other_processes_are_added(tmp_path):
    """Each process records its own clients; the first one makes one file of all."""
    first, second = Transcript(tmp_path), Transcript(tmp_path)
    for client, transcript in enumerate((first, second)):
        transcript.record_message(Message(client, 0, torch.tensor([2]), torch.ones(1), "plain", 4), coordinates=5)
    first.record_aggregate(1, torch.ones(5))
    first.finish(1, [second.hand_over(1)])
    assert [upload.client for upload in first.server_view().uploads(1)] == [0, 1]
    assert second.hand_over(2) is None
    assert [path.name for path in tmp_path.iterdir()] == ["round-00001.npz"]


def test_unfinished_rounds_leave_nothing(tmp_path):
    """Neither where training ends in the middle of a round, nor where a process was killed in one."""
    transcript, killed = Transcript(tmp_path), Transcript(tmp_path)
    for one in (transcript, killed):
        one.record_broadcast(1, torch.ones(5))
    transcript.discard()
    assert len(list(tmp_path.iterdir())) == 1
    transcript.forget_unfinished()
    assert not list(tmp_path.iterdir())


def test_a_damaged_upload_is_noticed(transcript, tmp_path):
    """A byte that has changed on the disk, and a file that ends too early."""
    path = tmp_path / "round-00001.npz"
    content = path.read_bytes()
    place = content.index(np.array([0.5, -1.0], dtype=np.float32).tobytes())
    path.write_bytes(content[:place] + b"x" + content[place + 1 :])
    with pytest.raises(ValueError, match="has changed"):
        transcript.server_view().uploads(1)[0].payload  # noqa: B018
    path.write_bytes(content[:-40])
    with pytest.raises(BadZipFile):
        transcript.server_view().uploads(1)


def test_transcripts_of_version_0_6(tmp_path):
    """One file per client in a folder per round; read as before, and deleted as before."""
    folder = tmp_path / "round-00002"
    folder.mkdir()
    np.savez(folder / "broadcast.npz", theta=np.arange(5.0))
    np.savez(folder / "aggregate.npz", theta=np.ones(5))
    np.savez(folder / "client-00003.plain.npz", payload=np.array([7.0]), index=np.array([4], dtype=np.int32))
    np.savez(folder / "client-00001.masked.npz")
    (folder / "sealed").touch()
    transcript = Transcript(tmp_path)
    assert transcript.rounds == [2]
    hidden, plain = transcript.server_view().uploads(2)
    assert (hidden.client, hidden.form, hidden.index, hidden.payload) == (1, "masked", None, None)
    assert (plain.client, plain.form, plain.index.tolist(), plain.payload.tolist()) == (3, "plain", [4], [7.0])
    assert not transcript.server_view().readable(2)
    assert transcript.client_view().broadcast(2).tolist() == [0, 1, 2, 3, 4]
    transcript.forget(2)
    assert not list(tmp_path.iterdir())
