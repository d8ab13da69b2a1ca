"""What every cell would be run with, found out by the parser of `rampart fit` before anything starts."""

from __future__ import annotations

import contextlib
import io
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.commands.fit import FitCommand, complete_config, quieten
from app.errors import Problem, UserError, raise_all
from app.experiments.matrix import Combination, PlannedRun
from app.experiments.parsed import ParsedRun
from app.federation.capacities import Capacities

SHOWN = 3
"""Cells that a message names; of further ones it tells the number."""


class _ParsedOnly(FitCommand):
    """Parses the command line and stops there."""

    def before_instantiate_classes(self) -> None:
        """Claim no folder."""

    def instantiate_classes(self) -> None:
        """Build nothing."""


def parse_all(cells: Iterable[PlannedRun]) -> dict[Combination, ParsedRun]:
    """What every combination of dataset, method and defense would be run with; nothing is loaded or trained.

    Raises:
        UserError: with the problems of all combinations, each told once.
    """
    quieten()
    parsed: dict[Combination, ParsedRun] = {}
    wrong: dict[Problem, list[str]] = defaultdict(list)
    for cell in {cell.combination: cell for cell in cells}.values():
        try:
            parsed[cell.combination] = _parse(cell.arguments)
        except UserError as error:
            for problem in error.problems:
                wrong[problem].append("-".join(cell.combination))
    raise_all(_told(problem, names) for problem, names in wrong.items())
    return parsed


def _parse(arguments: tuple[str, ...]) -> ParsedRun:
    told = io.StringIO()
    seeds = logging.getLogger("lightning.fabric.utilities.seed")
    level = seeds.level
    seeds.setLevel(logging.WARNING)
    try:
        with contextlib.redirect_stderr(told):
            command = _ParsedOnly(arguments)
        config = complete_config(command.parser, command.config)
        raise_all(_capacity_problems(config))
        return ParsedRun(config)
    except SystemExit as end:
        cause, _, remedy = told.getvalue().strip().removeprefix("error: ").partition("\n  remedy: ")
        raise UserError.of(cause, "no run starts", remedy) from end
    finally:
        seeds.setLevel(level)


def _capacity_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Widths that contradict each other, as where two recipes of a cell give them; else every run would find out."""
    told = config["model"].get("capacities")
    clients = ((config["data"].get("init_args") or {}).get("partition") or {}).get("init_args", {}).get("clients")
    if isinstance(clients, int):  # else the data tell how many there are
        yield from (Capacities(**told) if isinstance(told, Mapping) else Capacities.of(told)).problems(clients)


def _told(problem: Problem, names: list[str]) -> Problem:
    """The problem with the cells that have it."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    cause = f"{', '.join(names[:SHOWN])}{more}: {problem.cause}"
    return Problem(cause, problem.consequence, problem.remedy)
