"""Footnotes of the page."""

from __future__ import annotations

from dataclasses import dataclass

from app.results.comparison.display import Footnotes


@dataclass(frozen=True)
class NoteLink:
    """A link to a footnote, which also shows its text on hover and focus."""

    target: str  # id of the footnote
    number: str  # its number, or another text in its place
    text: str  # of the footnote
    label: str = ""  # text before the number


@dataclass
class PageNotes(Footnotes):
    """Footnotes with ids that are unique in the page."""

    prefix: str = ""

    def link(self, text: str, label: str = "") -> NoteLink:
        """A link to the footnote of a text."""
        number = self.number(text)
        return NoteLink(f"{self.prefix}-{number}", str(number), text, label)
