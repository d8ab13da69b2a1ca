"""Weights & Biases: results of attacks as a table, as numbers of the summary, and as ROC curves."""

import json
import math

import pytest
import wandb
from finding_kit import finding, gaussian_scores, missing
from tracking_kit import Experiment, soon_in

from app.metrics.membership import MembershipScores
from app.metrics.roc import roc_curve
from app.results.attacks.membership_report import COLUMNS, rows
from app.results.run.tracking import RoundLogger, make_tracker


@pytest.fixture
def experiment(monkeypatch):
    """What the next tracked run tells W&B."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", property(lambda self: experiment))
    return experiment


def test_results_summary_and_curves(experiment):
    """One row per result, the numbers as they are, and the points of every curve."""
    found = [finding(), missing()]
    curves = {"yeom.global": found[0].scores, "b.uploads": gaussian_scores(seed=5)}
    RoundLogger(offline=True).log_attacks(COLUMNS, rows(found), {"attacks/yeom.global/auc": 0.75}, curves)
    assert experiment.results == {"attacks/yeom.global/auc": 0.75}
    [step] = experiment.logged
    assert sorted(step) == ["attacks/results", "attacks/roc", "attacks/roc_points"]
    table = step["attacks/results"]
    assert table.columns == list(COLUMNS)
    assert table.data == rows(found)
    points = step["attacks/roc_points"]
    assert points.columns == ["result", "fpr", "tpr"]
    assert [*dict.fromkeys(label for label, _, _ in points.data)] == list(curves)
    own = [(fpr, tpr) for label, fpr, tpr in points.data if label == "yeom.global"]
    curve = roc_curve(curves["yeom.global"])
    assert own[-1] == (1.0, 1.0)
    assert len(own) > 50
    assert all(tpr == curve.tpr[curve.fpr <= fpr + 1e-12].max() for fpr, tpr in own)


def test_the_plot_is_logarithmic(experiment):
    """W&B draws linear axes, so it gets logarithms."""
    RoundLogger(offline=True).log_attacks(["a"], [[1]], {}, {"yeom.global": gaussian_scores()})
    [step] = experiment.logged
    drawn = step["attacks/roc"].table.data
    points = [[math.log10(fpr), label, math.log10(tpr)] for label, fpr, tpr in step["attacks/roc_points"].data]
    assert drawn == points
    assert step["attacks/roc"].spec.string_fields["xname"] == "log10 FPR"


def test_points_without_a_logarithm_are_left_out(experiment):
    """No member above the highest non-member: the curve starts where the first is found."""
    scores = MembershipScores.of([0.0, 1.0, 0.5, 2.0, 3.0], [True, True, False, False, False])
    RoundLogger(offline=True).log_attacks(["a"], [], {}, {"yeom.global": scores})
    [step] = experiment.logged
    assert all(tpr > 0 for _, _, tpr in step["attacks/roc_points"].data)
    assert min(fpr for _, fpr, _ in step["attacks/roc_points"].data) >= 2 / 3


def test_attacks_without_scores_have_no_curves(experiment):
    """An empty plot would be refused."""
    RoundLogger(offline=True).log_attacks(COLUMNS, rows([missing()]), {}, {})
    [step] = experiment.logged
    assert list(step) == ["attacks/results"]


def test_an_offline_run_keeps_all(tmp_path, monkeypatch):
    """Tables lie in the folder of the run, numbers in its log."""
    for variable in ("WANDB_DIR", "WANDB_MODE", "WANDB_RUN_ID"):
        monkeypatch.setenv(variable, "")  # so that whatever W&B puts there is taken back
        monkeypatch.delenv(variable)
    logger = make_tracker("offline", tmp_path, "a", None, "rampart")
    found = finding()
    logger.log_attacks(
        COLUMNS, rows([found, missing()]), {"attacks/yeom.global/auc": 0.75}, {"yeom.global": found.scores}
    )
    logger.finalize("success")
    assert wandb.run is None
    [run] = (tmp_path / "wandb").glob("offline-run-*")
    tables = {path.name.split("_0_")[0]: json.loads(path.read_text()) for path in run.rglob("*.table.json")}
    assert sorted(tables) == ["results", "roc_points", "roc_table"]
    assert tables["results"]["data"] == rows([found, missing()])
    assert soon_in(run / "run-a.wandb", b"attacks/yeom.global/auc")
