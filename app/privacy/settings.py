"""Checks of the settings of defenses, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from app.common.errors import Problem, UserError
from app.common.wording import counted
from app.privacy.accounting import AccountantName
from app.privacy.pld import library


def setting_problem(defense: str, name: str, value: object, consequence: str, allowed: str) -> Problem:
    """A setting out of range; `allowed` completes the remedy `set --defenses.NAME.name ...`."""
    return Problem(f"{name} of {defense} is {value}", consequence, f"set --defenses.NAME.{name} {allowed}")


def raised_problems(check: Callable[[], object]) -> Iterator[Problem]:
    """Problems of the UserError that a check raises, if any."""
    try:
        check()
    except UserError as error:
        yield from error.problems


def budget_problems(
    defense: str, target_epsilon: float | None, noise: float | None, clip: float, what: str
) -> Iterator[Problem]:
    """Problems of a budget, a noise multiplier (None: chosen for the budget) and the clipping norm of `what`."""
    if target_epsilon is None and noise is None:
        remedy = "set --defenses.NAME.target_epsilon (a budget) or --defenses.NAME.noise (a multiplier)"
        yield Problem(f"{defense} has neither a budget nor noise", "nothing would be private", remedy)
    if math.isinf(clip) and noise != 0:
        remedy = "set --defenses.NAME.clip to a finite norm, or --defenses.NAME.noise 0"
        yield Problem(f"clip of {defense} is infinite", f"no noise hides {what} without a bound", remedy)


def client_budget_problems(
    defense: str, target_epsilon: float | None, noise: float | None, clip: float, delta: float | None, clients: int
) -> Iterator[Problem]:
    """Problems of a budget of whole clients; a `delta` of None is chosen by their number."""
    yield from budget_problems(defense, target_epsilon, noise, clip, "changes")
    if delta is not None:
        yield from delta_problems(defense, delta, clients, f"there are {counted(clients, 'client')}", "client")


def accountant_problems(accountant: AccountantName) -> Iterator[Problem]:
    """An accountant whose library is not installed."""
    if accountant == "pld":
        yield from raised_problems(library)


def delta_problems(defense: str, delta: float, records: int, count: str, one: str) -> Iterator[Problem]:
    """A delta so large that publishing one record outright would be allowed.

    `count` states the number of records, as in `there are 10 clients`, and `one` what a record is, as in `client`.
    """
    if delta >= 1 / records:
        yield Problem(
            f"delta of {defense} is {delta}, and {count}",
            f"a mechanism that publishes one {one} at random would have such a delta",
            f"set --defenses.NAME.delta below {1 / records:.2g}",
        )
