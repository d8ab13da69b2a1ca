"""Requests to stop, noted where they come and heeded where it is safe."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

GRACE = 60.0
"""Seconds that runs get to come to an end by themselves."""


class StopRequest:
    """Counts interrupts (Ctrl-C) and requests to terminate while it is entered.

    Attributes:
        count: requests so far; after the second one, nothing is waited for.
    """

    def __init__(self) -> None:
        self.count = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self.arm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Take over the signals, also from a library that has taken them over meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._noted)
            self._before.setdefault(number, before)

    @property
    def asked(self) -> bool:
        """Whether anybody asked to stop."""
        return self.count > 0

    @property
    def urgent(self) -> bool:
        """Whether runs are no longer waited for."""
        return self.count > 1 or (self.asked and time.monotonic() - self._since > GRACE)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self._since = self._since or time.monotonic()
        self.count += 1
