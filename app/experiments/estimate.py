"""How long a comparison still takes, from runs that have ended and from the progress of those at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.experiments.matrix import Combination


@dataclass(frozen=True)
class Running:
    """A run at work.

    Attributes:
        combination: dataset, method and defense.
        elapsed: seconds since it started.
        fraction: rounds done since then, as a fraction of those that were left; in [0, 1], None where unknown.
    """

    combination: Combination
    elapsed: float
    fraction: float | None


def seconds_left(
    waiting: Sequence[Combination], running: Sequence[Running], ended: Sequence[tuple[Combination, float]], workers: int
) -> float | None:
    """Seconds until everything is done, None where nothing is known yet.

    A run is taken to last as long as those of the same combination did, else as long as all did on average; where none
    has ended, progress in rounds is all there is.

    Args:
        waiting: runs that have not started.
        running: runs at work.
        ended: runs that have finished, with the seconds each took.
        workers: runs at a time, 1 or more.
    """
    known = [seconds for _, seconds in ended]
    known = known or [one.elapsed / one.fraction for one in running if one.fraction]
    if not known:
        return None
    rest = [max(0.0, _typical(one.combination, ended, known) - one.elapsed) for one in running]
    ahead = [_typical(combination, ended, known) for combination in waiting]
    return max(sum(rest + ahead) / workers, max(rest, default=0.0))


def in_words(seconds: float) -> str:
    """A duration such as `40 s`, `3 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _typical(combination: Combination, ended: Sequence[tuple[Combination, float]], known: Sequence[float]) -> float:
    same = [seconds for other, seconds in ended if other == combination] or known
    return sum(same) / len(same)
