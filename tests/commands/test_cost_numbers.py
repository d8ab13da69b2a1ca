"""More of `rampart cost`: seconds of masks, and what stays on clients."""

import json

import pytest
from run_kit import TINY, UNEQUAL, exit_code, records, train

from app.crypto.cost import MaskingCost, OperationCost

CELLS = 610


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Seconds that count words of masks."""
    monkeypatch.setattr("app.commands.cost.generate", lambda bits: bits)
    monkeypatch.setattr("app.commands.cost.measure_paillier", lambda *_: OperationCost(1.0, 0.01, 100.0))
    monkeypatch.setattr("app.commands.cost.measure_masking", lambda _: MaskingCost(0.0, 1.0, 0.0, 0.0))


def estimated(root, *options):
    """The numbers, by channel."""
    path = root / "cost.json"
    assert exit_code("cost", *TINY, "--run.root", str(root / "runs"), "--cost.json", str(path), *options) == 0
    return {row["name"]: row for row in json.loads(path.read_text())}


def test_words_of_masks(tmp_path):
    """A client makes a mask of its own and one for each other client, over the cells that both have."""
    told = estimated(tmp_path)["secure aggregation"]
    assert (told["client"], told["server"], told["up"]) == (4 * CELLS, 4 * CELLS, 4 * 4 * CELLS)
    half = 4 * 64 + 4 + 10 * 4 + 10
    told = estimated(tmp_path, "--model.capacities", "[1.0, 1.0, 1.0, 0.5]")["secure aggregation"]
    assert told["client"] == (9 * CELLS + 7 * half) / 4
    assert told["server"] == 3 * CELLS + half


def test_decryption_is_of_the_union(tmp_path):
    """Narrow clients' ciphertexts are among the wide ones'."""
    told = estimated(tmp_path, "--model.capacities", "[1.0, 1.0, 0.5, 0.5]")["Paillier, 2048 bits"]
    assert told["decrypt"] == 100.0 * 7


@pytest.mark.usefixtures("no_figures")
def test_personal_cells_are_not_sent(tmp_path):
    """Bytes in both directions are still those of the run."""
    head = (*UNEQUAL, "--model.personal", '["*classifier*"]')
    rows = estimated(tmp_path, *head)
    plain = records(train(tmp_path, "plain", *head, rounds=1), "cost.jsonl")[0]
    assert (rows["plain"]["up"], rows["plain"]["down"]) == (plain["bytes/up"], plain["bytes/down"])
    simulated = ("--config", "paillier-simulated", "--defenses.paillier.key_length", "1024")
    told = records(train(tmp_path, "he", *head, *simulated, rounds=1), "cost.jsonl")[0]
    found = rows["Paillier, 1024 bits"]
    assert (found["up"], found["down"]) == (told["bytes/up"], told["bytes/down"])


@pytest.mark.parametrize("number", ["0", "-1"])
def test_rounds_count_from_one(tmp_path, capsys, number):
    """0 is none."""
    assert exit_code("cost", *TINY, "--run.root", str(tmp_path), "--cost.round", number) == 2
    assert f"--cost.round is {number}\n  consequence: it must be int >= 1" in capsys.readouterr().err


def test_the_round_that_is_asked_for(tmp_path):
    """Rounds of Poisson sampling have different numbers of clients."""
    drawn = ("--data.partition.clients", "12", "--model.sampling", "poisson", "--model.participation", "0.5")
    counts = [estimated(tmp_path, *drawn, "--cost.round", str(number))["plain"]["clients"] for number in range(1, 5)]
    assert len(set(counts)) > 1


def test_settings_of_secure_aggregation_count(tmp_path, capsys):
    """32 bits a value need words of 64 bits; the table has bytes per client and per round."""
    told = estimated(tmp_path, "--defenses.sa", "SecureAggregation", "--defenses.sa.bits", "32")["secure aggregation"]
    assert told["up"] == 8 * 4 * CELLS
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("secure aggregation"))
    assert row.split()[2:6] == ["4.88", "kB", "19.5", "kB"]


def test_neighbours_bound_the_words_of_masks(tmp_path):
    """A client masks with its neighbours only, and its shares go to them."""
    sparse = ("--defenses.sa", "SecureAggregation", "--defenses.sa.neighbours", "14", "--defenses.sa.colluders", "0.05")
    told = estimated(tmp_path, "--data.partition.clients", "24", *sparse)["secure aggregation"]
    assert (told["neighbours"], told["client"]) == (14, 15 * CELLS)
    assert estimated(tmp_path, "--data.partition.clients", "24")["secure aggregation"]["client"] == 24 * CELLS
