"""Findings are kept as they are: what is read back equals what was found."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finding_kit import REASON, conditions, finding, full_finding, gaussian_scores, kept, missing, records

from app.attacks.findings import ReportedNumber
from app.common.errors import UserError
from app.metrics.intervals import Estimate
from app.metrics.leakage import KnownThreshold, known_threshold
from app.metrics.membership import NO_CLIENT, MembershipScores, NotAvailable
from app.metrics.roc import roc_curve
from app.metrics.thresholds import decide
from app.results.attacks.factor_recovery import FactorRecord
from app.results.attacks.membership import ARRAYS, AttackRecord, scores_by_label
from app.results.attacks.wording import tpr_at


class Files:
    """Results of a run whose folder does not exist yet: written from findings, and read back."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / "attacks"

    def write(self, found):
        """Keep the result of a finding."""
        AttackRecord.of(found).save(self.run)

    def records(self):
        """All results, by label."""
        return AttackRecord.load_all(self.run)

    def scores(self, label):
        """Scores of one result."""
        return AttackRecord.load(AttackRecord.path(self.run, label, "json")).scores

    def summary(self):
        """Their part of the run's summary, without the headline."""
        return {name: value for name, value in AttackRecord.summary(self.records()).items() if name != "headline"}

    def hold(self, *found):
        """Whether the results are those of the findings, in every number."""
        return list(map(kept, self.records())) == list(map(kept, records(found)))


@pytest.fixture
def files(tmp_path):
    """A run folder that does not exist yet."""
    return Files(tmp_path / "run")


def read_json(files, label):
    """A record as plain data, by a reader that refuses NaN."""
    text = (files.folder / f"{label}.json").read_text()
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_everything_comes_back(files):
    """Scores bit for bit, and every number, interval, reason, figure and note of the record."""
    found = full_finding()
    files.write(found)
    assert files.hold(found)
    read = files.scores("fedfa.lira-online.uploads")
    for name in ARRAYS:
        assert getattr(read, name).dtype == getattr(found.scores, name).dtype
        assert np.array_equal(getattr(read, name), getattr(found.scores, name))
    [record] = files.records()
    for name in ("conditions", "leakage", "clients", "capacities", "figures", "notes", "seconds", "failed"):
        assert getattr(record, name) == getattr(found, name), name
    assert record.no_scores is None
    assert isinstance(record.leakage.known, KnownThreshold)
    assert isinstance(record.leakage.tpr[0], NotAvailable)


def test_scores_are_plain_arrays(files):
    """Nothing in the file is pickled, and non-members of nobody keep their mark."""
    scores = MembershipScores.of([1.0, 0.5, 0.2], [True, False, False], [7, 8, 9], [3, NO_CLIENT, 3])
    files.write(replace(finding(), scores=scores))
    with np.load(files.folder / "yeom.global.npz", allow_pickle=False) as arrays:
        assert sorted(arrays.files) == sorted(ARRAYS)
    assert files.scores("yeom.global").clients.tolist() == [3, NO_CLIENT, 3]


def test_a_finding_without_numbers_keeps_its_reason(files):
    """No file of scores, no number but the time."""
    files.write(missing(seconds=2.5, failed=True))
    assert [path.name for path in files.folder.iterdir()] == ["nasr.uploads.json"]
    [record] = files.records()
    assert record.leakage == record.no_scores == NotAvailable(REASON)
    assert record.failed
    assert record.numbers == {"seconds": 2.5}
    assert scores_by_label(files.records()) == {}
    with pytest.raises(UserError, match=r"no arrays of nasr\.uploads"):
        files.scores("nasr.uploads")


@pytest.mark.parametrize(("threshold", "called"), [(math.inf, 0), (-math.inf, 400)])
def test_infinite_thresholds_come_back(files, threshold, called):
    """JSON has no infinity; nobody or everybody is called a member."""
    found = finding()
    known = known_threshold(decide(found.scores, threshold, "knowledge"))
    assert known.decision.true_positives + known.decision.false_positives == called
    files.write(replace(found, leakage=replace(found.leakage, known=known)))
    assert read_json(files, "yeom.global")["leakage"]["known"]["decision"]["threshold"] is None
    assert files.records()[0].leakage.known == known


def test_numbers_without_a_value(files):
    """NaN is null in JSON and left out of the summary; a missing interval says why."""
    found = finding()
    alone = replace(found.leakage, auc=Estimate(0.7, NotAvailable("an interval needs at least 2 clients")))
    files.write(replace(found, leakage=alone, figures=(ReportedNumber("Adv %", math.nan, ((0, math.nan), (1, 3.0))),)))
    assert read_json(files, "yeom.global")["figures"][0]["value"] is None
    [record] = files.records()
    assert math.isnan(record.figures[0].value)
    assert math.isnan(record.figures[0].per_client[0][1])
    assert record.leakage.auc == alone.auc
    assert "attacks/yeom.global/paper/Adv %" not in files.summary()
    assert "attacks/yeom.global/auc_low" not in files.summary()


def test_summary_holds_the_numbers_of_the_metrics(files):
    """One flat entry per available number of every result; what was refused is absent."""
    first, second = finding(), full_finding()
    files.write(first)
    files.write(second)
    summary, leakage = files.summary(), first.leakage
    assert summary["attacks/yeom.global/auc"] == roc_curve(first.scores).auc
    assert summary["attacks/yeom.global/auc_low"] == leakage.auc.interval.low
    assert summary["attacks/yeom.global/auc_high"] == leakage.auc.interval.high
    assert summary["attacks/yeom.global/tpr_at_1%"] == leakage.tpr[1].decision.tpr
    assert summary["attacks/yeom.global/tpr_at_10%"] == leakage.tpr[2].decision.tpr
    assert summary["attacks/yeom.global/tpr_at_10%_high"] == leakage.tpr[2].tpr_at_target.high
    assert summary["attacks/yeom.global/balanced_accuracy"] == leakage.known.decision.balanced_accuracy
    assert summary["attacks/yeom.global/balanced_accuracy_optimistic"] == leakage.optimistic.balanced_accuracy
    assert summary["attacks/yeom.global/members"] == 200
    assert summary["attacks/fedfa.lira-online.uploads/paper/Adv %"] == 12.34
    worst = max(first.clients, key=lambda row: row.leakage.auc.value)
    assert summary["attacks/yeom.global/worst_client"] == worst.client
    assert summary["attacks/yeom.global/worst_client_auc"] == worst.leakage.auc.value
    assert not [name for name in summary if name.startswith("attacks/yeom.global/tpr_at_0.1%")]
    assert all(math.isfinite(number) for number in summary.values())
    assert read_json(files, "yeom.global")["numbers"]["auc"] == leakage.auc.value


def test_a_share_is_found_by_its_target():
    """Of the refused one nothing is known."""
    leakage = finding().leakage
    assert tpr_at(leakage, 0.001) is None
    assert tpr_at(leakage, 0.01) is leakage.tpr[1]


def test_a_later_result_takes_the_place_of_the_earlier(files):
    """The same label only; scores go when the later result has none."""
    files.write(finding(seed=1))
    files.write(finding("rmia", seed=2))
    later = finding(seed=3, rows=60)
    files.write(later)
    assert files.scores("yeom.global").scores.tolist() == later.scores.scores.tolist()
    assert [record.label for record in files.records()] == ["rmia.global", "yeom.global"]
    assert kept(files.records()[1]) == kept(AttackRecord.of(later))
    files.write(missing("yeom", "global"))
    assert sorted(path.name for path in files.folder.iterdir()) == [
        "rmia.global.json",
        "rmia.global.npz",
        "yeom.global.json",
    ]
    assert list(scores_by_label(files.records())) == ["rmia.global"]


@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_leaves_the_earlier_result(files, monkeypatch, written):
    """Scores and record are replaced together or not at all, and nothing half-written stays."""
    earlier = finding(seed=1)
    files.write(earlier)
    synced = []

    def full(descriptor):
        synced.append(descriptor)
        if len(synced) > written:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        files.write(finding(seed=2))
    monkeypatch.undo()
    assert sorted(path.name for path in files.folder.iterdir()) == ["yeom.global.json", "yeom.global.npz"]
    assert files.hold(earlier)
    assert files.scores("yeom.global").scores.tolist() == earlier.scores.scores.tolist()


@pytest.mark.parametrize("attack", ["../yeom", "a/b", "a\\b", "a:b", "", "a\nb", ".hidden"])
def test_names_that_are_no_file_names_are_refused(files, attack):
    """Nothing is written, inside or outside the folder."""
    with pytest.raises(UserError, match="called"):
        files.write(finding(attack))
    with pytest.raises(UserError, match="called"):
        files.scores(f"{attack}.global" if attack else "")
    assert not files.folder.exists()


def test_usual_labels_are_file_names(files):
    """Rounds and papers are part of them."""
    files.write(replace(missing(), conditions=conditions("lira-online", "uploads@40", "zhu_2024")))
    assert (files.folder / "zhu_2024.lira-online.uploads@40.json").is_file()


def test_results_of_attackers_who_know_the_defense(files):
    """They lie beside those of others, under a name of their own."""
    plain, adapted = (
        finding(target="uploads", seed=1),
        finding(target="uploads", seed=2, adaptation="refilled+retrained"),
    )
    files.write(plain)
    files.write(adapted)
    assert [record.label for record in files.records()] == ["yeom.uploads", "yeom.uploads+refilled+retrained"]
    assert files.hold(plain, adapted)
    assert set(scores_by_label(files.records())) == {"yeom.uploads", "yeom.uploads+refilled+retrained"}
    assert files.summary()["attacks/yeom.uploads+refilled+retrained/auc"] == adapted.leakage.auc.value
    assert (adapted.conditions.target, adapted.conditions.read_target) == ("uploads", "uploads+refilled+retrained")


def test_records_from_before_adaptations(files):
    """A file without them is read as one of an attacker who does not adapt; what matters must be there."""
    found = finding()
    files.write(found)
    path, plain = files.folder / "yeom.global.json", read_json(files, "yeom.global")
    assert plain["conditions"].pop("adaptation") == ""
    path.write_text(json.dumps(plain))
    assert files.hold(found)
    del plain["conditions"]["target"]
    path.write_text(json.dumps(plain))
    with pytest.raises(UserError, match="cannot be read"):
        files.records()


def test_an_empty_folder_has_no_results(files):
    """Also where it does not exist, or holds results of another kind."""
    assert files.records() == []
    assert files.summary() == {}
    files.folder.mkdir(parents=True)
    for outdated in ("factors.csv", "factors.png"):
        (files.folder / outdated).touch()
    FactorRecord(reason="nothing is private").save(files.run)
    assert [path.name for path in files.folder.iterdir()] == ["factors.json"]
    assert files.records() == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"conditions": 3}'])
def test_foreign_records_are_named(files, content):
    """A file that is no record is told, with its path."""
    files.write(finding())
    (files.folder / "other.json").write_text(content)
    with pytest.raises(UserError, match=r"other\.json cannot be read"):
        files.records()


def test_foreign_scores_are_named(files):
    """Neither rubbish nor pickles are read."""
    files.write(finding())
    path = files.folder / "yeom.global.npz"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(UserError, match=r"yeom\.global\.npz cannot be read"):
        files.scores("yeom.global")
    scores = gaussian_scores()
    np.savez(path, scores=np.array([object()]), members=scores.members, samples=scores.samples, clients=scores.clients)
    with pytest.raises(UserError, match="allow_pickle"):
        files.scores("yeom.global")
