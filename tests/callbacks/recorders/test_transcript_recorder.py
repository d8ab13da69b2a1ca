"""The transcript holds what happened in the rounds that attacks need, and nothing else."""

import pytest
import torch
from run_kit import UNEQUAL, Witness, command, records, train

from app.common.errors import UserError
from app.configuration import expand, run_parser
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.run import run_of

pytestmark = pytest.mark.usefixtures("no_figures")

WATCHED = (*UNEQUAL, "--config", "fedavg", "--attacks.witness", "run_kit.Witness")


def views(folder):
    """The transcript of a run, and the server's view of it."""
    transcript = Transcript(folder / "transcript")
    return transcript, transcript.server_view()


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run of unequal clients under FedAvg, and every message that was sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Witness, "messages", [])
        return train(tmp_path_factory.mktemp("runs"), "a", *WATCHED, rounds=4), Witness.messages


def test_the_last_two_rounds_by_default(watched):
    """Rounds 3 and 4 of 4."""
    assert views(watched[0])[0].rounds == [3, 4]


def test_uploads_are_what_was_sent(watched):
    """Every client of the round, its coordinates and its exact values."""
    folder, messages = watched
    server = views(folder)[1]
    for round_ in (3, 4):
        sent = sorted((m for m in messages if m.round + 1 == round_), key=lambda m: m.client)
        uploads = server.uploads(round_)
        assert [upload.client for upload in uploads] == [message.client for message in sent]
        assert {upload.index is None for upload in uploads} == {True, False}, "whole networks need no index"
        for upload, message in zip(uploads, sent, strict=True):
            assert upload.form == "plain"
            assert torch.equal(upload.payload, message.payload)
            index = torch.arange(len(message.payload)) if upload.index is None else upload.index
            assert torch.equal(index, message.index)


def test_mean_of_the_uploads_is_the_released_model(watched):
    """FedAvg, each weight over the clients that hold it; weights that were not sent keep the broadcast's value."""
    server = views(watched[0])[1]
    theta = server.broadcast(4).double()
    total, count = torch.zeros_like(theta), torch.zeros_like(theta)
    for upload in server.uploads(4):
        index = torch.arange(len(theta)) if upload.index is None else upload.index
        total[index] += upload.payload.double()
        count[index] += 1
    mean = torch.where(count > 0, total / count.clamp(min=1), theta)
    assert torch.allclose(mean, server.released().double(), atol=1e-6)
    assert not torch.allclose(theta, server.released().double(), atol=1e-3)


def test_broadcast_is_what_the_round_before_gave(watched):
    """Aggregating round 3 gives the broadcast of round 4."""
    folder, messages = watched
    server = views(folder)[1]
    expected = server.broadcast(3).double()
    total, count = torch.zeros_like(expected), torch.zeros_like(expected)
    for message in messages:
        if message.round == 2:
            total.index_add_(0, message.index, message.payload.double())
            count.index_add_(0, message.index, torch.ones(len(message.index), dtype=torch.double))
    expected = torch.where(count > 0, total / count.clamp(min=1), expected)
    assert torch.allclose(server.broadcast(4).double(), expected, atol=1e-6)
    assert torch.equal(server.broadcast(4), server.aggregate(3))
    assert torch.equal(server.released(), server.aggregate(4))


def test_further_rounds_on_request(tmp_path):
    """Named rounds besides the last; or nothing but the released model."""
    folder = train(tmp_path, "a", "--transcript.rounds", "[1, 3]", "--transcript.last", "1", rounds=4)
    assert views(folder)[0].rounds == [1, 3, 4]
    folder = train(tmp_path, "b", "--transcript.last", "0", rounds=2)
    transcript, server = views(folder)
    assert transcript.rounds == []
    assert len(server.released()) == 610


@pytest.mark.parametrize("further", [[], [1]])
def test_early_stopping_keeps_the_rounds_that_were_last(further, tmp_path):
    """Stopped after 4 of 9 rounds: the transcript holds 3 and 4, and what was asked for."""
    stop = ("monitor=server/accuracy", "mode=max", "min_delta=1.0", "patience=3")
    options = ["--trainer.callbacks+=EarlyStopping", *(f"--trainer.callbacks.{option}" for option in stop)]
    folder = train(tmp_path, "a", *options, "--transcript.rounds", str(further), rounds=9)
    assert [record["round"] for record in records(folder)] == [1, 2, 3, 4]
    transcript, server = views(folder)
    assert transcript.rounds == [*further, 3, 4]
    mean = torch.stack([upload.payload for upload in server.uploads(4)]).mean(0)
    assert torch.allclose(mean, server.released(), atol=1e-6)


@pytest.mark.parametrize("form", ["masked", "ciphertext"])
def test_hidden_payload_is_not_recorded(form, tmp_path):
    """Under masks or encryption the server's view holds who and which coordinates, and no values."""
    options = ("--defenses.seal", "run_kit.Seal", "--defenses.seal.form", form)
    folder = train(tmp_path, "a", *UNEQUAL, *options, rounds=1)
    uploads = views(folder)[1].uploads(1)
    assert len(uploads) == 4
    assert all(upload.payload is None and upload.form == form for upload in uploads)
    assert any(upload.index is not None for upload in uploads)
    models = 2 * 4 * len(views(folder)[1].released())
    assert (folder / "transcript" / "round-00001.npz").stat().st_size < models + 4 * 2000


@pytest.mark.parametrize("options", [UNEQUAL, ("--config", "local-head"), ("--config", "local")], ids=" ".join)
def test_announced_size_is_the_size_on_disk(options, tmp_path):
    """Within a tenth, whatever part of the network travels."""
    parser = run_parser()
    arguments = command(tmp_path, "a", *options, "--model.net.hidden", "[400]", rounds=2)
    run = run_of(parser, parser.parse_args(expand(arguments)))
    run.fit()
    [recorder] = [callback for callback in run.trainer.callbacks if isinstance(callback, TranscriptRecorder)]
    found = sum(path.stat().st_size for path in (tmp_path / "a" / "transcript").rglob("*.npz"))
    assert recorder.expected_bytes(run.federation) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("ask", [lambda view: view.uploads(2), lambda view: view.broadcast(2)])
def test_round_that_was_not_kept(ask, watched):
    """Not an empty answer but an error that tells how to keep the round."""
    with pytest.raises(UserError, match=r"--transcript\.rounds"):
        ask(views(watched[0])[1])


def test_wanted_rounds():
    """The last ones and the named ones, counted from 1."""
    settings = TranscriptSettings(last=2, rounds=[3])
    assert [round_ for round_ in range(1, 11) if settings.wanted(round_, 10)] == [3, 9, 10]
