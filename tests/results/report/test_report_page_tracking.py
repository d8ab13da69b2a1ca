"""Weights & Biases: the report as an artifact, its table, and its numbers."""

import pytest
import wandb
from report_kit import ACCURACY, table
from tracking_kit import no_wandb_settings, offline_run  # noqa: F401

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
@pytest.mark.usefixtures("no_wandb_settings")
def test_an_offline_run_keeps_the_report(tmp_path):
    """The artifact with all files in their folders, and the numbers, lie in the folder until they are uploaded."""
    page, folder = tmp_path / "report.html", tmp_path / "report"
    folder.mkdir()
    page.write_text("<p>report</p>")
    (folder / "table.csv").write_text("a,b\n")
    kept = []
    for _ in range(2):  # a report that is made again takes the place of the one before
        tracker = make_tracker("offline", folder, "mine-report", "mine")
        tracker.log_report(
            page, [folder / "table.csv"], tracked_numbers(table()), tracked_columns(table()), tracked_rows(table())
        )
        tracker.finalize("success")
        assert wandb.run is None
        run = offline_run(folder)
        assert run.summary["report/digits/fedavg/none/server_accuracy"] == 91.0
        [artifact] = [artifact for artifact in run.artifacts if artifact.type == "report"]
        assert artifact.name == "mine-report"
        assert {entry.path for entry in artifact.manifest.contents} == {"report.html", "report/table.csv"}
        kept.append(run)
    assert kept[0].folder != kept[1].folder
    assert kept[0].run.run_id == kept[1].run.run_id
    assert kept[0].run.run_group == "mine"
