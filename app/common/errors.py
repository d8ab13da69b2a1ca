"""Errors a user can act on: what is wrong, what it would lead to, what to do instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    cause: str  # what was found, with the offending value
    consequence: str = ""  # what would happen if the run went on
    remedy: str = ""  # what the user can change, naming the option

    def __str__(self) -> str:
        further = {"consequence": self.consequence, "remedy": self.remedy}
        return "\n".join([self.cause, *(f"  {name}: {text}" for name, text in further.items() if text)])


class UserError(Exception):
    """A mistake in what the user asked for; the command line prints it without a traceback."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    @classmethod
    def of(cls, cause: str, consequence: str = "", remedy: str = "") -> UserError:
        """Error with a single problem."""
        return cls(Problem(cause, consequence, remedy))


def raise_all(*groups: Iterable[Problem]) -> None:
    """Raise one error that lists every problem of all groups; return where there is none."""
    if problems := [problem for group in groups for problem in group]:
        raise UserError(*problems)
