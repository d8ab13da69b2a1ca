r"""The table in LaTeX: one tabular per dataset and group of measures, for the packages booktabs and graphicx.

Bold only where a row is best beyond chance; a dash with the number of the reason where there is no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.metrics.membership import NotAvailable
from app.results.comparison.entries import (
    LEGEND,
    Reasons,
    bounds_text,
    datasets_of,
    entry_of,
    groups_of,
    mean_text,
    row_notes,
    shown_measures,
    titled,
)
from app.results.comparison.table import ComparisonTable, Measure, Row

SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # the end of a line would take them as its own
}
LEVEL = r"$^{\sim}$"
WIDEST = 5
"""Measures that are still legible beside each other on a page."""

FITTED = r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"
"""The tabular in box 0, made smaller only where it is wider than the text."""


def as_latex(table: ComparisonTable, every: bool = False) -> str:
    r"""The table in LaTeX; needs `\usepackage{booktabs,graphicx}`.

    Args:
        table: the table.
        every: also show the columns of single attacks.
    """
    told = [*row_notes(table.rows, len(datasets_of(table)) > 1), *table.notes]
    parts = ["\n".join(["% needs \\usepackage{booktabs,graphicx}", *(f"% {' '.join(text.split())}" for text in told)])]
    parts += [
        _of_group(table.of(dataset), group[at : at + WIDEST], ", continued" if at else "")
        for dataset in datasets_of(table)
        for group in groups_of(shown_measures(table, dataset, every))
        for at in range(0, len(group), WIDEST)
    ]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX shows as it is, in one line."""
    return "".join(SPECIAL.get(sign, sign) for sign in " ".join(text.split()))


def _of_group(rows: Sequence[Row], measures: Sequence[Measure], more: str) -> str:
    """A floating table with what must be known to read it."""
    reasons = Reasons()
    head = ["Method", "Defense", "Seeds", *(escaped(titled(measure)) for measure in measures)]
    body = [_line(_cells(row, measures, reasons)) for row in rows]
    notes = [_legend(), *(f"$^{{{number}}}$ {escaped(text)}" for number, text in reasons.numbered())]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(rows[0].dataset)}: {measures[0].group}{more}}}",
            rf"\sbox0{{\begin{{tabular}}{{ll{'r' * (1 + len(measures))}}}",
            r"\toprule",
            _line(head),
            r"\midrule",
            " \\addlinespace\n".join(body),
            r"\bottomrule",
            r"\end{tabular}}",
            FITTED,
            r"\par\smallskip\footnotesize",
            " \\\\\n".join(notes),
            r"\end{table}",
        ]
    )


def _legend() -> str:
    return LEGEND.replace("%", r"\%").format(best=r"\textbf{bold}:", level=LEVEL)


def _cells(row: Row, measures: Sequence[Measure], reasons: Reasons) -> Iterator[str]:
    yield from (escaped(row.method), escaped(row.defense), str(len(row.seeds)))
    for measure in measures:
        entry = entry_of(row, measure)
        if isinstance(entry, NotAvailable):
            yield f"--$^{{{reasons.number(entry)}}}$"
            continue
        mean = mean_text(measure, entry)
        shown = {"best": rf"\textbf{{{mean}}}", "indistinguishable": f"{mean}{LEVEL}"}.get(entry.standing, mean)
        below = [part for part in (bounds_text(measure, entry), escaped(", ".join(entry.marks))) if part]
        stacked = r"\\".join([shown, *(rf"{{\scriptsize {part}}}" for part in below)])
        yield rf"\shortstack[r]{{{stacked}}}" if below else shown


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"
