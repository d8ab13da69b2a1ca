"""Words that users read in the terminal, in reports and in messages: names of accuracies, numbers with their nouns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

RECEIVED = "received models"
"""Models that clients receive from the server, before local training; accuracy on the common test set."""

TRAINED = "trained models"
"""Models of a round's clients after local training; accuracy on their own test sets, else on the one that is named."""

LOCAL_TEST = "local test accuracy"
"""Every client of the federation with the model that it would use now, on its own test set."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 client`, `2,000 clients`, `2 classes` where `plural` gives it."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def near(name: str, known: Iterable[str], count: int = 2) -> str:
    """The names nearest to a wrong one as the beginning of a remedy; empty where none is near."""
    matches = difflib.get_close_matches(name, list(known), n=count)
    return f"did you mean {' or '.join(matches)}? " if matches else ""
