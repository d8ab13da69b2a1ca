"""`rampart list`: everything there is to choose from, one line each."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from app.catalogue import CATALOGUE
from app.results.text_table import text_table


def list_choices(arguments: Sequence[str]) -> int:
    """Print the catalogue, or the named parts of it."""
    parser = ArgumentParser(prog="rampart list", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"any of: {', '.join(CATALOGUE)}; all without a name")
    chosen = parser.parse_args(list(arguments)).what
    if unknown := [what for what in chosen if what not in CATALOGUE]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(CATALOGUE)}")
    for what in chosen or CATALOGUE:
        usage, entries = CATALOGUE[what]
        print(f"{what}  ({usage})")
        print(text_table((), entries() or [("none", "")], left=(0, 1), indent="  "), end="\n\n")
    return 0
