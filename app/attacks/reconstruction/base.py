"""What every attack that brings images back has in common."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import ClassVar

from app.errors import Problem


class ReconstructionAttack(ABC):
    """An attack that brings training images back: by a server that deviates, or by somebody who only looks."""

    name: ClassVar[str]
    """What it is called."""

    def problems(self) -> Iterator[Problem]:
        """What is wrong with its settings."""
        yield from ()
