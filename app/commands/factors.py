"""`rampart attack RUN --attacks factor-recovery`: does a finished run give away which factors its clients use?

Uploads are those of the transcript; the truth comes from the last checkpoint.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from app.commands.finished import AttackCommand, finished_run
from app.errors import UserError
from app.federation.transcript import Transcript
from app.results.attacks.factor_recovery import FactorResults
from app.results.run.checkpoints import newest_usable
from callbacks.attacks.factor_recovery import FactorRecovery

NAME = "factor-recovery"
"""What the attack is called on the command line."""


def wants_factors(arguments: Sequence[str]) -> bool:
    """Whether the recovery of factors is among the attacks that are asked for."""
    return NAME in _names(arguments)


def recover(arguments: Sequence[str]) -> int:
    """Attack the choice of factors of a finished run; returns the exit code.

    Raises:
        UserError: where other attacks are asked for beside it, or nothing is known of the truth.
    """
    if others := [name for name in _names(arguments) if name != NAME]:
        cause = f"{NAME} is asked for together with {', '.join(others)}"
        raise UserError.of(
            cause, "the kinds of attacks have options of their own", "run `rampart attack` once for each"
        )
    folder = finished_run(Path(factor_parser().parse_args(list(arguments)).run))
    checkpoint = newest_usable(folder.checkpoints)
    if checkpoint is None:
        raise UserError.of(
            f"the run {folder.path} has no checkpoint",
            "which factors its clients truly use is known from there alone",
            "train it again with --trainer.enable_checkpointing true, or with --config factor-recovery",
        )
    federation, attack = AttackCommand(folder).prepared(), FactorRecovery()
    attack.results = FactorResults(folder)
    kept = torch.load(checkpoint, map_location="cpu", weights_only=True)
    federation.personal.load_state_dict(kept["personal"])
    attack.run(federation, Transcript(folder.path / "transcript"), len(folder.read_lines("metrics.jsonl")))
    return 0


def _names(arguments: Sequence[str]) -> Iterator[str]:
    """Names of all attacks that are asked for."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--attacks":
            yield from re.findall(r"[\w.-]+", value if equals else " ".join(arguments[place + 1 : place + 2]))


def factor_parser() -> ArgumentParser:
    """Options of `rampart attack RUN --attacks factor-recovery`."""
    usage = f"rampart attack RUN --attacks {NAME}"
    parser = ArgumentParser(prog="rampart attack", description=__doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("run", help="folder of a finished run, such as runs/demo")
    parser.add_argument("--attacks", help=NAME)
    return parser
