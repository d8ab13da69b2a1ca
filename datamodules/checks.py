"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5
"""Names that a message lists; further ones are only counted."""


def first_few(names: Sequence[str]) -> str:
    """The first names and how many more there are: "a, b, c, d, e and 7 more"."""
    text = ", ".join(names[:SHOWN])
    return text if len(names) <= SHOWN else f"{text} and {len(names) - SHOWN} more"
