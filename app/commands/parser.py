"""The parser of commands that have few options: its errors name what to write instead."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from app.common.errors import UserError
from app.common.wording import near


class CommandParser(ArgumentParser):
    """Raises errors with a remedy, which names the nearest option or choice."""

    _given: Sequence[str] = ()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Namespace:  # type: ignore[override]
        self._given = tuple(args or ())
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings]
        wrong = [word.partition("=")[0] for word in self._given if word.startswith("--")]
        wrong = [option for option in wrong if option not in known]
        if refused := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            wrong, known = [refused[1]], re.findall(r"[\w-]+", refused[2])
        hint = "".join(near(name, known) for name in wrong)
        raise UserError.of(message, "nothing was done", f"{hint}`{self.prog} --help` explains the command")
