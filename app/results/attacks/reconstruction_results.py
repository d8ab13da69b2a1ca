"""Results of reconstructions from a run: files at once, table, figures and trackers at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from app.attacks.reconstruction.base import ReconstructionFinding
from app.errors import UserError
from app.files import write_figure
from app.metrics.reconstruction import Reconstruction
from app.results.attacks.reconstruction_figures import draw_reconstructions, draw_summary
from app.results.attacks.reconstruction_files import PREFIX, ReconstructionFiles
from app.results.attacks.reconstruction_report import COLUMNS, rows, table
from app.results.run.folder import RunFolder
from app.results.run.tracking import RoundLogger


class ReconstructionResults:
    """The folder `attacks/reconstruction/` of one run, with its summary; results also go to the W&B run `tracker`."""

    def __init__(self, folder: RunFolder, tracker: RoundLogger | None = None) -> None:
        self._folder, self.tracker = folder, tracker
        self._files = ReconstructionFiles(folder.path / PREFIX)

    def add(self, finding: ReconstructionFinding) -> None:
        self._files.write(finding)

    def conclude(self, findings: Sequence[ReconstructionFinding]) -> None:
        """Print the new results, which were added before, and bring figures and summary of all results up to date."""
        tqdm.write(f"\nreconstruction: {self._folder.name}\n{table(findings)}\n")
        try:
            figures = self._write(findings)
        except OSError as error:
            raise UserError.of(
                f"cannot write {self._folder.path / PREFIX}: {error.strerror or error}",
                "figures and summary are not up to date; the images and their scores are kept",
                "free some space, then repeat the attack",
            ) from error
        if self.tracker is not None:
            self.tracker.log_reconstructions(list(COLUMNS), rows(findings), self._files.summary(), figures)

    def _write(self, findings: Sequence[ReconstructionFinding]) -> dict[str, Path]:
        """Draw everything; returns the paths of the new figures by label, `summary` for that of all results."""
        figures = {}
        for finding in findings:
            if finding.pairs is not None and isinstance(finding.result, Reconstruction):
                label = finding.conditions.label
                figure = draw_reconstructions(finding, f"{label}: {self._folder.name}")
                figures[label] = self._files.write_figure(label, figure)
        if records := self._files.records():
            path = self._folder.path / f"{PREFIX}.png"
            write_figure(path, draw_summary(records, f"reconstruction: {self._folder.name}"))
            figures["summary"] = path
        self._folder.update_summary("reconstruction", reconstruction_summary(self._folder))
        return figures


def reconstruction_summary(folder: RunFolder) -> dict[str, float]:
    """All numbers of a run's reconstructions; empty without any."""
    return ReconstructionFiles(folder.path / PREFIX).summary()
