"""Words that users read in the terminal, in reports and in messages: numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 client`, `2,000 clients`, `2 classes` where `plural` gives it."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"
