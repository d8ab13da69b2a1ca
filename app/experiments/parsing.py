"""The configuration of every planned run, from the parser of `rampart fit`, before anything starts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jsonargparse import Namespace

from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import range_problems
from app.configuration import Parser, complete_config, expand, run_parser
from app.experiments.matrix import Combination, PlannedRun
from app.experiments.spec import ComparisonSpec
from app.federation.capacities import Capacities
from app.federation.checks.federation import unsent_problems

PARTS = ("model", "data", "defenses", "attacks", "defense_order")
"""Parts of a configuration that a result depends on; the seed is part of a run's name."""

OWN_IMAGES = "ImageFolder"
"""Data module that is named after no dataset."""

NAMED = 3
"""Combinations that a message names; further ones are only counted."""


@dataclass(frozen=True, eq=False)
class ParsedRun:
    """The complete configuration of a combination as plain data; the seed is that of one of its runs."""

    config: Mapping[str, Any]

    @property
    def rounds(self) -> int | None:
        """Number of rounds, None where it is not fixed."""
        rounds = (self.config.get("trainer") or {}).get("max_epochs")
        return rounds if isinstance(rounds, int) and rounds >= 0 else None

    @property
    def work(self) -> float:
        """Estimated work of a run, in local epochs; repeated federations of its attacks count like the run itself.

        The number of samples and the size of the network are not known before the data are loaded.
        """
        epochs = ((self.config.get("model") or {}).get("local") or {}).get("epochs") or 1
        settings = ((attack or {}).get("init_args") or {} for attack in (self.config.get("attacks") or {}).values())
        shadows = [one.get("shadows") or {} for one in settings]
        repeated = sum(one.get("count") or 0 for one in shadows if one.get("mode") in ("federated", "both"))
        return float((self.rounds or 1) * epochs * (1 + repeated))

    def differs_in(self, saved: Mapping[str, Any]) -> list[str]:
        """Parts in which the saved configuration of a run differs from this one."""
        changed = [part for part in PARTS if _comparable(part, saved) != _comparable(part, self.config)]
        before, now = (config.get("trainer") or {} for config in (saved, self.config))
        return changed + [
            f"trainer.{name}" for name in ("max_epochs", "precision") if before.get(name) != now.get(name)
        ]


def parse_all(runs: Iterable[PlannedRun]) -> dict[Combination, ParsedRun]:
    """The configuration of every combination of dataset, method and defense; nothing is loaded or trained.

    The problems of all combinations are raised together, each once.
    """
    parsed: dict[Combination, ParsedRun] = {}
    problems: dict[Problem, list[str]] = defaultdict(list)
    for planned in {planned.combination: planned for planned in runs}.values():
        try:
            parsed[planned.combination] = _parse(planned.arguments)
        except UserError as error:
            for problem in error.problems:
                problems[problem].append("-".join(planned.combination))
    raise_all(_with_names(problem, names) for problem, names in problems.items())
    return parsed


def misnamed_datasets(spec: ComparisonSpec, parsed: Mapping[Combination, ParsedRun]) -> Iterator[Problem]:
    """Datasets without recipes and options, hence described by `base`, whose name is that of other data.

    A name fits where it is that of the data module, or begins with it (`digits-small`); images of one's own may have
    any name.
    """
    for entry in spec.datasets:
        if entry.configs or entry.options:
            continue
        used = {
            run.config["data"]["class_path"].rpartition(".")[2] for key, run in parsed.items() if key[0] == entry.name
        }
        names = {entry.name.lower(), entry.name.lower().partition("-")[0]}
        for data in sorted(used - {OWN_IMAGES}):
            if data.lower() not in names:
                yield Problem(
                    f"the dataset {entry.name} has no settings of its own, and `base` says {data}",
                    f"{data} would be trained on and shown as {entry.name}",
                    f"say what it is, such as `{entry.name}: [my-{entry.name}.yaml]` or "
                    f"`{entry.name}: {{set: {{data: MNIST}}}}`, or call it {data.lower()}",
                )


def _parse(arguments: tuple[str, ...]) -> ParsedRun:
    parser = run_parser()
    parsed = parser.parse_args(expand(arguments))
    config = complete_config(parser, parsed)
    raise_all(_capacity_problems(config), _unsent_problems(parser, parsed))
    return ParsedRun(config)


def _unsent_problems(parser: Parser, parsed: Namespace) -> Iterator[Problem]:
    """Defenses of what clients send, in a run under which they send nothing."""
    if parsed.model.personal == ["*"] and parsed.defenses:
        yield from unsent_problems(parser.instantiate_classes(parsed).defenses.values())


def _capacity_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Widths of clients that contradict each other, as where two recipes give them."""
    capacities = config["model"].get("capacities")
    clients = ((config["data"].get("init_args") or {}).get("partition") or {}).get("init_args", {}).get("clients")
    if isinstance(clients, int):  # otherwise the number of clients follows from the data
        chosen = Capacities.of(capacities)
        yield from list(range_problems(chosen, "model.capacities")) or chosen.problems(clients)


def _with_names(problem: Problem, names: list[str]) -> Problem:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return replace(problem, cause=f"{', '.join(names[:NAMED])}{more}: {problem.cause}")


def _comparable(part: str, config: Mapping[str, Any]) -> str:
    """Text that is equal for equal settings: the number of threads does not count, the order of defenses does."""
    value = config.get(part)
    if part == "model" and isinstance(value, Mapping):
        value = {key: item for key, item in value.items() if key != "workers"}
    if part in ("defenses", "attacks"):
        value = list((value or {}).items())
    return json.dumps(value, sort_keys=True, default=str)
