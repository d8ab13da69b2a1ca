"""Footnotes: every remark once, numbered in the order in which the table first needs it."""

from __future__ import annotations

from app.results.report.markup import Html, tag


class Footnotes:
    """Remarks that cells refer to by number."""

    def __init__(self, prefix: str) -> None:
        """Collect remarks.

        Args:
            prefix: first part of the ids of the notes, unique in the page.
        """
        self._prefix = prefix
        self._numbers: dict[str, int] = {}

    def link(self, remark: str, label: str = "") -> Html:
        """A link to the note, which shows it already on hover and focus.

        Args:
            remark: text of the note.
            label: text of the link before its number.
        """
        number = self._numbers.setdefault(remark, len(self._numbers) + 1)
        target = f"#{self._prefix}-{number}"
        return tag("a", label, tag("sup", number), href=target, class_="note", data_tip=remark)

    def listed(self) -> Html:
        """All notes, to be placed behind everything that refers to them."""
        notes = (tag("li", remark, id=f"{self._prefix}-{place}") for remark, place in self._numbers.items())
        return tag("ol", *notes, class_="footnotes") if self._numbers else Html("")
