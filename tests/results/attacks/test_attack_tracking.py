"""Weights & Biases: results of attacks as a table, numbers of the summary and ROC curves; images if asked for."""

import json
import math
from dataclasses import replace

import pytest
import wandb
from finding_kit import finding, missing, records
from run_kit import train
from tracking_kit import Experiment, no_wandb_settings, offline_run  # noqa: F401

from app.commands.attack import attack
from app.metrics.membership import MembershipScores
from app.metrics.roc import roc_curve
from app.result import Measurement
from app.results.attacks.membership import AttackRecord
from app.results.attacks.membership_report import rows
from app.results.run.fairness import NewcomersResult
from app.results.run.tracking import RoundLogger, make_tracker

pytestmark = pytest.mark.usefixtures("no_wandb_settings")


VICTIMS = (
    *("--data.partition.clients", "3", "--data.partition.samples", "4", "--model.net.hidden", "[200]"),
    *("--model.local.optimizer", "torch.optim.SGD", "--model.local.optimizer.lr", "0.05"),
    *("--attacks.server", "MaliciousServer", "--attacks.server.attack", "trap-weights"),
)
"""Three clients of four digits each, one step of SGD per round, and a malicious server."""


@pytest.fixture
def experiment(monkeypatch):
    """What the next tracked run tells W&B."""
    experiment = Experiment()
    monkeypatch.setattr(RoundLogger, "experiment", property(lambda self: experiment))
    return experiment


def log(found, logger=None):
    """Log findings of membership inference that are all there is."""
    logger = logger or RoundLogger(offline=True)
    logger.log_results(AttackRecord, records(found), records(found), {"attacks/roc.png": "nowhere.png"})


def test_results_summary_and_curves(experiment):
    """One row per result, the numbers as they are, and the points of every curve."""
    found = [finding(), finding("b", "uploads", seed=5), missing()]
    log(found)
    first = AttackRecord.of(found[0]).numbers
    assert {name: experiment.results[f"attacks/yeom.global/{name}"] for name in first} == first
    assert experiment.results["attacks/headline/global/auc"] == first["auc"]
    assert experiment.results["attacks/headline/uploads/auc"] == experiment.results["attacks/b.uploads/auc"]
    assert all(isinstance(value, (int, float)) for value in experiment.results.values())
    [step] = experiment.logged
    assert sorted(step) == ["attacks/results", "attacks/roc", "attacks/roc_points"]
    table = step["attacks/results"]
    assert table.columns == list(rows(records(found)).columns)
    assert table.data == rows(records(found)).rows
    points = step["attacks/roc_points"]
    assert points.columns == ["result", "fpr", "tpr"]
    assert [*dict.fromkeys(label for label, _, _ in points.data)] == ["yeom.global", "b.uploads"]
    own = [(fpr, tpr) for label, fpr, tpr in points.data if label == "yeom.global"]
    curve = roc_curve(found[0].scores)
    assert own[-1] == (1.0, 1.0)
    assert len(own) > 50
    assert all(tpr == curve.tpr[curve.fpr <= fpr + 1e-12].max() for fpr, tpr in own)


def test_new_results_in_the_table_all_in_the_summary(experiment):
    """Numbers of earlier attacks stay; the strongest of all is the headline."""
    old, new = records([finding(distance=3.0), finding("b")])
    RoundLogger(offline=True).log_results(AttackRecord, [new], [old, new], {})
    assert [row[0] for row in experiment.logged[0]["attacks/results"].data] == ["b.global"]
    assert experiment.results["attacks/headline/global/auc"] == old.numbers["auc"] > new.numbers["auc"]
    assert {"attacks/yeom.global/auc", "attacks/b.global/auc"} <= set(experiment.results)


def test_the_plot_is_logarithmic(experiment):
    """W&B draws linear axes, so it gets logarithms."""
    log([finding()])
    [step] = experiment.logged
    drawn = step["attacks/roc"].table.data
    points = [[math.log10(fpr), label, math.log10(tpr)] for label, fpr, tpr in step["attacks/roc_points"].data]
    assert drawn == points
    assert step["attacks/roc"].spec.string_fields["xname"] == "log10 FPR"


def test_points_without_a_logarithm_are_left_out(experiment):
    """No member above the highest non-member: the curve starts where the first is found."""
    scores = MembershipScores.of([0.0, 1.0, 0.5, 2.0, 3.0], [True, True, False, False, False])
    log([replace(finding(), scores=scores)])
    [step] = experiment.logged
    assert all(tpr > 0 for _, _, tpr in step["attacks/roc_points"].data)
    assert min(fpr for _, fpr, _ in step["attacks/roc_points"].data) >= 2 / 3


def test_attacks_without_scores_have_no_curves(experiment):
    """An empty plot would be refused."""
    log([missing()])
    [step] = experiment.logged
    assert list(step) == ["attacks/results"]


def test_numbers_of_other_kinds_do_not_mix(experiment):
    """Each has the name of its kind in front."""
    logger = RoundLogger(offline=True)
    joined = {"clients": 3, "visits": 5, "accuracy": {"fitted": {"mean": 0.5}}}
    for result in (Measurement("norms", {"mean": 1.5}), NewcomersResult(joined)):
        logger.log_results(type(result), [result], [result], {})
    newcomers = {"newcomers/clients": 3, "newcomers/visits": 5, "newcomers/accuracy/fitted/mean": 0.5}
    assert experiment.results == {"results/norms/mean": 1.5, **newcomers}
    assert [list(step) for step in experiment.logged] == [["results/results"], ["newcomers/results"]]


def test_an_offline_run_keeps_all(tmp_path):
    """Tables lie in the folder of the run, numbers in its log."""
    logger = make_tracker("offline", tmp_path, "a")
    found = [finding(), missing()]
    log(found, logger)
    logger.finalize("success")
    assert wandb.run is None
    run = offline_run(tmp_path)
    tables = {path.name.split("_0_")[0]: json.loads(path.read_text()) for path in run.folder.rglob("*.table.json")}
    assert sorted(tables) == ["results", "roc_points", "roc_table"]
    assert tables["results"]["data"] == rows(records(found)).rows
    assert run.summary["attacks/yeom.global/auc"] == AttackRecord.of(found[0]).numbers["auc"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_training_images_are_tracked_only_if_asked_for(asked, tmp_path):
    """Figures of reconstructions show the originals: they stay in the folder of the run, numbers are tracked."""
    images = ("--tracking", "offline", "--track_images", str(asked).lower())
    folder = train(tmp_path, "a", *VICTIMS, *images, rounds=1)
    assert (folder / "attacks" / "reconstruction" / "trap-weights.png").is_file()
    assert_tracks(folder, asked)
    quick = ("--controls", "skip", "--calibrate", "false", "--targets", "global")
    assert attack([str(folder), "--attacks", "yeom", *quick]) == 0
    run = assert_tracks(folder, asked)
    assert "attacks/yeom.global/seconds" in run.summary


def assert_tracks(folder, images):
    """Numbers of the reconstruction, and images or not; returns the offline run."""
    run = offline_run(folder)
    assert "attacks/reconstruction/trap-weights/pearson" in run.summary
    assert run.logged("attacks/reconstructions/nrows") == [1]
    endings = (".png", ".jpg", ".jpeg", ".gif", ".npz", ".npy", ".pt", ".ckpt")
    found = [path.name for path in (folder / "wandb").rglob("*") if path.suffix.lower() in endings]
    assert bool(found) == images
    assert len(run.logged("attacks/reconstruction/trap-weights/path")) == images
    return run
