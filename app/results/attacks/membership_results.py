"""Results of membership inference on a run: files at once, tables, figures and trackers at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from app.attacks.findings import Finding
from app.errors import UserError
from app.files import write_figure, write_text
from app.metrics.membership import MembershipScores
from app.results.attacks.headline import headline_numbers, headline_summary
from app.results.attacks.membership_figures import draw_clients, draw_leakage, draw_roc
from app.results.attacks.membership_files import AttackFiles
from app.results.attacks.membership_report import COLUMNS, clients_csv, rows, samples_csv, table
from app.results.run.folder import RunFolder
from app.results.run.tracking import RoundLogger


class AttackResults:
    """The attack folder of one run, `attacks/`, with its summary; results also go to the W&B run `tracker`."""

    def __init__(self, folder: RunFolder, tracker: RoundLogger | None = None) -> None:
        self._folder, self.tracker = folder, tracker
        self._files = AttackFiles(folder.path / "attacks")

    def add(self, finding: Finding) -> None:
        self._files.write(finding)

    def conclude(self, findings: Sequence[Finding], rates: Sequence[float], when: str = "") -> None:
        """Print the new results, and bring tables, figures and summary of all results up to date.

        Args:
            findings: the new results, which were added before.
            rates: width of each client, for the figures.
            when: time of the attack in words; empty for the end of the run.
        """
        title = f"membership inference{', ' + when if when else ''}: {self._folder.name}"
        tqdm.write(f"\n{title}\n{table(findings)}\n")
        try:
            self._write(findings, rates, title)
        except OSError as error:
            raise UserError.of(
                f"cannot write {self._folder.path / 'attacks'}: {error.strerror or error}",
                "tables and figures are not up to date; the scores are kept",
                "free some space, then repeat the attack with `rampart attack`",
            ) from error
        if self.tracker is not None:
            curves = {f.conditions.label: f.scores for f in findings if isinstance(f.scores, MembershipScores)}
            numbers = self._files.summary() | headline_numbers(self._files.records())
            self.tracker.log_attacks(list(COLUMNS), rows(findings), numbers, curves)

    def _write(self, findings: Sequence[Finding], rates: Sequence[float], title: str) -> None:
        path, records = self._folder.path / "attacks", self._files.records()
        scores = self._files.scores_by_label()
        write_text(path / "clients.csv", clients_csv(records))
        write_text(path / "vulnerable.csv", samples_csv(scores))
        if scores:
            write_figure(path / "roc.png", draw_roc(scores, title))
        write_figure(path / "leakage.png", draw_leakage(records, title))
        for finding in findings:
            if finding.clients:
                figure = draw_clients(finding, dict(enumerate(rates)))
                write_figure(path / f"{finding.conditions.label}.clients.png", figure)
        self._folder.update_summary("attacks", attack_summary(self._folder))


def attack_summary(folder: RunFolder) -> dict[str, Any]:
    """All numbers of a run's results, and the strongest as `headline`; empty without results."""
    files = AttackFiles(folder.path / "attacks")
    strongest = headline_summary(files.records())
    return {**files.summary(), **({"headline": strongest} if strongest else {})}
