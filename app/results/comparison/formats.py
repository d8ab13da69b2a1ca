r"""The table for reading: aligned text for a terminal, Markdown, and LaTeX for the packages booktabs and graphicx.

Only rows that are significantly best are marked as best; missing numbers refer to numbered reasons.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from app.results.comparison.display import LEGEND, Footnotes, TableBlock, TableCell, row_notes, table_blocks
from app.results.comparison.table import ComparisonTable
from app.results.comparison.verdict_tables import REASON, WordTable, word_tables
from app.results.text_table import GAP, table_lines, text_table

SIGNS = {"best": "*", "indistinguishable": "~"}
NARROWEST, USUAL = 40, 120
"""Smallest width of a text, and its width where the terminal does not tell its own."""

MARKDOWN = re.compile(r"([\\`*_\[\]<>|~])")
"""Special characters of Markdown."""

LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # after a line break they would be its arguments
}
"""Special characters of LaTeX."""

LEVEL = r"$^{\sim}$"
WIDEST = 5
"""Measures of a LaTeX table at most, so that it is legible on a page."""

FITTED = r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"
"""The tabular in box 0, made smaller only where it is wider than the text."""


def as_text(table: ComparisonTable, width: int | None = None, every: bool = False) -> str:
    """The table for a terminal: a block per dataset and group of measures, no wider than the terminal.

    Args:
        table: the table.
        width: columns of the terminal; by default those that it reports.
        every: whether columns of single attacks are shown.
    """
    room = max(NARROWEST, width or shutil.get_terminal_size((USUAL, 24)).columns)
    footnotes = Footnotes()
    parts = [part for block in table_blocks(table, every) for part in _text_parts(block, room, footnotes)]
    parts.append(_filled(LEGEND.format(best=SIGNS["best"], level=SIGNS["indistinguishable"]), room, ""))
    parts += [_text_of_words(each, room) for each in word_tables(table)]
    lists = {
        "N/A:": [f"({number}) {text}" for number, text in footnotes.numbered()],
        "rows:": row_notes(table),
        "how to read it:": list(table.notes),
    }
    parts += ["\n".join([title, *(_filled(text, room) for text in texts)]) for title, texts in lists.items() if texts]
    return "\n\n".join(parts) + "\n"


def _text_parts(block: TableBlock, room: int, footnotes: Footnotes) -> Iterator[str]:
    """The block in one or more tables of columns that fit beside each other."""
    fixed = [
        [f"{block.dataset}: {block.group}", *(row.name for row in block.rows)],
        ["seeds", *(str(len(row.seeds)) for row in block.rows)],
    ]
    columns = [
        [head, *_text_column(cells, footnotes)]
        for head, cells in zip(block.heads, zip(*block.cells, strict=True), strict=True)
    ]
    part = [*fixed]
    for column in columns:
        if len(part) > len(fixed) and sum(max(map(len, each)) + len(GAP) for each in (*part, column)) > room + len(GAP):
            yield _text_of_columns(part)
            part = [*fixed]
        part.append(column)
    yield _text_of_columns(part)


def _text_of_words(words: WordTable, room: int) -> str:
    """A table of words; reasons, which are long, stand below their row. Where it is too wide, rows are list items."""
    width = len(words.heads) - (words.heads[-1] == REASON)
    lines = table_lines(words.heads[:width], [row[:width] for row in words.rows], left=range(width))
    if max(map(len, lines)) > room:
        pairs = [zip(words.heads[1:], row[1:], strict=True) for row in words.rows]
        texts = [", ".join(f"{head} {cell}" for head, cell in pair if cell) for pair in pairs]
        lines = [_filled(f"{row[0]}: {text}", room) for row, text in zip(words.rows, texts, strict=True)]
    elif width < len(words.heads):
        reasons = [_filled(row[-1], room, "    ") for row in words.rows]
        lines = [*lines[:2], *(part for pair in zip(lines[2:], reasons, strict=True) for part in pair)]
    return "\n".join([words.title, *lines, _filled(words.reading, room, "")])


def _text_of_columns(columns: Sequence[Sequence[str]]) -> str:
    head, *rows = zip(*columns, strict=True)
    return text_table(head, rows, left=range(len(columns)))


def _text_column(cells: Sequence[TableCell], footnotes: Footnotes) -> Iterator[str]:
    """Cells of one column, with means, intervals and marks below each other."""
    signed = any(cell.standing in SIGNS for cell in cells)
    tails = [f"{SIGNS.get(cell.standing, ' ')} " * signed + ", ".join(cell.marks) for cell in cells]
    parts = [(cell.mean, cell.interval, tail.rstrip()) for cell, tail in zip(cells, tails, strict=True)]
    widths = [max(map(len, column)) for column in zip(*parts, strict=True)]
    for cell, (mean, interval, tail) in zip(cells, parts, strict=True):
        if cell.reason:
            yield f"N/A ({footnotes.number(cell.reason)})"
        else:
            aligned = (mean.rjust(widths[0]), interval.rjust(widths[1]), tail)
            yield " ".join(text for text, width in zip(aligned, widths, strict=True) if width).rstrip()


def _filled(text: str, room: int, front: str = "- ") -> str:
    wrapper = textwrap.TextWrapper(room, front, " " * len(front), break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)


def as_markdown(table: ComparisonTable, every: bool = False) -> str:
    """The table in Markdown, one table per dataset.

    Args:
        table: the table.
        every: whether columns of single attacks are shown.
    """
    footnotes = Footnotes()
    parts = [_markdown_block(block, footnotes) for block in table_blocks(table, every, by_group=False)]
    parts.append(markdown_text(LEGEND).format(best="**bold**:", level=r"\~"))
    parts.append("\n".join(f"{number}. {markdown_text(text)}" for number, text in footnotes.numbered()))
    parts.append("\n".join(f"- {markdown_text(text)}" for text in [*row_notes(table), *table.notes]))
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in one line and within a cell of a table."""
    return MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def markdown_rows(rows: Iterable[Iterable[str]]) -> str:
    """Lines of a Markdown table from cells whose special characters are escaped."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown_block(block: TableBlock, footnotes: Footnotes) -> str:
    head = ["method", "defense", "seeds", *map(markdown_text, block.heads)]
    ruler = [":--", ":--", "--:", *["--:"] * len(block.heads)]
    rows = [
        [markdown_text(row.method), markdown_text(row.defense), str(len(row.seeds))]
        + [_markdown_cell(cell, footnotes) for cell in cells]
        for row, cells in zip(block.rows, block.cells, strict=True)
    ]
    return f"**{markdown_text(block.dataset)}**\n\n{markdown_rows([head, ruler, *rows])}"


def _markdown_cell(cell: TableCell, footnotes: Footnotes) -> str:
    if cell.reason:
        return f"N/A ({footnotes.number(cell.reason)})"
    shown = {"best": f"**{cell.mean}**", "indistinguishable": rf"{cell.mean}\~"}.get(cell.standing, cell.mean)
    marks = f"({markdown_text(', '.join(cell.marks))})" if cell.marks else ""
    return " ".join(part for part in (shown, markdown_text(cell.interval), marks) if part)


def as_latex(table: ComparisonTable, every: bool = False) -> str:
    r"""The table in LaTeX, one floating table per dataset and group; needs `\usepackage{booktabs,graphicx}`.

    Args:
        table: the table.
        every: whether columns of single attacks are shown.
    """
    notes = [" ".join(text.split()) for text in (*row_notes(table), *table.notes)]
    comment = "\n".join(f"% {text}" for text in (r"needs \usepackage{booktabs,graphicx}", *notes))
    blocks = [_latex_block(block) for block in table_blocks(table, every, widest=WIDEST)]
    return "\n\n".join([comment, *blocks]) + "\n"


def latex_text(text: str) -> str:
    """Text that LaTeX shows as it is, in one line."""
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _latex_block(block: TableBlock) -> str:
    footnotes = Footnotes()
    head = ["Method", "Defense", "Seeds", *map(latex_text, block.heads)]
    rows = [
        [latex_text(row.method), latex_text(row.defense), str(len(row.seeds))]
        + [_latex_cell(cell, footnotes) for cell in cells]
        for row, cells in zip(block.rows, block.cells, strict=True)
    ]
    legend = LEGEND.replace("%", r"\%").format(best=r"\textbf{bold}:", level=LEVEL)
    notes = [legend, *(f"$^{{{number}}}$ {latex_text(text)}" for number, text in footnotes.numbered())]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(block.dataset)}: {block.group}{', continued' if block.continued else ''}}}",
            rf"\sbox0{{\begin{{tabular}}{{ll{'r' * (1 + len(block.heads))}}}",
            r"\toprule",
            _latex_row(head),
            r"\midrule",
            " \\addlinespace\n".join(map(_latex_row, rows)),
            r"\bottomrule",
            r"\end{tabular}}",
            FITTED,
            r"\par\smallskip\footnotesize",
            " \\\\\n".join(notes),
            r"\end{table}",
        ]
    )


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: TableCell, footnotes: Footnotes) -> str:
    if cell.reason:
        return f"--$^{{{footnotes.number(cell.reason)}}}$"
    shown = {"best": rf"\textbf{{{cell.mean}}}", "indistinguishable": f"{cell.mean}{LEVEL}"}
    below = [part for part in (cell.interval, latex_text(", ".join(cell.marks))) if part]
    stacked = r"\\".join([shown.get(cell.standing, cell.mean), *(rf"{{\scriptsize {part}}}" for part in below)])
    return rf"\shortstack[r]{{{stacked}}}" if below else stacked
