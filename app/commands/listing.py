"""`rampart list`: everything there is to choose from, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from app.catalogue import CATALOGUE, published
from app.commands.options import list_parser
from app.results.text_table import text_table


def list_choices(arguments: Sequence[str]) -> int:
    """Print the catalogue, or the named parts of it."""
    parser = list_parser()
    chosen = parser.parse_args(list(arguments)).what
    for unknown in (what for what in chosen if what not in CATALOGUE):
        parser.error(f"invalid choice: {unknown!r} (choose from {', '.join(CATALOGUE)})")
    for what in chosen or CATALOGUE:
        usage, entries = CATALOGUE[what]
        print(f"{what}  ({usage})")
        print(text_table((), entries() or [("none", "")], left=(0, 1), indent="  "), end="\n\n")
        if what == "comparisons":
            _print_published()
    return 0


def _print_published() -> None:
    """Print which comparison shows each table and figure of the papers."""
    print("tables and figures of the five papers")
    header = ("paper", "table or figure", "shown by", "left out or different, and why")
    print(text_table(header, published(), left=range(4), indent="  "), end="\n\n")
