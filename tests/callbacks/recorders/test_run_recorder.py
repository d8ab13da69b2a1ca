"""What a run leaves behind agrees with itself."""

import csv
import json
import math

import pytest
from run_kit import UNEQUAL, command, records, train

from app.commands.fit import fit
from app.federation.reports import ACCURACIES

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Unequal clients, four of six in a round."""
    return train(tmp_path_factory.mktemp("runs"), "a", *UNEQUAL, rounds=ROUNDS)


def rows(folder):
    """Lines of clients.csv."""
    with (folder / "clients.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if name != "dropped"} for row in csv.DictReader(file)
        ]


def load(folder, name):
    """A JSON file."""
    return json.loads((folder / name).read_text())


def test_all_files_are_there(run):
    """What the closing message promises, and what a later attack needs."""
    names = {path.name for path in run.iterdir()}
    files = {"config.yaml", "metrics.jsonl", "clients.csv", "cost.jsonl", "cost.json", "summary.json", "plan.json"}
    assert files | {"partition.csv", "partition.png", "accuracy.png", "checkpoints", "transcript"} <= names
    for picture in ("partition.png", "accuracy.png"):
        assert (run / picture).read_bytes().startswith(b"\x89PNG")
    assert not list(run.rglob("*.part"))


def test_clients_file(run):
    """One header, one line per participant and round, in the plan's company."""
    header = (run / "clients.csv").read_text().splitlines()[0].split(",")
    assert header[:5] == ["round", "client", "capacity", "samples", "loss"]
    assert header[-2:] == ["bytes_down", "bytes_up"]
    plan = load(run, "plan.json")
    for round_ in range(ROUNDS):
        present = [int(row["client"]) for row in rows(run) if row["round"] == round_ + 1]
        assert present == sorted(plan["participants"][round_])
        assert len(present) == 4
    for row in rows(run):
        assert row["capacity"] == plan["capacities"][int(row["client"])]
        assert row["samples"] == plan["sizes"][int(row["client"])]


def test_metrics_are_statistics_of_the_clients_file(run):
    """Mean, worst and standard deviation, over all clients and per capacity, recomputed from the rows."""
    for record in records(run):
        present = [row for row in rows(run) if row["round"] == record["round"]]
        groups = {"clients": present}
        for rate in {row["capacity"] for row in present}:
            groups[f"capacity-{rate:g}"] = [row for row in present if row["capacity"] == rate]
        assert len(groups) == 3
        for group, members in groups.items():
            for accuracy in ACCURACIES:
                values = [row[accuracy] for row in members]
                mean = sum(values) / len(values)
                spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
                assert record[f"{group}/{accuracy}/mean"] == pytest.approx(mean)
                assert record[f"{group}/{accuracy}/worst"] == min(values)
                assert record[f"{group}/{accuracy}/std"] == pytest.approx(spread, abs=1e-12)
        assert record["clients/loss"] == pytest.approx(sum(row["loss"] for row in present) / 4)
        assert 0 <= record["server/accuracy"] <= 1


def test_full_clients_receive_what_the_server_was_scored_on(run):
    """The server's accuracy after a round is what a full-width client measures at the start of the next."""
    for record in records(run)[:-1]:
        full = [row for row in rows(run) if row["round"] == record["round"] + 1 and row["capacity"] == 1]
        assert full
        assert all(row["received_common"] == record["server/accuracy"] for row in full)


def test_bytes_are_coordinates(run):
    """Every value travels as four bytes, down and up."""
    plan = load(run, "plan.json")
    width = 8
    coordinates = {1.0: 64 * width + width + width * 10 + 10, 0.5: 64 * 4 + 4 + 4 * 10 + 10}
    assert plan["cells"] == coordinates[1.0]
    for row in rows(run):
        assert row["bytes_up"] == row["bytes_down"] == 4 * coordinates[row["capacity"]]
    for record in records(run, "cost.jsonl"):
        present = [row for row in rows(run) if row["round"] == record["round"]]
        assert record["bytes/up"] == sum(row["bytes_up"] for row in present)
        assert record["bytes/down"] == sum(row["bytes_down"] for row in present)
        assert record["clients"] == len(present)


def test_cost_is_the_sum_of_the_rounds(run):
    """cost.json adds up cost.jsonl, and the summary repeats it."""
    costs, total = records(run, "cost.jsonl"), load(run, "cost.json")
    for name in set(costs[0]) - {"round"}:
        assert total[name] == pytest.approx(sum(cost[name] for cost in costs))
    assert total["rounds"] == ROUNDS
    assert total["seconds_per_round"] == pytest.approx(total["seconds/total"] / ROUNDS)
    assert total["train_seconds_per_client_round"] == pytest.approx(total["client_seconds/train"] / (4 * ROUNDS))
    assert load(run, "summary.json")["cost"] == total
    assert total["cpu_seconds_per_round"] == pytest.approx(total["cpu_seconds"] / ROUNDS)
    assert all(cost["cpu_seconds"] > 0 for cost in costs)
    assert total["attack_phase/seconds"] > 0
    assert total["attack_phase/cpu_seconds"] > 0
    for cost in costs:
        phases = [value for name, value in cost.items() if name.startswith("seconds/") and name != "seconds/total"]
        assert 0 < sum(phases) <= cost["seconds/total"]


def test_summary_holds_the_end(run):
    """Final metrics, and the last that is known of every client, also of those who sat out the last round."""
    summary = load(run, "summary.json")
    assert 0 < summary["final"].pop("server/train_accuracy") < 1
    assert summary["final"] == records(run)[-1]
    last = {}
    for row in rows(run):
        last[int(row["client"])] = row
    assert [client["client"] for client in summary["clients"]] == sorted(last)
    assert len(last) > 4
    for client in summary["clients"]:
        assert client["trained_own"] == last[client["client"]]["trained_own"]


@pytest.mark.usefixtures("no_figures")
def test_subpopulations_are_reported(tmp_path):
    """With a multimodal partition, majority and minority have metrics of their own that match their clients."""
    arguments = command(tmp_path, "a", rounds=1)
    at = arguments.index("--data.partition")
    options = arguments[:at] + arguments[at + 4 :]
    split = ("--data.partition", "Multimodal", "--data.partition.majority_clients", "3")
    assert fit([*options, *split, "--data.partition.minority_clients", "2"]) == 0
    [record] = records(tmp_path / "a")
    own = [row["trained_own"] for row in rows(tmp_path / "a")]
    assert record["group-majority/trained_own/mean"] == pytest.approx(sum(own[:3]) / 3)
    assert record["group-minority/trained_own/mean"] == pytest.approx(sum(own[3:]) / 2)
    assert record["group-minority/trained_own/worst"] == min(own[3:])
    assert not [name for name in record if name.startswith("capacity")]


@pytest.mark.usefixtures("no_figures")
def test_what_is_not_evaluated_is_left_out(tmp_path):
    """Evaluation every second round without clients: no accuracy is made up for the rounds between."""
    options = ("--model.evaluation.every", "2", "--model.evaluation.clients", "false")
    folder = train(tmp_path, "a", *options, rounds=2)
    assert all(math.isnan(row["trained_own"]) for row in rows(folder))
    assert not [name for record in records(folder) for name in record if name.startswith("clients/trained")]
    assert "server/accuracy" in records(folder)[-1]
