"""The ledger of a run on the disk: what was released, written before it left."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from app.common.errors import UserError
from app.common.files import append_text, write_text
from app.common.reading import read_text
from app.privacy.ledger import Spend

LEDGER = "ledger.jsonl"
"""File in a run's folder: one line per attempt at a round; a later line of the same attempt replaces an earlier one."""


def append_spend(folder: Path, spend: Spend) -> None:
    """Add a line; it is on the disk when the function returns."""
    append_text(folder / LEDGER, json.dumps(spend.record()) + "\n", sync=True)


def read_spends(folder: Path) -> list[Spend]:
    """All lines, in order; none where there is no file.

    A last line that a crash has cut short is deleted: whatever it was to announce left only after the whole line was on
    the disk, so nothing of it has left.

    Raises:
        UserError: where any other line cannot be read.
    """
    path = folder / LEDGER
    if not path.is_file():
        return []
    text = read_text(path)
    whole = text[: text.rfind("\n") + 1]
    spends = list(_parsed(path, whole.splitlines()))
    if whole != text:
        write_text(path, whole)
    return spends


def _parsed(path: Path, lines: Iterable[str]) -> Iterable[Spend]:
    for number, line in enumerate(lines, start=1):
        try:
            yield Spend.restored(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError.of(
                f"line {number} of {path} cannot be read ({error})",
                "the privacy budget that the run has spent is not known",
                "restore the file from a copy, or start afresh: --run.overwrite true",
            ) from error
