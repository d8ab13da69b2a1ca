"""Weights & Biases: the report as an artifact, its table, and its numbers."""

import pytest
import wandb
from report_kit import ACCURACY, table
from tracking_kit import soon_in

from app.results.comparison.data_formats import tracked_columns, tracked_numbers, tracked_rows
from app.results.run.tracking import make_tracker


def test_numbers_are_those_of_the_table():
    """Every mean in its unit, under the row's labels; what is missing has no number."""
    numbers = tracked_numbers(table())
    assert numbers["report/digits/fedavg/none/server_accuracy"] == 91.0
    assert "report/digits/fedavg/secure-aggregation/uploads_auc" not in numbers
    assert len(numbers) == 4 + 3 + 1 + 4
    place = tracked_columns(table()).index(ACCURACY.key)
    assert [row[place] for row in tracked_rows(table())] == [91.0, 90.0, 80.0, 90.0]
    assert tracked_rows(table())[3][tracked_columns(table()).index("uploads_auc")] is None


@pytest.mark.slow
def test_an_offline_run_keeps_the_report(tmp_path, monkeypatch):
    """The artifact with all files in their folders, and the numbers, lie in the folder until they are uploaded."""
    for variable in ("WANDB_DIR", "WANDB_MODE", "WANDB_RUN_ID"):
        monkeypatch.setenv(variable, "")  # so that whatever W&B puts there is taken back
        monkeypatch.delenv(variable)
    page, folder = tmp_path / "report.html", tmp_path / "report"
    folder.mkdir()
    page.write_text("<p>report</p>")
    (folder / "table.csv").write_text("a,b\n")
    tracker = make_tracker("offline", folder, "mine-report", "mine", "rampart")
    tracker.log_report(
        page, [folder / "table.csv"], tracked_numbers(table()), tracked_columns(table()), tracked_rows(table())
    )
    tracker.finalize("success")
    assert wandb.run is None
    [log] = (folder / "wandb").glob("offline-run-*/run-mine-report.wandb")
    for text in (b"report/table.csv", b"report.html", b"report/digits/fedavg/none/server_accuracy"):
        assert soon_in(log, text)
