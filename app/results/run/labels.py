"""Where a run belongs in a comparison: dataset, method, defense, seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from app.federation.submodels.integration import NAMES, PRESETS

NO_DEFENSE = "none"
"""Name of the cell without any defense."""

TRAIN_LESS = "train-less"
"""Name of rows that only train for fewer rounds, with which every defense has to be compared."""

PLAIN = "fedavg"
"""Name of a federation in which nothing is special."""

USUAL_AXES = ("groups", "fixed", "submatrix")
"""Grouping, dynamics and policy of an integration method that sets none."""

PERSONAL = {("*",): "local", ("*norm*",): "fedbn"}
"""Names of federations by what stays on the clients; with anything else it is a local head."""

LITERAL = {"speed": 1, "kl_weight": 1}
"""Settings of the factorised networks that follow the paper literally."""


def without_strength(defense: str) -> str:
    """The name of a defense without its strength: `memdefense` of `memdefense gamma=0.9`."""
    return re.sub(r" [\w.]+=\S+$", "", defense)


@dataclass(frozen=True, order=True)
class RunLabels:
    """A run's place in the matrix of a comparison."""

    dataset: str  # dataset and partition
    method: str  # how submodels are chosen and aggregated
    defense: str  # the stack of defenses, or `none`
    seed: int  # the run's seed

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


def labels_of(config: Mapping[str, Any]) -> RunLabels:
    """Labels of a run that belongs to no comparison, from its configuration: names of recipes where there are any."""
    data, model = config["data"], config["model"]
    partition = _class_name(settings_of(data).get("partition"))
    central = partition == "Centralised"
    return RunLabels(
        dataset="-".join(part for part in (_class_name(data).lower(), "" if central else _kebab(partition)) if part),
        method="+".join([*(["centralised"] if central else []), *_parts(model)]) or PLAIN,
        defense="+".join(name.replace("_", "-") for name in config.get("defenses") or {}) or NO_DEFENSE,
        seed=int(config.get("seed_everything") or 0),
    )


def _parts(model: Mapping[str, Any]) -> Iterator[str]:
    """What is special about a federation: its network, submodels, private weights, local objective, and server."""
    if _class_name(model.get("net")) == "Factorised":
        settings = settings_of(model["net"])
        yield "waffle-literal" if all(settings.get(key) == value for key, value in LITERAL.items()) else "waffle"
    if submodels := _submodels(model):
        yield submodels
    if personal := model.get("personal"):
        yield PERSONAL.get(tuple(personal), "local-head")
    if model.get("ditto") is not None:
        yield "ditto"
    if float((model.get("local") or {}).get("proximal") or 0) > 0:
        yield "fedprox"
    if (model.get("local") or {}).get("scaffold"):
        yield "scaffold"
    if (server := _class_name(model.get("server")).lower()) not in ("", PLAIN):
        yield server


def _submodels(model: Mapping[str, Any]) -> str:
    """Name of the submodel method; empty where all clients train the whole network."""
    method = model.get("method")
    name = _class_name(method)
    if name in ("", "Prefix"):
        return "heterofl" if _unequal(model.get("capacities")) else ""
    settings = settings_of(method)
    if name == "ChannelSubset":
        return _integration(settings)
    distilled = name == "FjORD" and float(settings.get("distillation") or 0) > 0
    return f"{name.lower()}-distilled" if distilled else name.lower()


def _unequal(capacities: Any) -> bool:
    settings = capacities if isinstance(capacities, Mapping) else {"rates": capacities}
    narrow = any(rate != 1 for rate in settings.get("rates") or ())
    return narrow or settings.get("large") is not None or settings.get("levels") is not None


def _integration(settings: Mapping[str, Any]) -> str:
    """Name of one of the nine integration methods, or its code where it has none."""
    keys = ("grouping", "dynamics", "policy")
    axes = tuple(settings.get(key) or usual for key, usual in zip(keys, USUAL_AXES, strict=True))
    code = next((code for code, preset in PRESETS.items() if preset == axes), "-".join(map(str, axes)))
    name = {known: name for name, known in NAMES.items()}.get(code, code.lower())
    return f"{name}-independent" if settings.get("coupling") == "independent" else name


def settings_of(part: Any) -> Mapping[str, Any]:
    """Settings of an object of a configuration (`class_path` with `init_args`); none where it is something else."""
    settings = part.get("init_args") if isinstance(part, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def _class_name(part: Any) -> str:
    named = part.get("class_path", "") if isinstance(part, Mapping) else part or ""
    return str(named).rpartition(".")[2]


def _kebab(name: str) -> str:
    """`DirichletSizes` as `dirichlet-sizes`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
