"""Published numbers are read one by one or row by row, and everything that is wrong is told at once."""

import pytest

from app.common.errors import UserError
from app.results.published.parse import parse_published
from app.results.published.values import PublishedFigure, is_measure, scale_to

PLAIN = {
    "dataset": "cifar10",
    "method": "heterofl",
    "measure": "server_accuracy",
    "value": 78.3,
    "unit": "%",
    "where": "Table 5, HeteroFL",
}


def causes(entries):
    """What is wrong with the entries."""
    with pytest.raises(UserError) as error:
        parse_published(entries)
    return [problem.cause for problem in error.value.problems]


def test_one_number():
    """What is not said has its plainest meaning."""
    [figure] = parse_published([PLAIN])
    assert figure == PublishedFigure("cifar10", "heterofl", "server_accuracy", 78.3, "%", "Table 5, HeteroFL")
    assert figure.place == ("cifar10", "heterofl", "none")
    assert (figure.spread, figure.relation, figure.statistic, figure.client) == (None, "is", "mean", None)


def test_nothing_is_published():
    """A comparison of one's own has no such list."""
    assert parse_published(None) == parse_published([]) == ()


def test_rows_of_a_table():
    """A block stands for all its cells, row by row; what it says holds for all rows, and null is left out."""
    block = {
        "dataset": "mnist",
        "unit": "%",
        "rounds": 100,
        "columns": ["everyone_majority", "everyone_gap"],
        "rows": [
            {"method": "fedavg", "where": "Table 2, FedAvg", "values": [96.63, 29.23], "spreads": [0.7, 11.79]},
            {
                "method": "waffle",
                "where": "Table 2, WAFFLe",
                "values": [None, 2.07],
                "remarks": {"everyone_gap": "slip"},
            },
        ],
    }
    figures = parse_published([block])
    told = [(figure.method, figure.measure, figure.value, figure.spread, figure.remark) for figure in figures]
    assert told == [
        ("fedavg", "everyone_majority", 96.63, 0.7, ""),
        ("fedavg", "everyone_gap", 29.23, 11.79, ""),
        ("waffle", "everyone_gap", 2.07, None, "slip"),
    ]
    assert {(figure.dataset, figure.unit, figure.rounds) for figure in figures} == {("mnist", "%", 100)}


def test_all_problems_are_told_at_once():
    """Three entries with a problem each, and each is named by its place."""
    wrong = [
        {**PLAIN, "measure": "sever_accuracy"},
        PLAIN,
        {key: value for key, value in PLAIN.items() if key not in ("unit", "where")},
        {**PLAIN, "valeu": 3},
    ]
    found = causes(wrong)
    assert len(found) == 3
    assert "entry 1" in found[0]
    assert "'sever_accuracy'" in found[0]
    assert "entry 3" in found[1]
    assert "lacks unit, where" in found[1]
    assert "entry 4" in found[2]
    assert "'valeu'" in found[2]


def test_nearest_names_are_offered():
    """A slip of the pen is answered with what was meant."""
    with pytest.raises(UserError) as error:
        parse_published([{**PLAIN, "measure": "sever_accuracy"}, {**PLAIN, "spraed": 1}])
    first, second = error.value.problems
    assert "server_accuracy" in first.remedy
    assert "did you mean spread?" in second.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("value", "78.3"),
        ("value", float("nan")),
        ("value", True),
        ("spread", -0.1),
        ("unit", "percent"),
        ("relation", "over"),
        ("statistic", "median"),
        ("client", -1),
        ("rounds", 0),
        ("where", 5),
    ],
)
def test_values_out_of_range(key, value):
    """Each gives exactly one problem that shows the value."""
    [cause] = causes([{**PLAIN, key: value}])
    assert repr(value) in cause


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"columns": ["psnr"]}, "a list of columns and a list of rows"),
        ({"columns": ["server_accuracy"], "rows": [{**PLAIN, "values": [1, 2]}]}, "2 values for 1 columns"),
        ({"columns": ["server_accuracy"], "rows": [{"values": [1], "spreads": []}]}, "0 spreads for 1 columns"),
        ("78.3", "no mapping"),
    ],
)
def test_blocks_that_do_not_fit(block, told):
    """A row with a number too many would shift all columns."""
    [cause] = causes([block])
    assert told in cause


def test_remark_on_no_column():
    """A remark must belong to a number."""
    row = {"method": "a", "where": "b", "values": [1.0], "remarks": {"everyone_gap": "c"}}
    [cause] = causes([{"dataset": "d", "unit": "%", "columns": ["server_accuracy"], "rows": [row]}])
    assert "'everyone_gap'" in cause


def test_no_list():
    """A mapping in place of the list is one problem."""
    assert causes({"a": 1}) == ["`published` is no list"]


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("everyone_variance", True),
        ("auc:yeom.global", True),
        ("paper:mapp-fl.yeom.uploads/Adv %", True),
        ("reconstruction:psnr_best", True),
        ("paper:Adv %", False),
        ("auc:", False),
        ("accuracy", False),
    ],
)
def test_measures(key, known):
    """Plain names, and names after a known beginning; a paper's figure needs its result, as two may have one name."""
    assert is_measure(key) is known


def test_units():
    """Fractions and percent go into one another, nothing else does."""
    assert (scale_to("%", ""), scale_to("", "%"), scale_to("dB", "dB")) == (100.0, 0.01, 1.0)
    assert scale_to("dB", "%") is None
