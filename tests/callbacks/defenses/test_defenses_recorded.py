"""What a defended run tells: its measurements per round, its budget, its share of the time, its warnings."""

import json

import pytest
from run_kit import command, exit_code, records, train

from app.federation.hooks import FederatedCallback
from app.results.run.figures import draw_budget

MEMDEFENSE = ("--defenses.mem", "MemDefense")


def load(folder, name):
    """A JSON file."""
    return json.loads((folder / name).read_text())


@pytest.mark.usefixtures("no_figures")
def test_measurements_join_the_metrics_and_the_time_is_told(tmp_path):
    """One number per round and defense; seconds of defenses beside those of training."""
    folder = train(tmp_path, "a", *MEMDEFENSE, rounds=2)
    assert [0 < line["memdefense/zeros"] < 1 for line in records(folder)] == [True, True]
    cost = load(folder, "cost.json")
    assert 0 < cost["defend_seconds_per_client_round"] < cost["train_seconds_per_client_round"]
    assert cost["defend_share"] == pytest.approx(cost["seconds/defend"] / cost["seconds/total"])
    assert not (folder / "privacy.json").exists()


class Slow(FederatedCallback):
    """A defense that takes five seconds per update by the clock, and evaluates for a hundred."""

    def on_client_update(self, trainer, federation, update):
        CLOCK[0] += 5.0

    def on_validation_epoch_start(self, trainer, pl_module):
        CLOCK[0] += 100.0


CLOCK = [0.0]


@pytest.mark.usefixtures("no_figures")
def test_a_clients_own_seconds_leave_out_evaluation(tmp_path, monkeypatch):
    """Of a clock that stands still but for the defense and the evaluation, they are those of the defense alone."""
    monkeypatch.setattr("time.perf_counter", lambda: CLOCK[0])
    monkeypatch.setattr("callbacks.Slow", Slow, raising=False)
    cost = load(train(tmp_path, "a", "--defenses.slow", "callbacks.Slow", rounds=2), "cost.json")
    assert cost["own_seconds_per_client_round"] == pytest.approx(5.0)
    assert cost["seconds_per_round"] >= 100.0


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("defense", ["Paillier", "SecureAggregation"])
def test_cryptography_is_a_clients_own_work(tmp_path, defense):
    """Beside training and nothing else; under encryption every client decrypts the sum."""
    cost = load(train(tmp_path, "a", "--defenses.hide", defense, rounds=1), "cost.json")
    parts = [cost[f"client_seconds/{part}"] for part in ("train", "defend", "cryptography")]
    assert cost["own_seconds_per_client_round"] == pytest.approx(sum(parts) / cost["clients"])
    if defense == "Paillier":
        work = {name.partition("/")[2]: value for name, value in cost.items() if name.startswith("paillier/")}
        assert parts[2] == pytest.approx(work["encrypt_seconds"] + cost["clients"] * work["decrypt_seconds"])
    assert parts[2] > 0


@pytest.mark.usefixtures("no_figures")
def test_budget_is_recorded_with_everything_it_needs_to_mean_something(tmp_path, capsys):
    """Unit, delta, adjacency, sampling, accountant and version, in the run's folder and on the terminal."""
    options = ("--defenses.dp", "DPFedAvg", "--defenses.dp.target_epsilon", "8")
    folder = train(tmp_path, "a", *options, rounds=2)
    [statement] = load(folder, "privacy.json")["budgets"]
    assert load(folder, "summary.json")["privacy"] == [statement]
    assert (statement["unit"], statement["adjacency"], statement["sampling"]) == (
        "client",
        "add or remove one",
        "all clients, rate 1",
    )
    assert statement["accountant"].startswith("rdp (opacus ")
    assert 7.9 < statement["epsilon"] <= 8
    assert statement["delta"] < 1 / 4
    assert statement["meaningful"] is True
    assert "DP-FedAvg: epsilon 8" in capsys.readouterr().out
    assert records(folder)[-1]["dp_fedavg/epsilon"] == statement["epsilon"]


@pytest.mark.usefixtures("no_figures")
def test_what_is_worth_knowing_of_a_combination_stands_beside_the_budget(tmp_path):
    """Zeroing what is already private is sound, and the record says so."""
    options = ("--defenses.dp", "DPSGD", "--defenses.dp.noise", "1", *MEMDEFENSE)
    [note] = load(train(tmp_path, "a", *options, rounds=1), "privacy.json")["combinations"]
    assert note.startswith("MemDefense after DPSGD: zeroing is post-processing")


@pytest.mark.usefixtures("no_figures")
def test_a_huge_budget_is_called_meaningless(tmp_path, capsys):
    """Above ten there is no meaningful guarantee; without noise there is none at all."""
    train(tmp_path, "a", "--defenses.dp", "DPFedAvg", "--defenses.dp.noise", "0.1", rounds=1)
    assert "no meaningful formal guarantee" in capsys.readouterr().out
    folder = train(tmp_path, "b", "--defenses.dp", "DPFedAvg", "--defenses.dp.noise", "0", rounds=1)
    assert load(folder, "privacy.json")["budgets"][0]["epsilon"] is None


def test_wrong_settings_of_several_defenses_come_in_one_error(tmp_path, capsys):
    """Each with its remedy, before any training; a number outside its range as soon as it is read."""
    options = (*MEMDEFENSE, "--defenses.mem.spare", "['x']", "--defenses.n", "NbAFL", "--defenses.n.delta", "0.5")
    assert exit_code("fit", *command(tmp_path, "a", *options)) == 2
    output = capsys.readouterr().err
    assert "'x'" in output
    assert "delta of NbAFL is 0.5" in output
    assert output.count("remedy:") == 2
    assert "--defenses.n.delta" in output
    assert exit_code("fit", *command(tmp_path, "a", *MEMDEFENSE, "--defenses.mem.gamma", "2")) == 2
    output = capsys.readouterr().err
    assert "gamma is 2" in output
    assert "it must be float in [0, 1]" in output
    assert "--defenses.mem" in output


def test_order_of_defenses_is_checked(tmp_path, capsys):
    """Pruning after clipping would undo the clipping; the other order is fine."""
    options = (*MEMDEFENSE, "--defenses.dp", "DPFedAvg", "--defenses.dp.noise", "1")
    wrong = command(tmp_path, "a", *options, "--defense_order", "[dp, mem]")
    assert exit_code("fit", *wrong) == 2
    assert "MemDefense after DPFedAvg" in capsys.readouterr().err
    assert exit_code("fit", *command(tmp_path, "b", *options, "--defense_order", "[mem, dp]", rounds=1)) == 0


class Envelope(FederatedCallback):
    """A defense that replaces the channel."""

    def traits(self):
        """As far as others must know."""
        return frozenset({"channel"})


class Box(Envelope):
    """Another one."""


def test_two_channels_are_refused(tmp_path, capsys):
    """Only one of them could be used."""
    names = ("--defenses.a", f"{__name__}.Envelope", "--defenses.b", f"{__name__}.Box")
    assert exit_code("fit", *command(tmp_path, "a", *names)) == 2
    assert "Envelope and Box both replace" in capsys.readouterr().err


@pytest.mark.usefixtures("pixels")
def test_picture_of_the_budget(tmp_path):
    """Drawn where there is a budget, from the numbers of the rounds; nothing is drawn where there is none."""
    records = [{"round": float(n), "server/accuracy": 0.1 * n, "privacy/epsilon": 2.0 * n} for n in (1, 2, 3)]
    assert draw_budget(records, tmp_path / "a.png", "a")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert not draw_budget([{"round": 1.0, "server/accuracy": 0.5}], tmp_path / "b.png", "b")
    assert not (tmp_path / "b.png").exists()
