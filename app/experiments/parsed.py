"""What a run would be made with, and whether one that was made is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PARTS = ("model", "data", "defenses", "attacks", "defense_order")
"""Parts of a configuration that a result depends on; the seed is part of a cell's name."""


@dataclass(frozen=True, eq=False)
class ParsedRun:
    """A run as it would be.

    Attributes:
        config: its complete configuration, as plain data; the seed is that of one of its cells.
    """

    config: Mapping[str, Any]

    @property
    def rounds(self) -> int | None:
        """Rounds that it takes, None where it has no fixed number."""
        rounds = (self.config.get("trainer") or {}).get("max_epochs")
        return rounds if isinstance(rounds, int) and rounds >= 0 else None

    def differs_in(self, saved: Mapping[str, Any]) -> list[str]:
        """Parts in which a run that was made differs from this one.

        Args:
            saved: complete configuration of the run that was made.
        """
        changed = [part for part in PARTS if _comparable(part, saved) != _comparable(part, self.config)]
        trainers = [config.get("trainer") or {} for config in (saved, self.config)]
        options = ("max_epochs", "precision")
        return changed + [f"trainer.{name}" for name in options if trainers[0].get(name) != trainers[1].get(name)]


def _comparable(part: str, config: Mapping[str, Any]) -> str:
    """Text that is equal for equal settings; how many threads work makes no difference, the order of defenses does."""
    value = config.get(part)
    if part == "model" and isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if key != "workers"}
    if part in ("defenses", "attacks"):
        value = list((value or {}).items())
    return json.dumps(value, sort_keys=True, default=str)
