"""Words that users read: a number agrees with its noun, also where it is 1."""

import ast
import re

import pytest
from test_imports import OURS, ROOT

from app.common.wording import counted

NOUNS = (
    *("attacks", "clients", "files", "images", "leaks", "members", "newcomers", "non-members", "remarks", "rounds"),
    *("rows", "runs", "samples", "seeds"),
)
KINDS = "training|test|black|shadow|population|known|different|missing|unreadable"
PLURAL = re.compile(rf" (?:({KINDS}) )?({'|'.join(NOUNS)})\b")
AFTER = re.compile(r"(\bof|of the|at least|fewer than|more than|room for|in all|to|x|-?\d) ?$")
"""What precedes a number that is no count of its own: `3 of 1 clients` and `at least 2 rounds` have a plural."""


def wrong_plurals():
    """Places with a number in front of a plural that would also be there for 1, as `file:line: text`."""
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            if not {"benchmarks", "crypto"} & {*path.parts}:
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.JoinedStr):
                        yield from (f"{path.relative_to(ROOT)}:{text}" for text in uncounted(node))


def uncounted(text: ast.JoinedStr):
    """Numbers of an f-string that stand in front of a plural."""
    before = ""
    for part, following in zip(text.values, [*text.values[1:], None], strict=True):
        if isinstance(part, ast.FormattedValue) and isinstance(following, ast.Constant):
            value = ast.unparse(part.value)
            plural = PLURAL.match(str(following.value)) and not AFTER.search(before)
            if plural and value != "name" and not value.isupper():
                yield f"{part.lineno}: {{{value}}}{following.value}"
        before = str(part.value) if isinstance(part, ast.Constant) else ""


def test_a_number_agrees_with_its_noun():
    """`counted(1, "round")` is "1 round"; `f"{rounds} rounds"` would be "1 rounds"."""
    assert list(wrong_plurals()) == []


def test_the_search_finds_wrong_plurals():
    text = ast.parse('f"finished after {rounds} rounds, {done} of {total} clients, at least {few} training samples"')
    found = [place for node in ast.walk(text) if isinstance(node, ast.JoinedStr) for place in uncounted(node)]
    assert found == ["1: {rounds} rounds, "]


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (1, ("round",), "1 round"),
        (0, ("round",), "0 rounds"),
        (2000, ("training sample",), "2,000 training samples"),
        (2, ("class", "classes"), "2 classes"),
        (1, ("class", "classes"), "1 class"),
    ],
)
def test_counted(number, nouns, text):
    assert counted(number, *nouns) == text
