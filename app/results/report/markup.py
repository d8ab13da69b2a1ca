"""HTML as nested calls: whatever is not markup already is escaped, so that no name from a file becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "input", "br", "col"})
"""Elements without content and without an end tag."""


class Html(str):
    """Markup that is safe to put into a page as it is."""

    __slots__ = ()


def text(content: object) -> Html:
    """Any text as markup; markup stays as it is."""
    return content if isinstance(content, Html) else Html(escape(str(content)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the element.
        children: its content; what is not markup is escaped.
        attributes: by name, with `_` for `-` and an `_` behind names that Python keeps for itself (`class_`, `for_`);
            None and False leave an attribute out, True leaves out its value.
    """
    told = "".join(
        f" {key}" if value is True else f' {key}="{escape(str(value))}"'
        for key, value in ((_attribute(key), value) for key, value in attributes.items())
        if value is not None and value is not False
    )
    return Html(f"<{name}{told}>") if name in VOID else Html(f"<{name}{told}>{joined(children)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(text(between).join(map(text, parts)))


def items(entries: Iterable[object], **attributes: object) -> Html:
    """A list with one item per entry; nothing where there is none."""
    found = list(entries)
    return tag("ul", *(tag("li", entry) for entry in found), **attributes) if found else Html("")


def plain_table(head: Iterable[object], rows: Iterable[Iterable[object]], caption: str) -> Html:
    """A small table whose first column names its rows, in a container that scrolls where it is too wide.

    Args:
        head: titles of the columns.
        rows: cells, as many per row as there are titles.
        caption: what the table holds.
    """
    lines = [tag("tr", *(tag("td" if column else "th", cell) for column, cell in enumerate(row))) for row in rows]
    titles = tag("tr", *(tag("th", title, scope="col") for title in head))
    table = tag("table", tag("caption", caption), tag("thead", titles), tag("tbody", *lines), class_="plain")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
