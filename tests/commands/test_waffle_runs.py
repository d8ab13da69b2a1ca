"""WAFFLe from the command line: recipes, resumption, fairness and newcomers."""

import csv
import json

import pytest
from run_kit import assert_same_end, last_checkpoint, parsed, records, train

from app.common.errors import UserError
from app.results.attacks.factor_recovery import FactorRecord
from app.results.run.fairness import newcomer_rows

WAFFLE = ("--model.net", "Factorised", "--model.net.factors", '{"*hidden1": 6}')
STACKED = (*WAFFLE, "--model.executor", "vectorised")
JOINING = ("--model.newcomers.clients", "1", "--model.newcomers.visits", "2")

pytestmark = pytest.mark.usefixtures("no_figures")


def test_waffle_to_the_letter_changes_two_numbers():
    """The overlay keeps the network and the factors of the recipe before it."""
    ours, literal = (
        parsed("--config", "waffle-lenet", *more)["model"]["net"]["init_args"]
        for more in ((), ("--config", "waffle-literal"))
    )
    assert {name for name in ours if ours[name] != literal[name]} == {"speed", "kl_weight"}
    assert (literal["speed"], literal["kl_weight"]) == (1.0, 1.0)
    assert literal["factors"] == {"conv*": 10, "hidden1": 60, "hidden2": 40}


@pytest.mark.parametrize("data", ["mnist", "fashionmnist", "cifar10"])
def test_the_multimodal_recipes_change_the_partition_only(data):
    """The rest is the setting of the unimodal ones."""
    unimodal = parsed("--config", f"waffle-{data}")
    multimodal = parsed("--config", f"waffle-{data}", "--config", f"waffle-{data}-multimodal")
    assert multimodal["data"]["init_args"].pop("partition")["class_path"].endswith("Multimodal")
    unimodal["data"]["init_args"].pop("partition")
    assert multimodal == unimodal


def test_a_waffle_run_can_be_resumed(tmp_path):
    """One round, then one more, end like two in one go: metrics, transcript, server and private choices.

    The control stands in the metrics of the last round and in the summary."""
    whole = train(tmp_path, "whole", *STACKED, rounds=2)
    train(tmp_path, "parts", *STACKED, rounds=1)
    train(tmp_path, "parts", *STACKED, rounds=2)
    assert_same_end(whole, tmp_path / "parts")
    kept = last_checkpoint(whole)["personal"]
    assert set(kept) == {"0", "1", "2", "3"}
    assert {len(values) for values in kept.values()} == {18}
    last = records(whole)[-1]
    assert {"everyone/accuracy", "everyone/another", "everyone/mean_choice", "everyone/no_choice"} <= set(last)
    assert "verdict" in json.loads((whole / "summary.json").read_text())["fairness"]["swap"]


def test_newcomers_are_recorded(tmp_path, capsys):
    """One of four clients joins at the end: its accuracies stand in the summary, and it was in no round."""
    path = train(tmp_path, "joined", *WAFFLE, *JOINING, rounds=1)
    printed = capsys.readouterr().out
    record = json.loads((path / "newcomers.json").read_text())
    with (path / "newcomers.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert record["clients"] == 1
    assert list(record["accuracy"]) == ["server", "mean", "fitted", "fine_tuned"]
    assert all(float(row[stage]) == record["accuracy"][stage]["mean"] for stage in record["accuracy"])
    assert row["client"] not in last_checkpoint(path)["personal"]
    assert all(row["client"] != line.split(",")[1] for line in (path / "clients.csv").read_text().splitlines())
    summary = json.loads((path / "summary.json").read_text())
    assert summary["newcomers"]["accuracy"] == record["accuracy"]
    assert newcomer_rows(summary["newcomers"])[0][-1] in printed


def test_newcomers_of_a_federation_without_private_parts_are_fine_tuned_only(tmp_path):
    """There is nothing that belongs to them alone."""
    path = train(tmp_path, "plain", *JOINING, rounds=1)
    assert list(json.loads((path / "newcomers.json").read_text())["accuracy"]) == ["server", "fine_tuned"]


GROWING = (*JOINING, "--model.newcomers.round", "2", "--model.newcomers.dictionary", "0.5")


def test_a_run_whose_dictionary_grows_can_be_resumed(tmp_path):
    """Interrupted before the growth: the same end. Newcomers are recorded with the choice that they have trained."""
    path = train(tmp_path, "whole", *WAFFLE, *GROWING)
    train(tmp_path, "parts", *WAFFLE, *GROWING, rounds=1)
    train(tmp_path, "parts", *WAFFLE, *GROWING)
    assert_same_end(path, tmp_path / "parts")
    record = json.loads((path / "newcomers.json").read_text())
    assert record["round"] == 2
    assert list(record["accuracy"]) == ["server", "mean", "own", "fine_tuned"]
    first, second, third = (
        {
            line["client"]: int(line["bytes_up"])
            for line in csv.DictReader((path / "clients.csv").open())
            if line["round"] == number
        }
        for number in ("1", "2", "3")
    )
    assert (len(first), len(second)) == (3, 4)
    assert max(first.values()) < min(second.values())
    assert second == third


def test_factors_are_recovered_from_rounds_before_and_after_the_growth(tmp_path):
    """The transcript holds submodels first and whole models then; the attack reads both."""
    path = train(tmp_path, "audited", *WAFFLE, *GROWING, "--config", "factor-recovery", rounds=2)
    (found,) = FactorRecord.load_all(path)
    assert {"support", "recovered"} <= set(found.numbers)


def test_the_appendix_recipes_have_the_network_of_appendix_c():
    """The plain network under FedAvg, and the same one within the factors."""
    plain = parsed("--config", "waffle-cifar10", "--config", "waffle-cifar10-appendix-c")["model"]["net"]["init_args"]
    own = parsed("--config", "waffle-cifar10", "--config", "waffle-appendix-c")["model"]["net"]["init_args"]
    assert own["net"]["init_args"] == plain
    assert (plain["channels"], plain["kernel"], plain["hidden"], plain["bias"]) == ([16, 16], 3, [80, 60], False)
    assert own["factors"] == {"*conv": 10, "*hidden1": 80, "*hidden2": 40}


def test_the_newcomers_of_the_recipe_are_the_minority():
    """Three quarters of 160 factors are the paper's 120."""
    recipes = ("waffle-mnist", "waffle-mnist-multimodal", "waffle", "waffle-newcomers")
    model = parsed(*(part for recipe in recipes for part in ("--config", recipe)))["model"]
    newcomers, net = model["newcomers"], model["net"]["init_args"]
    assert (newcomers["clients"], newcomers["group"], newcomers["round"]) == (20, "minority", 51)
    assert newcomers["dictionary"] * net["factors"]["*hidden1"] == net["alpha"] == 120


def test_submodels_of_factors_are_refused(tmp_path):
    """HeteroFL and WAFFLe number different things."""
    with pytest.raises(UserError, match="WAFFLe and submodels do not go together"):
        train(tmp_path, "narrow", *WAFFLE, "--model.capacities", "[1.0, 0.5, 0.5, 0.5]")
