"""`rampart cost`: bytes that a run then really sends, seconds of the right order, and nothing is trained."""

import json
from functools import partial

import pytest
from run_kit import TINY, UNEQUAL, exit_code, records, train

from app.crypto.cost import OperationCost, measure_paillier
from app.crypto.paillier.keys import generate
from app.federation.module import FederatedModule

NAMES = ["plain", "secure aggregation", "Paillier, 1024 bits", "Paillier, 2048 bits", "Paillier, 3072 bits"]


MEASURED = OperationCost(encrypt=1.0, add=0.01, decrypt=100.0)


@pytest.fixture
def asked(monkeypatch):
    """Stand-in for measuring, which takes seconds: keeps what it was asked for."""
    seen = []
    monkeypatch.setattr("app.commands.cost.generate", lambda bits: bits)
    monkeypatch.setattr(
        "app.commands.cost.measure_paillier", lambda bits, exponent: seen.append((bits, exponent)) or MEASURED
    )
    return seen


def estimated(root, *options):
    """The numbers, by channel."""
    path = root / "cost.json"
    assert exit_code("cost", *TINY, "--run.root", str(root / "runs"), "--cost.json", str(path), *options) == 0
    return {row["name"]: row for row in json.loads(path.read_text())}


def test_table_names_every_channel(tmp_path, capsys, monkeypatch):
    """And what seconds mean; no run folder is left behind. A short key stands for all, which take long to make."""

    def refuse(*_, **__):
        raise AssertionError("nothing may be trained")

    monkeypatch.setattr(FederatedModule, "training_step", refuse)
    key = generate(1024)
    monkeypatch.setattr("app.commands.cost.generate", lambda bits: key)
    monkeypatch.setattr("app.commands.cost.measure_paillier", partial(measure_paillier, sample=4))
    rows = estimated(tmp_path)
    assert list(rows) == NAMES
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)
    assert "4 clients in round 1" in out
    assert "precision 3.8e-06, short exponents" in out
    assert not (tmp_path / "runs").exists()
    assert all(rows[name][part] > 0 for name in NAMES[2:] for part in ("client", "server", "decrypt"))
    assert rows["secure aggregation"]["client"] > 0
    assert rows["plain"]["client"] == rows["secure aggregation"]["decrypt"] == 0


def test_seconds_are_ciphertexts_times_the_sample(tmp_path, asked):
    """610 cells, 22 bits each for 4 clients of equal width: 92 values in 2048 bits, so 7 ciphertexts."""
    told = estimated(tmp_path)["Paillier, 2048 bits"]
    assert asked == [(1024, "short"), (2048, "short"), (3072, "short")]
    assert (told["values"], told["clients"]) == (92, 4)
    assert (told["client"], told["decrypt"], told["shared_decrypt"]) == (7.0, 700.0, 175.0)
    assert told["server"] == pytest.approx(4 * 7 * 0.01)
    assert told["down"] == 4 * 7 * 512


@pytest.mark.usefixtures("no_figures", "asked")
@pytest.mark.parametrize("server", ["FedAvgM", "QFFL"])
def test_bytes_are_those_of_the_run(tmp_path, server):
    """Of the second round, where other clients take part, with public weights and with secret ones."""
    options = (*UNEQUAL, "--model.server", server)
    rows = estimated(tmp_path, *options, "--cost.round", "2")
    short = ("--config", "paillier", "--defenses.paillier.key_length", "1024", "--defenses.paillier.workers", "1")
    encrypted = records(train(tmp_path, "he", *options, *short, rounds=2), "cost.jsonl")[1]
    told = rows["Paillier, 1024 bits"]
    assert (told["up"], told["down"]) == (encrypted["bytes/up"], encrypted["bytes/down"])
    allowed = ("--config", "secure-aggregation", "--defenses.secure_aggregation.allow_singletons", "true")
    masked = records(train(tmp_path, "sa", *options, *allowed, rounds=2), "cost.jsonl")[1]
    sent = masked["bytes/up"] + masked["secagg/protocol_bytes"]
    assert rows["secure aggregation"]["up"] == sent
    plain = records(train(tmp_path, "plain", *options, rounds=2), "cost.jsonl")[1]
    assert (rows["plain"]["up"], rows["plain"]["down"]) == (plain["bytes/up"], plain["bytes/down"])


def test_settings_of_the_defense_count(tmp_path, capsys, asked):
    """10 bits per value need 12 for four clients: 168 of them in 2048 bits; the conservative noise is measured."""
    options = ("--defenses.he", "Paillier", "--defenses.he.bits", "10", "--defenses.he.exponent", "full")
    assert estimated(tmp_path, *options)["Paillier, 2048 bits"]["values"] == 168
    assert {exponent for _, exponent in asked} == {"full"}
    assert "full exponents" in capsys.readouterr().out


def test_wrong_round(tmp_path, capsys):
    """Named with what there is."""
    assert exit_code("cost", *TINY, "--run.root", str(tmp_path), "--cost.round", "99", "--trainer.max_epochs", "3") == 2
    assert "set --cost.round to 3 or less" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
def test_file_that_cannot_be_written(tmp_path, capsys):
    """With a remedy."""
    assert exit_code("cost", *TINY, "--run.root", str(tmp_path), "--cost.json", str(tmp_path / "no" / "c.json")) == 2
    assert "choose another --cost.json" in capsys.readouterr().err
