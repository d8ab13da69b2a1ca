"""Parts of a comparison that separate processes run, such as those of a job array, in one folder."""

from __future__ import annotations

import re
from collections import Counter
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

    def part(
        self, runs: Sequence[PlannedRun], parsed: Mapping[Combination, ParsedRun], by_row: bool = False
    ) -> tuple[PlannedRun, ...]:
        """The shard's runs, in their order: all shards together have every run once, and about equal work.

        Args:
            runs: all runs.
            parsed: the configuration of every combination.
            by_row: whether all seeds of a row go to one shard, which also tunes it.
        """
        if not by_row:
            dealt = deal([parsed[planned.combination].work for planned in runs], self.count)
            return tuple(runs[place] for place in sorted(dealt[self.number - 1]))
        seeds = Counter(planned.combination for planned in runs)
        dealt = deal([parsed[row].work * count for row, count in seeds.items()], self.count)
        own = {list(seeds)[place] for place in dealt[self.number - 1]}
        return tuple(planned for planned in runs if planned.combination in own)
