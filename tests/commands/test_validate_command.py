"""`rampart validate`: the numbers of the run, to the last digit, and a warning where they are others."""

import json
import shutil

import numpy as np
import pytest
from run_kit import exit_code, train
from trained_kit import KINDS, recorded_accuracies


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_the_run(kind, trained, capsys):
    """Accuracy and loss in summary.json, and the accuracies of a wide and a narrow client in everyone.csv."""
    folder = trained(kind)
    final = json.loads((folder / "summary.json").read_text())["final"]
    capsys.readouterr()
    assert exit_code("validate", str(folder), "--trust") == 0
    line = capsys.readouterr().out.splitlines()[3]
    accuracy, loss = f"{final['server/accuracy']:.2%}", f"{final['server/loss']:.4f}"
    samples = "360" if kind == "padded" else "359"
    assert line.split() == ["common", "test", "set", samples, accuracy, loss, f"{accuracy},", f"{loss}:", "equal"]
    for client, own in list(recorded_accuracies(folder).items())[:2]:
        assert exit_code("validate", str(folder), "--client", str(client), "--trust") == 0
        line = capsys.readouterr().out.splitlines()[4]
        assert line.startswith(f"own test set of client {client}")
        assert f"  {own:.2%}  " in line
        assert line.endswith(f"{own:.2%}: equal")


def test_another_model(trained, tmp_path, capsys):
    """Somebody exchanged the released model: both numbers are shown, with a warning, and the exit code tells."""
    folder = shutil.copytree(trained("private-head"), tmp_path / "changed")
    path = folder / "transcript" / "released.npz"
    with np.load(path) as arrays:
        theta = arrays["theta"]
    np.savez(path, theta=-theta)
    capsys.readouterr()
    assert exit_code("validate", str(folder)) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[3].endswith(": different")
    assert "other numbers" in told.err


def test_static_statistics_are_no_change(trained, capsys):
    """They were asked for: other numbers are shown without a warning."""
    folder = trained("by-batch")
    capsys.readouterr()
    assert exit_code("validate", str(folder), "--static") == 0
    told = capsys.readouterr()
    assert ": different" in told.out
    assert "no privacy budget" in told.out
    assert not told.err


def test_a_run_that_did_not_evaluate_its_last_round(tmp_path, capsys):
    """There is nothing to compare with, which is no mistake."""
    folder = train(tmp_path, "seldom", "--trainer.check_val_every_n_epoch", "2", rounds=3)
    capsys.readouterr()
    assert exit_code("validate", str(folder)) == 0
    assert capsys.readouterr().out.splitlines()[3].endswith("  nothing")


def test_unknown_clients(trained, capsys):
    assert exit_code("validate", str(trained("private-head")), "--client", "9") == 2
    assert "from 0 to 3" in capsys.readouterr().err


def test_a_missing_folder(tmp_path, capsys):
    assert exit_code("validate", str(tmp_path / "nowhere")) == 2
    assert "is no run" in capsys.readouterr().err
