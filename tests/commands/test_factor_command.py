"""`rampart attack RUN --attacks factor-recovery`, the same attack within a run, and model inversion of uploads."""

import json
from functools import partial

import numpy as np
import pytest
from run_kit import exit_code, last_checkpoint, leave_out_figures, parsed, train

from app.attacks.reconstruction.catalogue import make_passive
from app.attacks.reconstruction.inversion import released_model
from app.attacks.reconstruction.inversion.evaluator import train_evaluator
from app.commands.fit import CLOSING_FILES
from app.results.attacks.reconstruction import ReconstructionRecord

pytestmark = pytest.mark.usefixtures("no_figures")

NET = (
    *("--model.net", "app.models.Factorised", "--model.net.net", "app.models.MLP"),
    *("--model.net.factors", '{"layers.hidden1": 8}'),
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A finished run whose choice of factors was attacked at its end."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch)
        return train(tmp_path_factory.mktemp("runs"), "w", *NET, "--config", "factor-recovery", rounds=2)


def test_results_of_the_run(attacked):
    """Files, and numbers in the summary."""
    names = {path.name for path in (attacked / "attacks").iterdir()}
    assert names == {"factors.json", "factors.csv", "factors.png"}
    assert "factors.json holds the numbers" in CLOSING_FILES["attacks/factors.png"]
    summary = json.loads((attacked / "summary.json").read_text())
    means = json.loads((attacked / "attacks" / "factors.json").read_text())["means"]
    assert summary["factors"]["attacks/factors/support"] == means["support"]["value"]


def test_the_same_afterwards(attacked):
    """From the transcript and the checkpoint, bit for bit."""
    paths = [attacked / "attacks" / f"factors.{kind}" for kind in ("json", "csv")]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    assert exit_code("attack", str(attacked), "--attacks", "factor-recovery") == 0
    assert [path.read_bytes() for path in paths] == before
    assert "factors" in json.loads((attacked / "summary.json").read_text())


def test_other_attacks_beside_it(attacked, capsys):
    """Membership inference reads its own files only; both kinds at once give what each gives alone."""
    quick = ("--targets", "uploads", "--controls", "skip", "--calibrate", "false")
    assert exit_code("attack", str(attacked), "--attacks", "yeom", *quick) == 0
    assert "uploads+recovered" in capsys.readouterr().out
    summary = json.loads((attacked / "summary.json").read_text())
    assert "attacks/yeom.uploads+recovered/auc" in summary["attacks"]
    before = (attacked / "attacks" / "factors.csv").read_bytes()
    assert exit_code("attack", str(attacked), "--attacks=factor-recovery,yeom", *quick) == 0
    told = capsys.readouterr().out
    assert told.index("\nmembership inference\n") < told.index("\nprivate choice of factors\n")
    assert (attacked / "attacks" / "factors.csv").read_bytes() == before
    both = json.loads((attacked / "summary.json").read_text())
    assert both["factors"] == summary["factors"]
    assert both["attacks"].keys() == summary["attacks"].keys()


def test_uploads_are_inverted(attacked, monkeypatch):
    """By class_path with options, as sent and recovered; judged by a network that has hardly learnt."""
    monkeypatch.setattr(released_model, "train_evaluator", partial(train_evaluator, epochs=1))
    monkeypatch.setattr(ReconstructionRecord, "draw", lambda *_: ())
    given = "[{class_path: ModelInversion, init_args: {target: uploads, client: 2, steps: 3}}]"
    assert exit_code("attack", str(attacked), "--attacks", given) == 0
    labels = {path.stem for path in (attacked / "attacks" / "reconstruction").glob("*.json")}
    assert labels == {"mi-face-client-2", "mi-face-client-2-recovered"}


def test_recipes():
    """Both name classes that exist."""
    attacks = parsed("--config", "model-inversion-uploads", "--config", "factor-recovery")["attacks"]
    assert attacks["factors"]["class_path"].endswith("FactorRecovery")
    (inversion,) = attacks["reconstruction"]["init_args"]["attacks"]
    assert inversion["init_args"]["target"] == "uploads"
    assert make_passive("mi-face").target == "global"


def test_runs_that_cannot_be_judged(attacked, tmp_path, capsys):
    """Without factors, or without a checkpoint, the reason is told."""
    plain = train(tmp_path, "plain", rounds=1)
    assert exit_code("attack", str(plain), "--attacks", "factor-recovery") != 0
    assert "MLP has no factorised layers" in capsys.readouterr().err
    bare = train(tmp_path, "bare", *NET, "--trainer.enable_checkpointing", "false", rounds=1)
    assert exit_code("attack", str(bare), "--attacks", "factor-recovery") != 0
    assert "has no checkpoint" in capsys.readouterr().err


def test_nothing_private_leaves_the_run(attacked):
    """What clients keep is in the checkpoint and not in the transcript; one float in thousands may agree by chance."""
    kept = [values.numpy() for values in last_checkpoint(attacked)["personal"].values()]
    own = [[value for value in values if sum(value in other for other in kept) == 1] for values in kept]
    files = [np.load(path) for path in (attacked / "transcript").rglob("*.npz")]
    arrays = [array for file in files for array in file.values()]
    assert len(arrays) > 5
    assert min(map(len, own)) > 5
    assert all(np.isin(array, values).sum() < 2 for array in arrays for values in own)


def test_listed(capsys):
    """Beside the other attacks."""
    assert exit_code("list", "attacks") == 0
    assert "factor-recovery" in capsys.readouterr().out
