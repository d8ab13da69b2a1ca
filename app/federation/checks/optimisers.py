"""Whether the clients' optimiser and learning-rate schedule can work: both are tried on two small parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from app.common.errors import Problem
from app.common.wording import counted

if TYPE_CHECKING:
    from app.federation.local_training import LocalTraining

REFUSED = (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError, AttributeError)
"""What constructors and first steps of optimisers and schedules raise."""


def optimiser_problems(local: LocalTraining, rounds: int) -> Iterator[Problem]:
    """Problems of the clients' optimiser, and of their learning rate in any of `rounds` rounds."""
    change = "choose another --model.local.optimizer, such as SGD or Adam, or correct its settings"
    try:
        optimizer = local.optimizer(_parameters())
    except REFUSED as error:
        yield Problem(f"the local optimiser refuses its settings: {_line(error)}", "no client could train", change)
        return
    name = type(optimizer).__name__
    base = float(optimizer.param_groups[0].get("lr", math.nan))
    if not 0 < base < math.inf:
        remedy = "set --model.local.optimizer.lr to a finite number above 0"
        yield Problem(f"the local learning rate is {base:g}", "clients would not learn from their data", remedy)
        return
    try:
        optimizer.step()
    except REFUSED as error:
        yield Problem(f"{name} cannot take a step of a client: {_line(error)}", "no client could train", change)
        return
    if local.lr_schedule is not None:
        yield from _schedule_problems(local, optimizer, base, rounds)


def _schedule_problems(local: LocalTraining, optimizer: Optimizer, base: float, rounds: int) -> Iterator[Problem]:
    assert local.lr_schedule is not None
    change = "correct --model.local.lr_schedule, or leave it out"
    try:
        schedule: Any = local.lr_schedule(optimizer)
        if isinstance(schedule, ReduceLROnPlateau):
            cause = f"{type(schedule).__name__} waits for a metric"
            yield Problem(cause, "learning rates are set before the first round", f"{change}; MultiStepLR needs none")
            return
        rates = local.learning_rates(rounds)
    except REFUSED as error:
        cause = f"the learning-rate schedule cannot be followed for {counted(rounds, 'round')}: {_line(error)}"
        yield Problem(cause, "rounds would have no learning rate", change)
        return
    name = type(schedule).__name__
    if wrong := [round_ for round_, rate in enumerate(rates, start=1) if not 0 < rate < math.inf]:
        cause = f"{name} sets the learning rate to {rates[wrong[0] - 1]:g} in round {wrong[0]} of {rounds}"
        yield Problem(cause, "clients would not learn from their data from then on", change)
    elif rates == sorted(rates) and rates[-1] < max(base, *_peaks(optimizer)) * (1 - 1e-9):
        cause = f"{name} is still warming up at {rates[-1]:g} when the run ends after {counted(rounds, 'round')}"
        remedy = f"shorten the warm-up, or train longer: --trainer.max_epochs above {rounds}"
        yield Problem(cause, "the full learning rate would never be used", remedy)


def _parameters() -> list[nn.Parameter]:
    """A matrix and a vector, as networks have them, each with a gradient."""
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def _peaks(optimizer: Optimizer) -> list[float]:
    """Largest learning rates that cyclic schedules have announced; at least one number."""
    return [0.0, *(float(group["max_lr"]) for group in optimizer.param_groups if "max_lr" in group)]


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
