"""Attacks that were interrupted: which of their results are there, so that the next attempt does not repeat them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.attacks.findings import Finding
from app.common.errors import UserError
from app.common.files import append_text
from app.common.reading import read_text
from app.result import Result
from app.results.attacks.membership import AttackRecord

ATTEMPT = ".attempt.jsonl"
"""File in a run's folder with a line for each result of attacks that have not all ended."""


END_OF_RUN = "the end of the run"
"""The attempt at attacks that a run ends with."""


class Attempt:
    """One attempt at several attacks on a run, which goes on where an earlier attempt at the same ones ended.

    Args:
        folder: the run's.
        what: attacks and settings, in any words; equal for equal attempts.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._folder, self._what = folder, what
        self._records = [record for record in _read(folder / ATTEMPT) if record.get("what") == what]

    @property
    def labels(self) -> list[str]:
        """Labels of the results that are there, in the order in which they were made."""
        return list(dict.fromkeys(str(record["label"]) for record in self._records if "label" in record))

    def findings(self) -> dict[str, Finding]:
        """What membership attacks have found, by label; one that failed, or cannot be read, is to be repeated."""
        found: dict[str, Finding] = {}
        for label in self._labels(AttackRecord):
            try:
                record = AttackRecord.load(AttackRecord.path(self._folder, label, "json"))
                if not record.failed:
                    found[label] = record.finding()
            except UserError:
                continue
        return found

    def results(self, part: int, kinds: tuple[type[Result], ...]) -> list[Result] | None:
        """All results of a part of the attempt that had ended; None where it had not, or they cannot be read."""
        if not any(record.get("ended") == part for record in self._records):
            return None
        own = [record for record in self._records if record.get("part") == part]
        by_name = {kind.__name__: kind for kind in kinds}
        try:
            chosen = [(by_name[record["kind"]], record["label"]) for record in own]
            results = [kind.load(kind.path(self._folder, label, "json")) for kind, label in dict.fromkeys(chosen)]
        except (UserError, KeyError):
            return None
        return None if any(result.failed for result in results) else results

    def begin(self) -> None:
        """Forget attempts at others."""
        if not self._records:
            end_attempt(self._folder)

    def note(self, result: Result, part: int = 0) -> None:
        """Note a result that was saved."""
        self._add({"part": part, "kind": type(result).__name__, "label": result.label})

    def note_end(self, part: int) -> None:
        """Note that all results of a part were saved."""
        self._add({"ended": part})

    def _labels(self, kind: type[Result]) -> list[str]:
        return [str(record["label"]) for record in self._records if record.get("kind") == kind.__name__]

    def _add(self, record: Mapping[str, Any]) -> None:
        append_text(self._folder / ATTEMPT, json.dumps({"what": self._what, **record}) + "\n")


def end_attempt(folder: Path) -> None:
    """Forget an attempt: its attacks have ended, or the run goes on."""
    (folder / ATTEMPT).unlink(missing_ok=True)


def _read(path: Path) -> list[dict[str, Any]]:
    """Lines of the file that can be read; a crash may have cut the last one short."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        records += [record] if isinstance(record, dict) else []
    return records
