"""`--run.until`: a run that stops after some rounds, and goes on."""

import pytest
from run_kit import UNEQUAL, assert_same_end, command, exit_code, records, train

pytestmark = pytest.mark.usefixtures("no_figures")


def test_it_ends_like_a_run_that_never_stopped(tmp_path, capsys):
    """Exit code 0 and no summary after two of four rounds, also when asked twice; then the same rounds, bit for bit."""
    options = (*UNEQUAL, "--config", "dp-sgd", "--model.local.lr_schedule", "torch.optim.lr_scheduler.ExponentialLR")
    options += ("--model.local.lr_schedule.gamma", "0.5")
    whole = train(tmp_path, "whole", *options, rounds=4)
    for _ in range(2):
        assert exit_code("fit", *command(tmp_path, "parts", *options, "--run.until", "2", rounds=4)) == 0
        assert "stopped after round 2; without --run.until, the same command goes on" in capsys.readouterr().out
        assert len(records(tmp_path / "parts")) == 2
        assert not (tmp_path / "parts" / "summary.json").exists()
    assert_same_end(train(tmp_path, "parts", *options, rounds=4), whole)


def test_it_does_not_shorten_a_run_that_has_no_more_rounds(tmp_path):
    assert (train(tmp_path, "short", "--run.until", "5", rounds=1) / "summary.json").is_file()
