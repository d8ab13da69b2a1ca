"""What a defense is judged by: the strongest attack on every kind of target."""

import json
from dataclasses import replace

from finding_kit import finding, missing, records
from matplotlib.figure import Figure

from app.metrics.intervals import Estimate, Interval
from app.metrics.membership import NotAvailable
from app.results.attacks.headline import headline_summary, headlines
from app.results.attacks.membership import AttackRecord
from app.results.run.folder import RunFolder
from app.results.run.results import conclude, summaries

FOUND = finding(rows=40)


def record(auc, attack="yeom", target="uploads", **conditions):
    """A result with a chosen area."""
    found = replace(FOUND.conditions, attack=attack, target=target, **conditions)
    leakage = replace(FOUND.leakage, auc=Estimate(auc, Interval(auc - 0.1, auc + 0.1)))
    return AttackRecord.of(replace(FOUND, conditions=found, leakage=leakage))


def strongest(*records):
    """Label of the strongest result by kind."""
    return {headline.kind: headline.record.label for headline in headlines(records)}


def test_the_largest_area_counts_on_every_kind_of_target():
    """Whoever attacks, whether or not the attacker knows the defense; of equal ones the first label."""
    assert strongest(
        record(0.6),
        record(0.7, adaptation="refilled"),
        record(0.65, "lira"),
        record(0.9, target="global"),
        record(0.8, target="global", adaptation="averaged"),
    ) == {"uploads": "yeom.uploads+refilled", "global": "yeom.global"}
    assert strongest(record(0.7, "b"), record(0.7, "a"), record(0.7, "c")) == {"uploads": "a.uploads"}


def test_results_without_numbers_do_not_compete():
    """Neither withheld ones nor those of targets that nobody sees."""
    withheld = replace(record(0.99, "mutant"), leakage=NotAvailable("withheld, a control failed"))
    assert strongest(withheld, record(0.6), AttackRecord.of(missing("nasr", "global"))) == {"uploads": "yeom.uploads"}
    assert headlines([AttackRecord.of(missing())]) == []


def test_audits_and_the_last_models_come_first():
    """A paper's evaluation, or an earlier round, counts only where there is nothing else."""
    paper, early = record(0.9, protocol="memdefense"), record(0.8, target="uploads@2")
    assert strongest(paper, early, record(0.6)) == {"uploads": "yeom.uploads"}
    assert strongest(paper, early) == {"uploads": "yeom.uploads@2"}
    assert strongest(paper) == {"uploads": "memdefense.yeom.uploads"}


def test_who_knows_the_defense():
    """Said of the strongest, where results of both attackers are compared."""
    [alone] = headlines([record(0.6)])
    assert (alone.rivals, alone.informed) == (False, False)
    [plain] = headlines([record(0.7), record(0.6, adaptation="averaged")])
    assert (plain.rivals, plain.informed) == (True, False)
    [adapted] = headlines([record(0.5), record(0.6, adaptation="averaged")])
    assert (adapted.rivals, adapted.informed) == (True, True)
    [other] = headlines([record(0.7), record(0.6, adaptation="averaged", protocol="memdefense")])
    assert not other.rivals, "results of another evaluation are not compared"


def test_as_plain_data():
    """Words and numbers by kind of target."""
    told = headline_summary([record(0.6), record(0.75, adaptation="refilled")])["uploads"]
    assert told["label"] == "yeom.uploads+refilled"
    assert (told["attack"], told["adaptation"]) == ("yeom", "refilled")
    assert (told["auc"], told["auc_low"], told["auc_high"]) == (0.75, 0.65, 0.85)
    assert told["tpr_at_10%"] == FOUND.leakage.tpr[2].decision.tpr


class Tracker:
    """Keeps what it is told."""

    def log_results(self, kind, new, everything, figures):
        """Results of attacks."""
        self.kind, self.new, self.everything, self.figures = kind, new, everything, figures


def test_a_runs_summary_holds_its_headline(tmp_path, monkeypatch):
    """Beside the numbers of all attacks so far, those of earlier commands included; also for trackers."""
    for name in ("draw_roc", "draw_leakage", "draw_clients"):
        monkeypatch.setattr(f"app.results.attacks.membership.{name}", lambda *_: Figure(figsize=(0.1, 0.1)))
    folder, tracker = RunFolder(tmp_path), Tracker()
    folder.write_json("summary.json", {"final": {}})
    strong, weak = (
        finding(target="uploads", distance=2, adaptation="refilled", rows=40),
        finding(target="uploads", rows=40),
    )
    for found in records([strong, weak]):
        found.save(tmp_path)
        conclude(folder, [found], tracker=tracker)
    told = json.loads((tmp_path / "summary.json").read_text())["attacks"]
    assert {"attacks": told} == summaries(folder)
    assert told["headline"]["uploads"]["label"] == "yeom.uploads+refilled"
    assert told["headline"]["uploads"]["auc"] == strong.leakage.auc.value == told["attacks/yeom.uploads+refilled/auc"]
    assert "attacks/yeom.uploads/auc" in told
    assert (tracker.kind, [one.label for one in tracker.new]) == (AttackRecord, ["yeom.uploads"])
    assert AttackRecord.summary(tracker.everything) == told
    drawn = ("yeom.uploads.clients.png", "roc.png", "leakage.png")
    assert tracker.figures == {f"attacks/{name}": str(tmp_path / "attacks" / name) for name in drawn}
    assert summaries(RunFolder(tmp_path / "other")) == {}
    assert "strongest: yeom on uploads+refilled" in AttackRecord.text(tracker.everything)
