"""Sentences of the report: nothing beyond the standings."""

from dataclasses import replace

from report_kit import ACCURACY, AUC, SECONDS, entry, row, table

from app.results.comparison.table import ComparisonTable
from app.results.report.conclusions import conclusions, headline_measures


def sentences(known):
    """Sentences by key of the measure."""
    plain = str.maketrans("\N{NO-BREAK SPACE}", " ")
    return {found.measure.key: found.sentence.translate(plain) for found in conclusions(known)}


def changed(standings, key=ACCURACY.key):
    """The table with other standings in one column."""
    known = table()
    rows = [
        replace(each, values={**each.values, key: replace(each.values[key], standing=standing)})
        for each, standing in zip(known.rows, standings, strict=True)
    ]
    return ComparisonTable(known.measures, tuple(rows), known.notes)


def test_a_best_row():
    """It is named with its number, and so is how many others are worse."""
    sentence = sentences(table())[ACCURACY.key]
    assert sentence == "fedavg / none is best (91.0 ± 0.4 %): all other rows are significantly worse."


def test_rows_that_cannot_be_told_apart():
    """None is called best; who is worse is counted; who has no number is named."""
    sentence = sentences(table())[AUC.key]
    both = "fedavg / memdefense (0.520 ± 0.020) and fedavg / dp-sgd (0.530 ± 0.020)"
    assert sentence.startswith(f"no row is best. {both} do not differ significantly; ")
    assert "one row is significantly worse" in sentence
    assert sentence.endswith("Not available for fedavg / secure-aggregation.")
    assert "is best (" not in sentence


def test_too_few_seeds():
    """No order is claimed, only the span of the means."""
    sentence = sentences(table())[SECONDS.key]
    assert sentence == "too few seeds to test which row is best; means: 2.00 to 10.50 s."


def test_a_best_row_beside_rows_of_too_few_seeds():
    """The claim is limited to what was tested."""
    sentence = sentences(changed(["best", "worse", "worse", "unknown"]))[ACCURACY.key]
    assert "two of 3 other rows are significantly worse" in sentence
    assert "One of 4 rows has too few seeds for a test (means: 90.0 %)." in sentence
    assert "all other rows" not in sentence


def test_only_measures_with_a_direction_are_headlines():
    """One per group, and the strongest attacks on every kind of target; sizes of which neither is better are none."""
    neither, single = replace(AUC, key="members", lower_is_better=None), replace(AUC, key="auc:yeom.global")
    other, second = replace(AUC, key="global_auc"), replace(ACCURACY, key="second")
    several = replace(table(), measures=(neither, single, *table().measures, other, second))
    keys = [measure.key for measure in headline_measures(several)]
    assert keys == [ACCURACY.key, AUC.key, "epsilon", SECONDS.key, "global_auc"]


def test_leakage_without_headlines():
    """The first measure stands in."""
    several = replace(table(), measures=(replace(AUC, key="advantage"), ACCURACY, replace(AUC, key="other")))
    assert [measure.key for measure in headline_measures(several)] == ["advantage", ACCURACY.key]


def test_a_single_row_is_not_compared():
    """There is nothing to be better than."""
    known = table()
    assert conclusions(ComparisonTable(known.measures, known.rows[:1])) == ()


def test_datasets_are_told_apart():
    """Rows of one dataset are never compared with those of another."""
    known = table()
    far = [row("fedavg", defense, (entry(0.5),) * 4, dataset="letters") for defense in ("none", "other")]
    found = conclusions(ComparisonTable(known.measures, (*known.rows, *far)))
    assert {one.dataset for one in found} == {"digits", "letters"}
    assert all("91.0" not in one.sentence for one in found if one.dataset == "letters")


def test_many_rows_are_counted():
    """A sentence names four at most."""
    rows = tuple(row("m", f"d{number}", (entry(0.5, 0.1, "indistinguishable"),) * 4) for number in range(7))
    sentence = sentences(ComparisonTable(table().measures, rows))[ACCURACY.key]
    assert sentence.count("m / d") == 4
    assert "and three more" in sentence
