"""Ours beside theirs in words: what stands in which cell, and that no difference comes without its caveat."""

from app.metrics.intervals import Interval
from app.metrics.membership import NotAvailable
from app.results.published.formats import HEADS, as_cells, as_markdown, as_text
from app.results.published.ours import OwnResult
from app.results.published.side_by_side import PublishedComparison, PublishedRow
from app.results.published.values import PublishedFigure

SLIP = "a slip of the pen"
WITHIN = PublishedRow(
    PublishedFigure("cifar10", "heterofl", "server_accuracy", 78.26, "%", "Table 5, OFM", spread=0.78, rounds=150),
    OwnResult(77.5, Interval(76.5, 78.5), "seeds", (0, 1, 2), 150),
)
SHORT = PublishedRow(
    PublishedFigure("cifar10", "osm", "clients_accuracy", 59.63, "%", "Table 5, OSM", rounds=150, remark=SLIP),
    OwnResult(30.0, NotAvailable("one seed"), "none", (0,), 3),
)
BOUND = PublishedRow(
    PublishedFigure("mnist", "rolling", "reconstruction:psnr", 60, "dB", "Figure 6", "none", None, "above", "highest"),
    OwnResult(77.7, NotAvailable("none"), "none", (0, 1), 2),
)
MISSING = PublishedRow(
    PublishedFigure("cifar10", "a|b", "paper:x/Adv %", 2.5, "%", "Table 5", client=4), NotAvailable("no finished run")
)
ALL = PublishedComparison((WITHIN, SHORT, BOUND, MISSING), "quick")


def test_cells():
    """Values with spreads and units, signed differences, and verdicts in words."""
    within, short, bound, missing = as_cells(ALL)
    assert within.shown == (
        *("Table 5, OFM", "cifar10 / heterofl / none", "server"),
        *("78.26 ± 0.78 %", "77.50 ± 1.00 %", "-0.76", "within"),
    )
    assert (short.ours, short.difference, short.verdict) == ("30.00 %", "-29.63", "no interval")
    assert short.remark == f"{SLIP}; ours after 3 of 150 rounds"
    assert (bound.theirs, bound.difference, bound.verdict) == ("> 60.00 dB", "+17.70", "holds")
    assert bound.measure == "psnr, highest of the runs"
    assert (missing.ours, missing.difference, missing.verdict) == ("-", "-", "no finished run")
    assert missing.measure == "Adv % (x), client 4"


def test_outside_and_broken_bounds():
    """The other two verdicts."""
    outside = PublishedRow(WITHIN.figure, OwnResult(70.0, Interval(69.0, 71.0), "seeds", (0, 1), 150))
    broken = PublishedRow(BOUND.figure, OwnResult(50.0, NotAvailable("none"), "none", (0,), 2))
    assert [cell.verdict for cell in as_cells(PublishedComparison((outside, broken)))] == ["outside", "does not hold"]


def test_text_tells_caveats_before_numbers():
    """The scale and the rounds stand above the table, remarks below; rows line up under their heads."""
    text = as_text(ALL)
    assert text.index("scale `quick`") < text.index("Table 5, OFM") < text.index(SLIP)
    assert text.index("3 of 150") < text.index("Table 5, OFM")
    assert "Table 5, OSM" in text
    assert "a|b" not in text
    lines = text.splitlines()
    [head] = [line for line in lines if line.startswith(HEADS[0])]
    rows = [line for line in lines if line.startswith(("Table 5, OFM", "Table 5, OSM", "Figure 6"))]
    assert {row[head.index("theirs") - 1] for row in rows} == {" "}
    assert [row[head.index("theirs") :].split()[0] for row in rows] == ["78.26", "59.63", ">"]


def test_extremes_tell_of_how_many_runs():
    """The highest of two runs is not that of the paper's thirty."""
    assert PublishedComparison((BOUND,), "full").caveats == ("highest and lowest values are those of 2 of our runs",)


def test_full_scale_has_no_caveat():
    """Nothing is excused where ours was run as the paper's."""
    assert PublishedComparison((WITHIN,), "full").caveats == ()
    assert "note:" not in as_text(PublishedComparison((WITHIN,), "full"))


def test_markdown_table():
    """As many cells in every row as in the head, with vertical bars escaped; numbers without ours on demand."""
    text = as_markdown(ALL, only_measured=False)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert {line.replace("\\|", "").count("|") for line in rows} == {len(HEADS) + 1}
    assert "a\\|b" in text
    assert text.index("quick") < text.index("| where")
    assert "a\\|b" not in as_markdown(ALL)


def test_equal_remarks_are_told_once():
    """A remark on many numbers names the first, and how many more."""
    text = as_text(PublishedComparison((SHORT, SHORT, SHORT)))
    assert text.count(SLIP) == 1
    assert "and 2 more" in text


def test_nothing_measured():
    """No table, but how many numbers wait for a run."""
    text = as_text(PublishedComparison((MISSING,)))
    assert text == "0 of 1 published numbers have a result of ours beside them\n"
