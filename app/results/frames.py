"""Tables of plain values for notebooks: data frames and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from app.common.errors import UserError

if TYPE_CHECKING:
    import pandas


def as_frame(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> pandas.DataFrame:
    """A data frame.

    Raises:
        UserError: where pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UserError.of(
            "pandas is not installed", "there is no data frame", 'pip install "rampart-fl[notebook]"'
        ) from error
    return pandas.DataFrame(list(rows), columns=list(columns))


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as HTML; numbers with four digits, empty cells for what is missing."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
