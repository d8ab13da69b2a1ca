"""The headline table: cells of the whole table, verdicts of the tables in words, and no column without a number."""

from dataclasses import replace

import pytest
from report_kit import ACCURACY, AUC, SECONDS, page_of, parsed, store, table

from app.metrics.membership import NotAvailable
from app.results.comparison.table import ComparisonTable
from app.results.comparison.tabulate import tabulate
from app.results.comparison.verdict_tables import word_tables


@pytest.fixture(scope="module")
def compared():
    """The table of fabricated runs, which were attacked."""
    return tabulate(store())


def grid(root, name="rows"):
    """Cells by row and key of the column."""
    table_ = root.one("table", id=name)
    keys = [head.attributes["data-key"] for head in table_.one("thead").children[-1].children]
    return {
        line.children[0].attributes["data-value"]: dict(zip(keys, line.children, strict=True))
        for line in table_.one("tbody").children
    }


def test_columns(compared):
    """In the order in which one asks; no more than fit a screen."""
    columns = next(iter(grid(parsed(page_of(compared))).values()))
    wanted = ["clients_accuracy", "global_auc", "uploads_auc", "epsilon", "seconds_ratio", "megabytes_up"]
    assert list(columns) == ["row", *wanted, "verdict"]
    heads = [
        each.attributes["data-title"]
        for each in parsed(page_of(compared)).one("table", id="rows").all("th", scope="col")
    ]
    assert heads == [
        *("Method / defense", "Accuracy, received models (%)", "AUC, released", "AUC, uploads", "Epsilon"),
        *("Slowdown (x)", "Upload (MB)", "Verdict"),
    ]


def test_cells_are_those_of_the_whole_table(compared):
    """The same texts, values and tips."""
    root = parsed(page_of(compared))
    whole = grid(root, "comparison")
    for name, cells in grid(root).items():
        for key, cell in cells.items():
            if key not in ("row", "verdict"):
                assert cell.text == whole[name][key].text
                assert cell.attributes.get("data-value") == whole[name][key].attributes.get("data-value")
                assert cell.attributes.get("data-tip") == whole[name][key].attributes.get("data-tip")


def test_verdicts_open_to_their_reasons(compared):
    """Class and reason of the table in words; rows without a defense are what others are compared with."""
    [effects] = [words for words in word_tables(compared) if "verdict" in words.heads]
    expected = {row.name: (line[-2], line[-1]) for row, line in zip(effects.about, effects.rows, strict=True)}
    cells = {name: cells["verdict"] for name, cells in grid(parsed(page_of(compared))).items()}
    assert cells.pop("fedavg / none").text == "no defense"
    assert {name: (cell.one("summary").text, cell.one("details").text) for name, cell in cells.items()} == {
        name: (verdict, verdict + reason) for name, (verdict, reason) in expected.items()
    }
    assert cells["fedavg / secure-aggregation"].attributes["data-value"] == "hides on the way only"


def test_methods_that_were_not_run_without_a_defense(compared):
    """They have no verdict, and say why."""
    alone = replace(compared.rows[1], method="heterofl")
    cells = grid(parsed(page_of(replace(compared, rows=(*compared.rows, alone)))))
    assert cells["heterofl / memdefense"]["verdict"].text == "not compared: its method was not run without a defense"


def test_without_attacks_there_are_neither_leakage_nor_verdicts():
    """Nor a column of budgets where no row has one."""
    plain = tabulate(store(attacked=False, defenses=("none", "memdefense")))
    assert list(next(iter(grid(parsed(page_of(plain))).values()))) == [
        *("row", "clients_accuracy", "seconds_ratio", "megabytes_up"),
    ]


def test_what_stands_in():
    """Seconds where nothing is compared with, images where membership was not attacked, the accuracy that there is."""
    assert list(next(iter(grid(parsed(page_of())).values()))) == [
        *("row", ACCURACY.key, AUC.key, "epsilon", SECONDS.key, "verdict"),
    ]
    images = replace(AUC, key="recovered_share", title="recovered images", unit="%")
    known = table()
    rows = tuple(
        replace(row, values=dict.fromkeys((ACCURACY.key, images.key), row.values[ACCURACY.key])) for row in known.rows
    )
    found = grid(parsed(page_of(ComparisonTable((ACCURACY, images), rows))))
    assert list(found["fedavg / none"]) == ["row", ACCURACY.key, "recovered_share"]


def test_most_rows_decide_which_accuracy_is_shown(compared):
    """Over all datasets together."""
    lost = {"clients_accuracy": NotAvailable("lost"), "everyone_accuracy": NotAvailable("lost")}
    rows = tuple(replace(row, values={**row.values, **lost}) for row in compared.rows)
    found = grid(parsed(page_of(replace(compared, rows=rows))))
    assert list(found["fedavg / none"])[1] == "server_accuracy"


def test_lines_of_words_belong_to_rows(compared):
    """They have the places of their rows, by which they are found from figures."""
    root = parsed(page_of(compared))
    names = [row.name for row in compared.rows]
    tables = root.one("section", id="findings").all("table")
    for line in tables[0].one("tbody").children:
        assert names[int(line.attributes["data-rows"])] == line.children[0].text
    for line in tables[1].one("tbody").children:
        told = line.children[1].text
        assert line.attributes.get("data-rows") == (str(names.index(told)) if told in names else None)
