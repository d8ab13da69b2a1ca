"""Where a run belongs in a comparison: dataset, method, defense, seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

NO_DEFENSE = "none"
"""Name of the cell without any defense."""


@dataclass(frozen=True, order=True)
class RunLabels:
    """A run's place in the matrix of a comparison.

    Attributes:
        dataset: dataset and partition.
        method: how submodels are chosen and aggregated.
        defense: the stack of defenses, or `none`.
        seed: the run's seed.
    """

    dataset: str
    method: str
    defense: str
    seed: int

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the four labels."""
        return tuple(field.name for field in fields(cls))


def labels_of(config: Mapping[str, Any]) -> RunLabels:
    """Labels of a run that belongs to no comparison, from its configuration.

    Args:
        config: complete configuration of the run, as plain data.
    """
    return RunLabels(
        dataset=_class_name(config["data"]).lower(),
        method=_method(config["model"]),
        defense="+".join(name.replace("_", "-") for name in config.get("defenses") or {}) or NO_DEFENSE,
        seed=int(config.get("seed_everything") or 0),
    )


def _method(model: Mapping[str, Any]) -> str:
    """The network's, the submodels' and the server's part in how the federation learns, where they are not plain."""
    parts = [_class_name(model.get(part) or {}).lower() for part in ("method", "server")]
    special = [part for part in parts if part not in ("", "fedavg", "prefix", "mean")]
    return "+".join(special) or "fedavg"


def _class_name(part: Mapping[str, Any]) -> str:
    return str(part.get("class_path", "")).rpartition(".")[2]
