"""A run's own configuration repeats the run."""

import json

import pytest
from run_kit import UNEQUAL, assert_same_end, parsed, train

from app.commands.fit import fit

pytestmark = pytest.mark.usefixtures("no_figures")


def test_saved_config_replays_the_run(tmp_path):
    """Same metrics, clients, transcript and model, from config.yaml and a new name alone."""
    first = train(tmp_path, "a", *UNEQUAL, "--defenses.scale", "run_kit.Scale", "--defenses.scale.factor", "0.9")
    assert fit(["--config", str(first / "config.yaml"), "--run.root", str(tmp_path), "--run.name", "b"]) == 0
    assert_same_end(first, tmp_path / "b")
    assert (first / "config.yaml").read_text() == (tmp_path / "b" / "config.yaml").read_text()


def test_saved_config_is_complete(tmp_path):
    """What lies below does not matter: the file answers every question but where the run is kept."""
    first = train(tmp_path, "a", rounds=1)
    config = parsed("--config", "qffl", "--config", str(first / "config.yaml"))
    assert config == parsed("--config", str(first / "config.yaml"))
    assert "run" not in config


def test_a_seed_of_the_environment_is_saved(tmp_path, monkeypatch):
    """All random choices depend on it, and the saved configuration repeats them without the variable."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    first = train(tmp_path, "a", "--seed_everything", "true", rounds=1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "8")
    assert json.loads((first / "plan.json").read_text())["seed"] == 7
    assert parsed("--config", str(first / "config.yaml"))["seed_everything"] == 7
    assert fit(["--config", str(first / "config.yaml"), "--run.root", str(tmp_path), "--run.name", "b"]) == 0
    assert_same_end(first, tmp_path / "b")


def test_the_seed_matters(tmp_path):
    """Equal ends are no accident: another seed ends elsewhere."""
    ends = [
        (train(tmp_path, name, "--seed_everything", name, rounds=1) / "transcript/released.npz").read_bytes()
        for name in ("0", "1")
    ]
    assert ends[0] != ends[1]
