"""`rampart attack` reconstructs images: from the transcript, and by repeating the last rounds."""

import json
from functools import partial

import numpy as np
import pytest
from run_kit import exit_code, train

from app.attacks.reconstruction.inversion import released_model
from app.attacks.reconstruction.inversion.evaluator import train_evaluator
from app.results.attacks.reconstruction import ReconstructionRecord

pytestmark = pytest.mark.usefixtures("no_figures")

VICTIMS = (
    *("--data.partition.clients", "3", "--data.partition.samples", "4", "--data.holdout.clients", "0"),
    *("--model.capacities", "[1.0, 0.5, 0.25]", "--model.net.hidden", "[400]", "--model.method", "FedRolex"),
    *("--model.local.optimizer", "torch.optim.SGD", "--model.local.optimizer.lr", "0.05"),
)
"""Three clients of four digits each, at widths 1, 1/2 and 1/4, one step of SGD per round."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A finished run whose server kept to the protocol."""
    return train(tmp_path_factory.mktemp("honest"), "h", *VICTIMS)


@pytest.fixture(autouse=True)
def no_images(request, monkeypatch):
    """Pages of images are drawn only where they are looked at."""
    if "pixels" not in request.fixturenames:
        monkeypatch.setattr(ReconstructionRecord, "draw", lambda *_: ())


def record(run, label):
    """What was kept of one result."""
    return json.loads((run / "attacks" / "reconstruction" / f"{label}.json").read_text())


@pytest.mark.usefixtures("pixels")
def test_malicious_servers_play_the_last_rounds_again(honest, capsys):
    """The run itself stays untouched; results, images, figures and summary are there."""
    before = (honest / "metrics.jsonl").read_bytes(), (honest / "config.yaml").read_bytes()
    assert exit_code("attack", str(honest), "--attacks", "rolling-model,convergence-rate,trap-weights") == 0
    printed = capsys.readouterr().out
    assert "rounds 2 to 3" in printed
    assert "repeating round 3" in printed
    for label, clients in (("rolling-model", [2]), ("convergence-rate", [1]), ("trap-weights", [0, 1, 2])):
        assert label in printed
        assert record(honest, label)["conditions"]["clients"] == clients
        assert (honest / "attacks" / "reconstruction" / f"{label}.png").stat().st_size > 5000
    summary = json.loads((honest / "summary.json").read_text())["reconstruction"]
    recovered = [value for name, value in summary.items() if "rolling-model" in name and name.endswith("/recovered")]
    assert recovered == [4.0]
    assert before == ((honest / "metrics.jsonl").read_bytes(), (honest / "config.yaml").read_bytes())


@pytest.mark.parametrize("name", ["rolling-model", "convergence-rate", "imprint"])
def test_replayed_rounds_are_those_of_the_run(honest, tmp_path, name):
    """An attack within the run and one on the finished honest run see the same gradients and find the same images."""
    options = ("--attacks.server", "MaliciousServer", "--attacks.server.attack", name)
    train(tmp_path, "m", *VICTIMS, *options)
    assert exit_code("attack", str(honest), "--attacks", name) == 0
    errors = [record(run, name)["details"]["isolation_error"] for run in (honest, tmp_path / "m")]
    assert errors[0] == pytest.approx(errors[1], rel=0.01, abs=1e-7), "what others still do depends on the model"
    paths = [run / "attacks" / "reconstruction" / f"{name}.npz" for run in (honest, tmp_path / "m")]
    with np.load(paths[0]) as later, np.load(paths[1]) as within:
        assert set(later.files) == set(within.files)
        for name in later.files:
            np.testing.assert_allclose(later[name], within[name], atol=1e-4)


def test_watching_is_enough_for_some(honest, capsys, monkeypatch):
    """Uploads and the released model are read from the transcript; what cannot be had says why."""
    monkeypatch.setattr(released_model, "train_evaluator", partial(train_evaluator, epochs=1))
    attacks = ["dense-inversion", "mi-face", "deep-inversion"]
    assert exit_code("attack", str(honest), "--attacks", ",".join(attacks)) == 0
    printed = capsys.readouterr().out
    assert "no batch normalisation" in printed
    for client in range(3):
        found = record(honest, f"dense-inversion-{client}")
        assert found["conditions"]["adversary"] == "curious server"
    assert record(honest, "dense-inversion-0")["result"]["oracle"]["pearson_mean"] > 0.9
    assert "gap" in json.dumps(record(honest, "mi-face"))


def test_settings_of_an_attack(honest):
    """A class path with init_args; noise that the server forgets drowns the images."""
    settings = {"noise": 0.3, "own_noise": "forgotten", "traps": {"output": "kept"}}
    noisy = json.dumps([{"class_path": "RollingModel", "init_args": settings}])
    assert exit_code("attack", str(honest), "--attacks", noisy) == 0
    assert record(honest, "rolling-model")["details"]["isolation_error"] > 1


def test_hidden_updates(tmp_path, capsys):
    """Under encryption nothing is available; under ordinary masks, bound to no model, everything is."""
    masks = ("--config", "secure-aggregation", "--defenses.secure_aggregation.allow_singletons", "true")
    unbound = (
        *masks,
        *("--defenses.secure_aggregation.model_bound", "false"),
        *("--defenses.secure_aggregation.refuse_repeated", "false"),
        "--defenses.secure_aggregation.range",
        "16",
    )
    train(tmp_path, "s", *VICTIMS, *unbound)
    assert exit_code("attack", str(tmp_path / "s"), "--attacks", "rolling-model,dense-inversion") == 0
    assert record(tmp_path / "s", "rolling-model")["result"]["oracle"]["recovered"] == 4
    assert "masked" in json.dumps(record(tmp_path / "s", "dense-inversion-2"))
    encrypted = ("--config", "paillier-simulated", "--defenses.paillier.key_length", "1024")
    train(tmp_path, "p", *VICTIMS, *encrypted)
    assert exit_code("attack", str(tmp_path / "p"), "--attacks", "rolling-model") == 0
    assert "ciphertext" in json.dumps(record(tmp_path / "p", "rolling-model"))


def test_memdefense_gets_a_second_reading(tmp_path):
    """The plain server, and one that knows which cells were zeroed."""
    train(tmp_path, "d", *VICTIMS, "--config", "memdefense")
    assert exit_code("attack", str(tmp_path / "d"), "--attacks", "rolling-model,dense-inversion") == 0
    plain, adapted = (record(tmp_path / "d", f"rolling-model{end}") for end in ("", "-refilled"))
    assert plain["details"]["isolated_cells"] == adapted["details"]["isolated_cells"]
    assert record(tmp_path / "d", "dense-inversion-2-refilled")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ("rolling-modle", "did you mean rolling-model"),
        ("yeom,rolling-modle", "did you mean rolling-model"),
        ("rolling-model,nothing.Such", "there is no attack 'nothing.Such'"),
        ("rolling-model,lira-onlin", "did you mean lira-online"),
        ("yeom,collections.Counter", "there is no attack 'collections.Counter'"),
    ],
)
def test_wrong_names(honest, capsys, names, hint):
    """Every slip gets a way out."""
    assert exit_code("attack", str(honest), "--attacks", names) != 0
    assert hint in capsys.readouterr().err


def test_attacks_of_all_kinds_at_once(honest, capsys):
    """Each gives what it gives alone; the tables stand at the end, one for each kind, every result once."""
    quick = ("--targets", "uploads", "--controls", "skip", "--calibrate", "false")
    assert exit_code("attack", str(honest), "--attacks", "trap-weights") == 0
    alone = record(honest, "trap-weights")
    capsys.readouterr()
    assert exit_code("attack", str(honest), "--attacks", "trap-weights,yeom,dense-inversion", *quick) == 0
    told = capsys.readouterr().out
    assert record(honest, "trap-weights")["result"] == alone["result"]
    assert (honest / "attacks" / "yeom.uploads.json").is_file()
    place = [told.index(f"\n{kind}\n") for kind in ("membership inference", "reconstruction")]
    assert max(told.rindex(line) for line in ("attacking", "repeating")) < place[0] < place[1]
    first_words = [line.split()[0] for line in told.splitlines() if line.split()]
    for label in ("yeom", "trap-weights", *(f"dense-inversion-{client}" for client in range(3))):
        assert first_words.count(label) == 1, label


def test_uploads_of_a_deceived_run_are_refused(tmp_path, capsys):
    """Clients did not get what the transcript holds."""
    options = ("--attacks.server", "MaliciousServer", "--attacks.server.attack", "trap-weights")
    train(tmp_path, "m", *VICTIMS, *options)
    assert exit_code("attack", str(tmp_path / "m"), "--attacks", "dense-inversion") != 0
    assert "keeps to the protocol" in capsys.readouterr().err


def test_a_list_keeps_what_it_has_when_one_attack_is_refused(honest, capsys):
    """Settings of the second cannot work; the first is kept, and equal names are told apart."""

    def rolling(**settings):
        return {"class_path": "RollingModel", "init_args": settings}

    attacks = json.dumps([rolling(), rolling(noise=1.0, others="frozen"), rolling(others="frozen")])
    assert exit_code("attack", str(honest), "--attacks", attacks) == 0
    assert record(honest, "rolling-model")["result"]["oracle"]["recovered"] == 4
    assert "noise on a frozen model" in json.dumps(record(honest, "rolling-model-2"))
    assert record(honest, "rolling-model-3")["result"]["oracle"]["recovered"] >= 3
