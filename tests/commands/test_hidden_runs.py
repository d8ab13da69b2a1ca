"""Runs of the command line with encrypted or masked updates: resumed, attacked, without a trace of the key."""

import json
import re

import pytest
from run_kit import INTERRUPTIBLE, UNEQUAL, Interrupter, assert_same_end, command, records, train

from app.commands.fit import fit
from app.crypto.paillier.keys import generate
from app.federation.channels import paillier as paillier_channel
from app.federation.transcript import Transcript
from app.results.attacks.membership import AttackRecord

pytestmark = pytest.mark.usefixtures("no_figures")

PAILLIER = ("--config", "paillier", "--defenses.paillier.key_length", "1024", "--defenses.paillier.workers", "1")
MASKED = ("--config", "secure-aggregation", "--defenses.secure_aggregation.allow_singletons", "true")
MIA = ("--config", "membership", "--attacks.membership.attacks", "[yeom]")


class CutError(Exception):
    """The run is over, at once."""


def cut():
    """Raise in the middle of a round."""
    raise CutError


@pytest.mark.parametrize("channel", [PAILLIER, MASKED], ids=["paillier", "masked"])
def test_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch, channel):
    """With new keys, since the old ones are nowhere: bit for bit."""
    monkeypatch.setattr(paillier_channel, "generate", generate)
    options = (*UNEQUAL, *channel, *INTERRUPTIBLE)
    monkeypatch.setattr(Interrupter, "when", (3, 2))
    monkeypatch.setattr(Interrupter, "act", cut)
    with pytest.raises(CutError):
        fit(command(tmp_path, "cut", *options, rounds=4))
    monkeypatch.setattr(Interrupter, "when", None)
    assert_same_end(train(tmp_path, "cut", *options, rounds=4), train(tmp_path, "whole", *options, rounds=4))


def test_private_key_leaves_no_trace(tmp_path, monkeypatch, capfd):
    """Neither in the configuration, the checkpoints, the transcript, the tracker's files nor on the terminal."""
    made = []

    def keep(bits):
        made.append(generate(bits))
        return made[-1]

    monkeypatch.setattr(paillier_channel, "generate", keep)
    folder = train(tmp_path, "a", *PAILLIER, "--tracking", "offline", rounds=2)
    [key] = made
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 10
    told = "".join(capfd.readouterr()).encode()
    for secret in (key.phe.p, key.phe.q):
        length = (secret.bit_length() + 7) // 8
        forms = [str(secret).encode(), f"{secret:x}".encode()]
        forms += [secret.to_bytes(length, order)[4:-4] for order in ("big", "little")]
        assert not any(form in data for form in forms for data in [*written, told])
    assert key.public.fingerprint == made[0].public.fingerprint


@pytest.mark.parametrize(("channel", "what"), [(PAILLIER, "ciphertext"), (MASKED, "masked sums")])
def test_server_has_nothing_to_attack(tmp_path, channel, what):
    """N/A with the reason, never a half; the model that clients get is attacked as ever."""
    folder = train(tmp_path, "a", *channel, *MIA, rounds=2)
    uploads = json.loads((folder / "attacks" / "yeom.uploads.json").read_text())
    assert f"the server sees {what} only" in json.dumps(uploads)
    assert not (folder / "attacks" / "yeom.uploads.npz").exists()
    assert {record.label for record in AttackRecord.load_all(folder)} == {"yeom.uploads", "yeom.global"}
    assert (folder / "attacks" / "yeom.global.npz").exists()
    server = Transcript(folder / "transcript").server_view()
    assert server.readable(2) == (what == "masked sums")
    assert all(upload.payload is None for upload in server.uploads(2))


@pytest.mark.parametrize("simulate", ["true", "false"])
def test_a_key_holder_opens_every_upload(tmp_path, simulate):
    """Attacked as a server that one client helps: uploads are those of the plain run, up to the rounding."""
    colluding = ("--defenses.paillier.colluding", "true", "--defenses.paillier.simulate", simulate)
    folder = train(tmp_path, "a", *UNEQUAL, *PAILLIER, *colluding, *MIA, rounds=1)
    plain = train(tmp_path, "plain", *UNEQUAL, rounds=1)
    records = {record.label: record for record in AttackRecord.load_all(folder)}
    assert records["yeom.uploads"].conditions.adversary == "collusion"
    assert (folder / "attacks" / "yeom.uploads.npz").exists()
    opened, sent = (Transcript(run / "transcript").server_view().uploads(1) for run in (folder, plain))
    assert {upload.form for upload in opened} == {"opened"}
    for mine, theirs in zip(opened, sent, strict=True):
        assert (mine.payload - theirs.payload).abs().max() <= 2.0**-18
    [channel] = json.loads((folder / "privacy.json").read_text())["channels"]
    assert channel["hides"].startswith("nothing: one client gives the server the private key")


def test_run_tells_what_was_hidden_and_what_it_took(tmp_path, capsys):
    """In privacy.json, in the costs and at the end of the run."""
    folder = train(tmp_path, "a", *UNEQUAL, *PAILLIER, rounds=2)
    told = json.loads((folder / "privacy.json").read_text())
    [channel] = told["channels"]
    assert told["budgets"] == []
    assert channel["mechanism"] == "Paillier, 1024 bits"
    assert not channel["simulated"]
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["paillier/encrypt_seconds"] > 0
    assert cost["paillier/ciphertexts"] == sum(row["paillier/ciphertexts"] for row in records(folder, "cost.jsonl"))
    assert 0 < cost["channel_share"] < 1
    out = capsys.readouterr().out
    assert "Paillier, 1024 bits: a server that follows the protocol sees neither updates nor sums" in out
    assert re.search(r"privacy\.json states", out)


def test_simulated_costs_are_called_simulated(tmp_path, capsys):
    """In every name under which they appear."""
    folder = train(tmp_path, "a", "--config", "paillier-simulated", rounds=1)
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["paillier_simulated/encrypt_seconds"] > 0
    assert not any(name.startswith("paillier/") for name in cost)
    assert json.loads((folder / "privacy.json").read_text())["channels"][0]["simulated"]
    assert "simulated: same numbers, no cryptography" in capsys.readouterr().out


def test_accepted_leaks_are_recorded(tmp_path):
    """With layer, count and clients."""
    wide = ("--model.capacities", "[1.0, 0.5, 0.5, 0.5]")
    folder = train(tmp_path, "a", *wide, *MASKED, rounds=1)
    [channel] = json.loads((folder / "privacy.json").read_text())["channels"]
    assert any("have a single contributor: client 0" in leak for leak in channel["accepted"])
    assert "the registry of the clients' identity keys" in channel["trusts"]
    assert "33% one that lies about keys or about who has dropped out" in channel["trusts"]
