"""Every format shows what the table holds, and shows it whatever names and reasons contain."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.files import cell_text
from app.metrics.membership import NotAvailable
from app.results.comparison.data_formats import as_csv, as_csv_seeds
from app.results.comparison.display import SINGLE
from app.results.comparison.formats import LATEX, as_latex, as_markdown, as_text, latex_text, markdown_text
from app.results.comparison.table import ComparisonTable, Measure, Row, Value

ACCURACY = Measure("server_accuracy", "server", "accuracy", "utility", "%", 100, 1, False)
AREA = Measure("global_auc", "AUC global", "area", "leakage", "", 1.0, 3, True)
SINGLE_AREA = Measure("auc:yeom.global", "yeom.global", "area", "leakage", "", 1.0, 3, True)
HIDDEN = NotAvailable("50 % of it is hidden")

BEST = Value(0.9, 0.88, 0.925, {0: 0.9, 1: 0.9}, "seeds", "best")
WORSE = Value(0.8, 0.7, 0.9, {0: 0.8}, "seeds", "worse")
LEVEL = Value(0.61, math.nan, math.nan, {0: 0.61}, "none", "indistinguishable", ("yeom", "adaptive"))
TINY = ComparisonTable(
    (ACCURACY, AREA, SINGLE_AREA),
    (
        Row(
            "d",
            "m",
            "none",
            (0, 1),
            ("a", "b"),
            {"server_accuracy": BEST, "global_auc": LEVEL, "auc:yeom.global": LEVEL},
        ),
        Row("d", "m", "l2", (0,), ("c",), {"server_accuracy": WORSE, "global_auc": HIDDEN}, ("one seed is lost",)),
    ),
    ("how it was made",),
)

words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=30)
"""Any text of one line."""


def named(text: str) -> ComparisonTable:
    """The tiny table with a text wherever one may stand."""
    first, second = TINY.rows
    marked = {**first.values, "global_auc": replace(LEVEL, marks=(text,))}
    missing = {**second.values, "global_auc": NotAvailable(text)}
    rows = (
        replace(first, dataset=text, method=text, defense=text, values=marked),
        replace(second, dataset=text, values=missing, notes=(text,)),
    )
    return replace(TINY, rows=rows, notes=(text,), measures=(replace(ACCURACY, title=text), AREA))


def test_the_terminal_shows_blocks_by_group():
    """Aligned, best and level marked, reasons numbered, single attacks left out."""
    assert as_text(TINY, 120) == (
        "d: utility  seeds  server (%)\n"
        "--------------------------------------\n"
        "m / none    2      90.0 [88.0, 92.5] *\n"
        "m / l2      1      80.0 [70.0, 90.0]\n"
        "\n"
        "d: leakage  seeds  AUC global\n"
        "-----------------------------------------\n"
        "m / none    2      0.610 ~ yeom, adaptive\n"
        "m / l2      1      N/A (1)\n"
        "\n"
        "* significantly best of its dataset, ~ not significantly different from the best; [low, high] is the 95 % "
        "interval\n"
        "\n"
        "N/A:\n"
        "- (1) 50 % of it is hidden\n"
        "\n"
        "rows:\n"
        "- m / l2: one seed is lost\n"
        "\n"
        "how to read it:\n"
        "- how it was made\n"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_terminal_is_not_exceeded(width):
    """Columns that do not fit go to a block of their own, with the names of the rows again."""
    measures = tuple(replace(ACCURACY, key=f"k{number}", title=f"title {number}") for number in range(6))
    rows = tuple(
        replace(row, values={measure.key: row.values["server_accuracy"] for measure in measures}) for row in TINY.rows
    )
    text = as_text(ComparisonTable(measures, rows, ("word " * 40,)), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(text.count(measure.title) == 1 for measure in measures)
    assert text.count("m / none") == text.count("d: utility") >= 6 / (width // 20)


def test_columns_of_single_attacks_are_shown_on_demand():
    """In every format for reading."""
    for write in (lambda **how: as_text(TINY, 100, **how), lambda **how: as_markdown(TINY, **how)):
        assert "yeom.global" not in write()
        assert "yeom.global" in write(every=True)
    assert "yeom.global" not in as_latex(TINY)
    assert "yeom.global" in as_latex(TINY, every=True)
    assert SINGLE[0] == "auc:"


def test_columns_in_which_nothing_is_told_are_left_out():
    """A dataset that was not attacked has no block of leakage; one whose view is hidden has."""
    plain = replace(TINY.rows[0], dataset="e", values={"server_accuracy": BEST, "global_auc": NotAvailable("not run")})
    text = as_text(replace(TINY, rows=(*TINY.rows, plain)), 100)
    assert "d: leakage" in text
    assert "e: utility" in text
    assert "e: leakage" not in text
    assert "d: m / l2: one seed is lost" in text
    hidden = replace(plain, values={"server_accuracy": BEST, "global_auc": HIDDEN})
    assert "e: leakage" in as_text(replace(TINY, rows=(*TINY.rows, hidden)), 100)


def test_markdown_is_bold_only_for_the_best():
    """One table per dataset, reasons and remarks below."""
    assert as_markdown(TINY) == (
        "**d**\n"
        "\n"
        "| method | defense | seeds | server (%) | AUC global |\n"
        "| :-- | :-- | --: | --: | --: |\n"
        "| m | none | 2 | **90.0** \\[88.0, 92.5\\] | 0.610\\~ (yeom, adaptive) |\n"
        "| m | l2 | 1 | 80.0 \\[70.0, 90.0\\] | N/A (1) |\n"
        "\n"
        "**bold**: significantly best of its dataset, \\~ not significantly different from the best; \\[low, high\\] "
        "is the 95 % interval\n"
        "\n"
        "1. 50 % of it is hidden\n"
        "\n"
        "- m / l2: one seed is lost\n"
        "- how it was made\n"
    )


def test_latex_is_bold_only_for_the_best():
    """One table per dataset and group, a dash with the number of the reason where there is none."""
    legend = (
        r"\textbf{bold}: significantly best of its dataset, $^{\sim}$ not significantly different from the best; "
        r"[low, high] is the 95 \% interval"
    )
    assert as_latex(TINY).split("\n\n") == [
        "% needs \\usepackage{booktabs,graphicx}\n% m / l2: one seed is lost\n% how it was made",
        "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                r"\caption{d: utility}",
                r"\sbox0{\begin{tabular}{llrr}",
                r"\toprule",
                r"Method & Defense & Seeds & server (\%) \\",
                r"\midrule",
                r"m & none & 2 & \shortstack[r]{\textbf{90.0}\\{\scriptsize [88.0, 92.5]}} \\ \addlinespace",
                r"m & l2 & 1 & \shortstack[r]{80.0\\{\scriptsize [70.0, 90.0]}} \\",
                r"\bottomrule",
                r"\end{tabular}}",
                r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
                r"\par\smallskip\footnotesize",
                legend,
                r"\end{table}",
            ]
        ),
        "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                r"\caption{d: leakage}",
                r"\sbox0{\begin{tabular}{llrr}",
                r"\toprule",
                r"Method & Defense & Seeds & AUC global \\",
                r"\midrule",
                r"m & none & 2 & \shortstack[r]{0.610$^{\sim}$\\{\scriptsize yeom, adaptive}} \\ \addlinespace",
                r"m & l2 & 1 & --$^{1}$ \\",
                r"\bottomrule",
                r"\end{tabular}}",
                r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
                r"\par\smallskip\footnotesize",
                legend + r" \\",
                r"$^{1}$ 50 \% of it is hidden",
                r"\end{table}",
            ]
        )
        + "\n",
    ]


def test_latex_is_no_wider_than_a_page():
    """More than five measures of a group go into a second table."""
    keys = [f"auc:{number}" for number in range(7)]
    many = replace(TINY, measures=tuple(replace(AREA, key=key, title=key) for key in keys))
    rows = tuple(replace(row, values=dict.fromkeys(keys, row.values[AREA.key])) for row in many.rows)
    written = as_latex(replace(many, rows=rows), every=True)
    assert re.findall(r"caption\{(.*)\}", written) == ["d: leakage", "d: leakage, continued"]
    assert re.findall(r"auc:\d", written) == keys


def test_csv_has_one_line_per_row_and_unscaled_numbers():
    """Everything that is known of an entry, empty where there is nothing."""
    first, second = csv.DictReader(io.StringIO(as_csv(replace(TINY, measures=(ACCURACY, AREA)))))
    assert first == {
        **{"dataset": "d", "method": "m", "defense": "none", "seeds": "0 1", "notes": ""},
        **{"server_accuracy": "0.9", "server_accuracy/low": "0.88", "server_accuracy/high": "0.925"},
        **{"server_accuracy/interval": "seeds", "server_accuracy/standing": "best"},
        **{"server_accuracy/marks": "", "server_accuracy/reason": ""},
        **{"global_auc": "0.61", "global_auc/low": "", "global_auc/high": "", "global_auc/interval": "none"},
        **{"global_auc/standing": "indistinguishable", "global_auc/marks": "yeom; adaptive", "global_auc/reason": ""},
    }
    assert second["global_auc"] == ""
    assert second["global_auc/reason"] == HIDDEN.reason
    assert second["notes"] == "one seed is lost"


def test_csv_of_seeds_has_one_line_per_row_measure_and_seed():
    """Seeds without a number have a line with the reason."""
    assert as_csv_seeds(replace(TINY, measures=(AREA,))) == (
        "dataset,method,defense,seed,run,measure,value,reason\n"
        "d,m,none,0,a,global_auc,0.61,\n"
        "d,m,none,1,b,global_auc,,no number for this seed\n"
        "d,m,l2,0,c,global_auc,,50 % of it is hidden\n"
    )


def test_numbers_that_round_to_zero_have_no_sign():
    """-0.0 would look like a difference."""
    tiny = replace(TINY.rows[0], values={"server_accuracy": replace(BEST, mean=-1e-9)})
    assert " 0.0 " in as_text(ComparisonTable((ACCURACY,), (tiny,)), 100)


def test_an_empty_table_is_written_in_every_format():
    """No format fails on it."""
    empty = ComparisonTable((), ())
    assert [len(write(empty)) > 0 for write in (as_text, as_csv, as_csv_seeds, as_markdown, as_latex)] == [True] * 5


@given(words)
@settings(max_examples=150, deadline=None)
def test_csv_comes_back_whatever_names_contain(text):
    """Commas, quotes and further lines included."""
    shown = f'{text},"\n{text}'
    rows = read_back(as_csv(named(shown)))
    assert [rows[0][name] for name in ("dataset", "method", "defense", "global_auc/marks")] == [shown] * 4
    assert [rows[1][name] for name in ("global_auc/reason", "notes")] == [shown] * 2
    seeds = read_back(as_csv_seeds(named(shown)))
    assert len(seeds) == 6
    assert {line["dataset"] for line in seeds} == {shown}


def read_back(text):
    """Rows of a CSV file, without the apostrophes that keep spreadsheets from computing."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [{name: cell_text(cell) for name, cell in row.items()} for row in rows]


@given(words)
@settings(max_examples=150, deadline=None)
def test_markdown_keeps_its_cells_whatever_names_contain(text):
    """Pipes end no cell, and nothing but the best is bold."""
    written = as_markdown(named(f"{text}\n| {text} |"))
    lines = [line for line in written.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)(?:\\\\)*\|", line) for line in lines]
    assert len(lines) == 4
    assert {len(line) for line in cells} == {7}
    bare = re.sub(r"\\.", "", written)
    assert bare.count("**") == 2 * 3  # the dataset, the legend and the best
    plain = " ".join(text.split())
    assert re.sub(r"\\(.)", r"\1", markdown_text(text)) == plain


@given(words)
@settings(max_examples=150, deadline=None)
def test_latex_keeps_its_cells_whatever_names_contain(text):
    """No special sign is left, braces are balanced, every row has its cells."""
    back = re.compile("|".join(re.escape(sign) for sign in sorted(LATEX.values(), key=len, reverse=True)))
    signs = {written: sign for sign, written in LATEX.items()}
    assert back.sub(lambda found: signs[found[0]], latex_text(text)) == " ".join(text.split())
    written = as_latex(named(f"{text}\n[*] {text} & % $ # _ {{ }} ~ ^ \\"))
    body = [line for line in written.splitlines() if line.endswith((r" \\", r"\addlinespace")) and "&" in line]
    assert [len(re.findall(r"(?<!\\)&", re.sub(r"\\\\", "", line))) for line in body] == [3] * len(body) == [3] * 6
    assert not any(line.startswith(("[", "*")) for line in written.splitlines())
    bare = re.sub(r"\\[{}\\]", "", "\n".join(line for line in written.splitlines() if not line.startswith("% ")))
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"(?<!\\)[%#_]", bare.replace("_{", "").replace("^{", ""))
