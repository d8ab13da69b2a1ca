"""Tables of text: alignment, heads of several lines, long first cells."""

from app.results.text_table import table_lines, text_table


def test_first_column_left_numbers_right_no_blanks_at_the_end():
    assert text_table(("name", "n"), [("a", "1"), ("bcdef", "10")]) == (
        "name    n\n"
        "---------\n"
        "a       1\n"
        "bcdef  10"
    )  # fmt: skip
    assert text_table((), [("a", ""), ("bc", "d")], left=(0, 1), indent="  ") == "  a\n  bc  d"


def test_head_of_several_lines_has_one_rule_below():
    assert table_lines(("members /\nnon-m.", "AUC"), [("5/5", "0.5")], left=()) == [
        *("members /  AUC", "   non-m.", "--------------", "      5/5  0.5"),
    ]
    assert table_lines(("a", "b"), [("1", "2")], rule=False, gap=" | ") == ["a | b", "1 | 2"]


def test_long_first_cell_stands_above_its_row():
    rows = [("short", "1"), ("much too long a name", "2")]
    assert table_lines(("name", "number"), rows, limit=14) == [
        *("name   number", "-" * 13, "short       1", "much too long a name\n            2"),
    ]


def test_empty_table():
    assert text_table((), []) == ""
    assert text_table(("a", "b"), []) == "a  b\n----"
