"""Two processes through the command line give what one gives."""

import numpy as np
import pytest
import torch
from process_kit import started
from run_kit import UNEQUAL, command, records, train

from app.federation.transcript import Transcript
from app.results.attacks.membership import AttackRecord, scores_by_label
from app.results.run.folder import NAME_VARIABLE

ATTACKED = (
    *("--attacks.mia", "MembershipInference", "--attacks.mia.attacks", "[yeom, lira-online]"),
    *("--attacks.mia.shadows.mode", "federated", "--attacks.mia.shadows.count", "4", "--attacks.mia.every", "1"),
    *("--attacks.mia.controls", "skip", "--attacks.mia.calibrate", "false"),
)
OPTIONS = (*UNEQUAL, "--model.executor", "sequence", *ATTACKED)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_two_processes_share_one_run(tmp_path, monkeypatch):
    """One unnamed run folder, equal metrics, the uploads of both processes' clients, and attacks that find the same."""
    alone = train(tmp_path, "alone", *OPTIONS, rounds=2)
    monkeypatch.delenv(NAME_VARIABLE, raising=False)  # which the run leaves behind
    arguments = command(tmp_path / "runs", "x", *OPTIONS, rounds=2)
    at = arguments.index("--run.name")
    arguments = [*arguments[:at], *arguments[at + 2 :], "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    log = tmp_path / "log"
    process = started("-m", "app.cli", "fit", *arguments, out=log)
    assert process.wait(240) == 0, log.read_text()
    assert log.read_text().count("round 2/2") == 1, "only the first process speaks"
    [together] = (path for path in (tmp_path / "runs").iterdir() if path.name != ".cache")
    for one, two in zip(records(alone), records(together), strict=True):
        assert one == pytest.approx(two, abs=1e-6)
    views = [Transcript(run / "transcript").server_view() for run in (alone, together)]
    for round_ in (1, 2):
        uploads = [view.uploads(round_) for view in views]
        assert [upload.client for upload in uploads[0]] == [upload.client for upload in uploads[1]]
        for one, two in zip(*uploads, strict=True):
            assert torch.allclose(one.payload, two.payload, atol=1e-6)
    results = [scores_by_label(AttackRecord.load_all(run)) for run in (alone, together)]
    assert results[0].keys() == results[1].keys() >= {"yeom.uploads", "lira-online.global", "lira-online.uploads@1"}
    for label, scores in results[0].items():
        assert np.allclose(scores.scores, results[1][label].scores, atol=1e-3), label
    rows = [(run / "clients.csv").read_text().count("\n") for run in (alone, together)]
    assert rows == [9, 9]
