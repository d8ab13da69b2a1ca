"""What the terminal and the CSV files say is what the metrics say, with no more digits than the intervals deserve."""

import csv
import io
import math
from dataclasses import replace

import pytest
from finding_kit import QUICK, REASON, finding, full_finding, gaussian_scores, missing, records

from app.attacks.findings import ReportedNumber
from app.metrics.intervals import Estimate, Interval
from app.metrics.leakage import measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.vulnerability import ClientRow, sample_table
from app.results.attacks.membership import AttackRecord
from app.results.attacks.membership_report import (
    auc_text,
    clients_csv,
    decimals,
    percent_text,
    rows,
    samples_csv,
    table,
)


def text_of(found):
    """The table of some findings."""
    return table(records(found))


def named_rows(found):
    """Their rows for trackers, as values by column."""
    plain = rows(records(found))
    return [dict(zip(plain.columns, row, strict=True)) for row in plain.rows]


def lines_of(text, label="yeom"):
    """Lines of the table that begin with a name."""
    return [line for line in text.splitlines() if line.startswith(label)]


def read_csv(text):
    """Header and rows."""
    header, *found = csv.reader(io.StringIO(text))
    return header, found


@pytest.mark.parametrize(
    ("half", "most", "scale", "digits"),
    [
        *((0.15, 3, 1, 2), (0.1, 3, 1, 2), (0.099, 3, 1, 3), (0.012, 3, 1, 3), (0.0012, 3, 1, 3), (0, 3, 1, 3)),
        *((0.0142, 2, 100, 1), (0.12, 2, 100, 0), (0.004, 2, 100, 2), (0.00004, 2, 100, 2)),
    ],
)
def test_decimals_follow_the_interval(half, most, scale, digits):
    """Two digits of half the interval, never more than asked for."""
    assert decimals(Interval(0.5 - half, 0.5 + half), most, scale) == digits


def test_values_with_bounds():
    """Areas without zeros before the point, rates in percent; bounds above 1 or of nothing stay readable."""
    assert auc_text(Estimate(0.87345, Interval(0.8612, 0.8844))) == "0.873 [.861, .884]"
    assert auc_text(Estimate(0.87345, Interval(0.61, 0.96))) == "0.87 [.61, .96]"
    assert auc_text(Estimate(0.9999, Interval(0.99, 1.0))) == "1.000 [.990, 1.000]"
    assert auc_text(Estimate(0.87345, NotAvailable("no"))) == "0.87 [N/A]"
    assert auc_text(Estimate(0.87345, NotAvailable("no")), bounds=False) == "0.87"
    assert percent_text(0.61234, Interval(0.598, 0.6251)) == "61.2 [59.8, 62.5]"
    assert percent_text(0.61234, Interval(0.6112, 0.6134), bounds=False) == "61.23"


def test_one_row_per_result_with_the_numbers_of_the_metrics():
    """Attack, target, adversary, counts, AUC, shares at three rates, accuracy, and the worst client."""
    found = finding(rows=600, adversary="server")
    leakage, worst = found.leakage, max(found.clients, key=lambda row: row.leakage.auc.value)
    [line] = lines_of(text_of([found]))
    auc, known = leakage.auc, leakage.known
    expected = [
        *("yeom", "global", "server", "1200/1200"),
        f"{auc.value:.3f} [{f'{auc.interval.low:.3f}'[1:]}, {f'{auc.interval.high:.3f}'[1:]}]",
        *(f"{100 * entry.decision.tpr:.1f}" for entry in leakage.tpr),
        f"{100 * known.decision.balanced_accuracy:.1f} "
        f"[{100 * known.balanced_accuracy.low:.1f}, {100 * known.balanced_accuracy.high:.1f}]",
        f"{worst.leakage.auc.value:.3f} ({worst.client})",
    ]
    assert line.split() == " ".join(expected).split()


def test_members_come_before_nonmembers():
    """Also where they are not equally many."""
    scores = MembershipScores.of([3.0, 2.0, 0.0, 1.0, 0.5], [True, True, True, False, False])
    [line] = lines_of(text_of([replace(finding(), leakage=measure_leakage(scores, bootstrap=QUICK))]))
    assert line.split()[3] == "3/2"


def test_new_and_loaded_results_read_alike(tmp_path):
    """The text does not depend on where a result comes from."""
    found = sorted(records([finding(), full_finding(), missing()]), key=lambda one: one.label)
    for one in found:
        one.save(tmp_path)
    loaded = AttackRecord.load_all(tmp_path)
    assert all(one.new_scores is None for one in loaded)
    assert AttackRecord.text(loaded) == table(loaded) == table(found)
    assert AttackRecord.table(loaded) == rows(loaded) == rows(found)


def test_columns_are_aligned():
    """Every row is as long as the header, and the last characters of numbers are below each other."""
    text = text_of([finding(), finding("a-long-name-of-an-attack", "uploads@40", rows=3000), missing()])
    header, second, ruler, *body = text.splitlines()[:6]
    assert len(ruler) == max(map(len, (header, second, *body)))
    assert set(ruler) == {"-"}
    ends = [header.index("adversary"), len(header)]
    assert {len(line) for line in (header, second, *body)} == {ends[1]}
    assert all(line[ends[0] : ends[0] + 8] in ("external", "server  ") for line in body)


def test_refused_rates_and_unknown_thresholds():
    """N/A and a dash in the row, and below the table why."""
    text = text_of([finding(known=False)])
    [line] = lines_of(text)
    assert line.split()[7] == "N/A"
    assert line.split()[10] == "–"
    assert "- TPR at 0.001 FPR needs at least 1000 non-members, there are 200 (yeom.global)" in text
    assert "- the attacker knows no samples to choose a threshold on (yeom.global)" in text


def test_missing_results_say_why():
    """One line per reason, with all results that have it, and not among the remarks."""
    text = text_of([finding(rows=2400), missing(), missing("fedinv"), missing("other", reason="another " * 30)])
    [line] = lines_of(text, "nasr")
    assert line.split() == ["nasr", "uploads", "server", *["N/A"] * 6, "–"]
    assert f"N/A:\n- nasr.uploads, fedinv.uploads: {REASON}\n- other.uploads: another" in text
    assert "remarks" not in text
    assert max(map(len, text.split("N/A:")[1].splitlines())) <= 110


def test_labels_are_never_broken():
    """A label can be searched for."""
    names = [f"an-attack-with-number-{number}" for number in range(12)]
    words = text_of([missing(name, reason="this and that") for name in names] + [missing()]).split()
    assert {f"{name}.uploads" for name in names} <= {word.rstrip(",:") for word in words}


def test_remarks_are_told_once():
    """A note of several results names them; one of all says so."""
    common, own = "labels of 3 samples are wrong", "few shadows"
    found = [finding(name, rows=2400).with_notes(common) for name in ("a", "b")]
    text = text_of([found[0].with_notes(own), found[1]])
    assert text.count(common) == 1
    assert f"- {common} (all results)" in text
    assert f"- {own} (a.global)" in text
    assert f"- {common} (a.global, b.global)" in text_of([*found, finding("c", rows=2400)])
    assert f"- {common} (a.global)" in text_of(found[:1])


def test_swapped_scores_are_noticed():
    """An area below chance beyond its interval is no success."""
    assert "probably swapped (yeom.global)" in text_of([finding(distance=-2)])
    assert "swapped" not in text_of([finding(distance=2)])


def test_widths_and_figures_have_blocks_of_their_own():
    """Per width the area or why there is none; per figure the value and its spread over clients."""
    found = full_finding()
    text = " ".join(text_of([found]).split())
    area = auc_text(found.capacities[0].leakage.auc)
    label = found.conditions.label
    assert f"AUC by width: 1 (3 clients) 0.5 (1 client) {label} {area} N/A" in text
    assert f"- {label}, width 0.5: width 0.5 has no non-members" in text
    assert (
        "as the paper reports it: - fedfa.lira-online.uploads: Adv % = 12.3 (mean over 2 clients, 3.1 to 21.6)" in text
    )
    assert "; AUC = 0.654 " in text
    plain = text_of([finding()])
    assert "width" not in plain
    assert "paper" not in plain


def test_a_figure_without_a_value():
    """Not a number is not shown as one."""
    found = replace(finding(), figures=(ReportedNumber("Adv %", math.nan, ((0, math.nan),)),))
    assert "- yeom.global: Adv % = N/A\n" in text_of([found])


def test_the_confidence_is_that_of_the_intervals():
    """95 % unless measured otherwise."""
    assert "[95 %]" in text_of([finding()])
    other = measure_leakage(gaussian_scores(), bootstrap=replace(QUICK, confidence=0.9))
    text = text_of([replace(finding(), leakage=other)])
    assert "[90 %]" in text
    assert "95 %" not in text


def test_nothing_to_show():
    """No empty table."""
    assert text_of([]) == "no attack was run"


def test_rows_for_trackers():
    """Plain values in the order of the columns."""
    found = finding()
    named, lost = named_rows([found, missing()])
    assert named["label"] == "yeom.global"
    assert named["auc"] == found.leakage.auc.value
    assert named["tpr_at_0.1%"] is None
    assert named["tpr_at_10%"] == found.leakage.tpr[2].decision.tpr
    assert named["reason"] is None
    assert (lost["auc"], lost["adversary"], lost["reason"]) == (None, "server", REASON)


def test_attackers_who_know_the_defense_have_rows_of_their_own():
    """The target tells them apart, in the table and for trackers."""
    found = [finding(target="uploads"), finding(target="uploads", distance=2, adaptation="refilled")]
    assert [line.split()[:2] for line in lines_of(text_of(found))] == [
        ["yeom", "uploads"],
        ["yeom", "uploads+refilled"],
    ]
    named = named_rows(found)
    assert [row["adaptation"] for row in named] == ["", "refilled"]
    assert [row["target"] for row in named] == ["uploads", "uploads"]
    assert [row["label"] for row in named] == ["yeom.uploads", "yeom.uploads+refilled"]


def test_the_strongest_results_are_named_below_the_table():
    """One line per kind of target; whether the attacker knows the defense is said where some attacker does."""
    weak, strong = finding(target="uploads"), finding("rmia", "uploads", distance=2, adaptation="refilled")
    text = text_of([finding(), weak, strong, missing()])
    lines = [line for line in text.splitlines() if line.startswith("strongest")]
    assert lines == [
        f"strongest: yeom on global, AUC {auc_text(finding().leakage.auc)}",
        f"strongest: rmia on uploads+refilled, AUC {auc_text(strong.leakage.auc)}, an attacker who knows the defense",
    ]
    assert text.index("chance: AUC 0.5") < text.index("strongest") < text.index("N/A:\n")
    stronger = finding("a-paper.lira", "uploads", distance=3)
    text = text_of([weak, strong, stronger])
    assert f"strongest: a-paper.lira on uploads, AUC {auc_text(stronger.leakage.auc)}, an attacker who does not" in text
    assert "strongest" not in text_of([missing()])


def test_clients_as_csv():
    """One line per result and client, with empty cells and a reason where there is no number."""
    found = finding()
    lost = ClientRow(9, 5, NotAvailable("client 9 has no members, none"))
    header, lines = read_csv(clients_csv(records([replace(found, clients=(*found.clients, lost)), full_finding()])))
    names = ("auc", "low", "high", "tpr@0.1%", "tpr@1%", "tpr@10%")
    assert header == ["label", "client", "size", "members", "nonmembers", *names, "reason"]
    assert [line[0] for line in lines] == ["yeom.global"] * 5 + ["fedfa.lira-online.uploads"] * 4
    leakage = found.clients[2].leakage
    auc = [leakage.auc.value, leakage.auc.interval.low, leakage.auc.interval.high]
    assert lines[2][1:5] == ["2", "30", "50", "50"]
    assert [float(cell) for cell in lines[2][5:8]] == auc
    assert lines[2][8:] == ["", "", str(leakage.tpr[2].decision.tpr), ""]
    assert lines[4] == ["yeom.global", "9", "5", *[""] * 8, "client 9 has no members, none"]


def test_a_share_of_zero_is_no_empty_cell():
    """Nobody found is a number."""
    scores = gaussian_scores(-9.0, clients=1, rows=400)
    row = ClientRow(0, 10, measure_leakage(scores, bootstrap=QUICK))
    [line] = read_csv(clients_csv(records([replace(finding(), clients=(row,))])))[1]
    assert line[8:] == ["", "0.0", "0.0", ""]


def test_most_exposed_samples_as_csv():
    """The first of each result in the order of exposure, members only."""
    scores = gaussian_scores(rows=300)
    header, lines = read_csv(samples_csv({"a.global": scores, "b.global": gaussian_scores(rows=20)}))
    assert header == ["label", "client", "sample", "score", "exposure"]
    assert [line[0] for line in lines] == ["a.global"] * 100 + ["b.global"] * 40
    expected = sample_table(scores)
    assert [int(line[2]) for line in lines[:100]] == expected.samples[:100].tolist()
    assert [float(line[3]) for line in lines[:100]] == expected.scores[:100].tolist()
    assert [float(line[4]) for line in lines[:100]] == expected.exposure[:100].tolist()
    assert len(read_csv(samples_csv({"a.global": scores}, most=7))[1]) == 7


def test_samples_without_comparison_have_no_exposure():
    """A client without non-members."""
    scores = MembershipScores.of([1.0, 0.0, 2.0], [True, False, True], clients=[0, 0, 1])
    assert [line[4] for line in read_csv(samples_csv({"a.global": scores}))[1]] == ["0.5", ""]
