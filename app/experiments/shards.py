"""Parts of a comparison that separate processes run, such as those of a job array, in one folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.common.dealing import deal
from app.common.errors import UserError
from app.experiments.matrix import Combination, PlannedRun
from app.experiments.parsing import ParsedRun


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a comparison; numbers are counted from 1."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shard:
        """A shard as users write it, such as 2/4."""
        written = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        shard = cls(int(written[1]), int(written[2])) if written else None
        if shard is None or not 1 <= shard.number <= shard.count:
            raise UserError.of(
                f"--shard is {text!r}",
                "it is unclear which part of the comparison to run",
                "give its number, from 1, and how many there are, such as --shard 2/4",
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def part(self, runs: Sequence[PlannedRun], parsed: Mapping[Combination, ParsedRun]) -> tuple[PlannedRun, ...]:
        """The shard's runs, in their order: all shards together have every run once, and about equal work."""
        dealt = deal([parsed[planned.combination].work for planned in runs], self.count)
        return tuple(runs[place] for place in sorted(dealt[self.number - 1]))
