"""`rampart compare` of a file with `tune`: real trials and runs of a second in all, made in this process."""

import contextlib
import json

import numpy as np
import pytest
import yaml
from run_kit import TINY, exit_code, leave_out_figures, records

from app.commands.fit import fit
from app.experiments.engines.processes import MODULE
from app.experiments.tuning.space import RATE, value_at
from app.results.run.tuned import TUNING, read_tuned
from datamodules import Digits, Holdout, Iid

OPTIONS = {option.removeprefix("--"): value for option, value in zip(TINY[::2], TINY[1::2], strict=True)}
MATRIX = {
    "datasets": ["digits"],
    "methods": ["fedavg"],
    "defenses": {"none": None, "dropout": {"sweep": {"rate": [0.3]}}},
    "attacks": ["membership"],
    "set": {
        **OPTIONS,
        "trainer.max_epochs": 3,
        "attacks.membership.attacks": ["yeom"],
        "attacks.membership.shadows.count": 4,
        "model.net.hidden": [8, 8],
    },
    "seeds": [0, 1],
    "exclude": [{"defense": "train-less rounds=0.25"}, {"defense": "train-less rounds=0.5"}],
    "tune": {"trials": 4, "space": {"lr": {"low": 0.003, "high": 0.3}}},
}
ROWS = ("digits-fedavg-none", "digits-fedavg-dropout_rate_0.3")


class Here:
    """Makes jobs in this process, until there were enough.

    Args:
        most: jobs after which it is interrupted.
    """

    def __init__(self, most=1000):
        self.left = most
        self.seen = []

    def run(self, jobs, board, stop):
        """One after the other."""
        for job in jobs:
            if not self.left:
                stop.count = 1
                return
            self.left -= 1
            self.seen.append(job.name)
            board.started(job)
            with contextlib.redirect_stdout(None):
                code = fit(job.command[len(MODULE) + 2 :])
            board.ended(job, code)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Folder of the comparison, which was interrupted in its trials and gone on with, and what the terminal showed."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "small.yaml").write_text("# Two rows, tuned.\n" + yaml.safe_dump(MATRIX, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        codes = []
        for engine in (first := Here(most=5), second := Here()):
            patch.setattr("app.experiments.comparison._engine", lambda engines, jobs, engine=engine: (engine, 1))
            codes.append(exit_code("compare", "--config", str(folder / "small.yaml"), "--root", str(folder / "runs")))
        assert codes == [130, 0]
        assert len(first.seen) == 5
        yield folder / "runs" / "small", first.seen + second.seen


def test_rows_are_tuned_then_run(compared):
    """Four trials of two rows stop after a round, two or three of them go on, then there are two seeds of each row."""
    folder, seen = compared
    assert seen[:8] == [f"{row}-s0-t{number}" for row in ROWS for number in range(4)]
    assert seen[-4:] == [f"{row}-s{seed}" for row in ROWS for seed in (0, 1)]
    for row in ROWS:
        tuned = read_tuned(folder / TUNING / f"{row}.json")
        assert tuned.completed == 4
        assert 2 <= sum(trial.state == "complete" for trial in tuned.trials) <= 3
        complete = [trial for trial in tuned.trials if trial.state == "complete"]
        assert tuned.trials[tuned.chosen].accuracy == max(trial.accuracy for trial in complete)
        assert tuned.trials[tuned.chosen].accuracy > tuned.trials[0].accuracy, "the recipe's rate is far too low here"


def test_all_seeds_have_the_chosen_settings(compared):
    folder, _ = compared
    for row in ROWS:
        chosen = read_tuned(folder / TUNING / f"{row}.json").settings[RATE]
        for seed in (0, 1):
            config = yaml.safe_load((folder / f"{row}-s{seed}" / "config.yaml").read_text())
            assert value_at(config, RATE) == chosen


def test_no_sample_that_settings_were_chosen_by_is_trained_tested_or_audited(compared):
    """By the sample ids that trials and runs have used, and those in the attacks' files."""
    folder, _ = compared
    [trial] = {_sets(folder / TUNING / f"{row}-s0-t{number}", tested=True) for row in ROWS for number in range(4)}
    validation = set(trial)
    assert len(validation) == 144
    for row in ROWS:
        for seed in (0, 1):
            run = folder / f"{row}-s{seed}"
            assert not validation & set(_sets(run))
            with np.load(run / "attacks" / "yeom.global.npz") as scores:
                audited = {int(sample) for sample in scores["samples"]}
            assert audited
            assert not validation & audited


def _sets(run, tested=False):
    """Sample ids of a run: its common test set alone, or all that it trains on, tests on or audits."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    holdout = Holdout(**config["data"]["init_args"]["holdout"])
    data = Digits(partition=Iid(4), holdout=holdout, seed=config["seed_everything"])
    data.setup()
    sets = data.membership
    parts = [sets.test] if tested else [sets.test, *sets.members, *sets.nonmembers, sets.shadow, sets.population]
    return tuple(np.concatenate(parts).tolist())


def test_the_report_says_so(compared, capsys):
    folder, _ = compared
    assert exit_code("report", str(folder)) == 0
    out = capsys.readouterr().out
    assert "How rows were tuned" in out
    assert "not tuned alike" not in out
    page = (folder / "report.html").read_text()
    assert "How rows were tuned" in page
    assert "lr 0.003 to 0.3" in page


def test_another_tuning_in_its_folder_is_refused(compared, capsys):
    folder, _ = compared
    file = folder.parents[1] / "small.yaml"
    other = folder.parents[1] / "other.yaml"
    other.write_text(file.read_text().replace("trials: 4", "trials: 5"))
    options = ("compare", "--config", str(other), "--root", str(folder.parent), "--name", "small")
    assert exit_code(*options) == 2
    assert "was tuned with other trials" in capsys.readouterr().err
    assert exit_code(*options, "--dry") == 0
    assert "5 trials of each of 0 rows (2 tuned already)" in capsys.readouterr().out


def test_trials_leave_rounds_and_no_transcript(compared):
    folder, _ = compared
    for run in (folder / TUNING).glob("*-t*"):
        assert len(records(run)) in (1, 3)
        assert {path.name for path in run.glob("transcript/*")} <= {"released.npz"}
        assert not (run / "attacks").exists()
    assert json.loads((folder / "comparison.json").read_text())["tune"]["trials"] == 4
