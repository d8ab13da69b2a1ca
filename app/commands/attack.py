"""`rampart attack RUN`: attack a finished run from its transcript, without training it again.

These are the options of membership inference; `rampart attack RUN --attacks rolling-model --help` shows those of
attacks that reconstruct training images, and `--attacks factor-recovery` recovers which factors clients of WAFFLe use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace

from app.commands.finished import AttackCommand, attack_names, exit_code, finished_run, run_parser
from app.commands.fit import quieten
from app.commands.reconstruct import reconstruct, wants_reconstruction
from app.errors import UserError
from app.federation.transcript import Transcript
from app.results.attacks.factor_recovery import FactorResults
from app.results.run.checkpoints import newest_usable
from callbacks.attacks.factor_recovery import FactorRecovery
from callbacks.attacks.membership_inference import MembershipInference

LISTS = ("--attacks", "--targets", "--rounds")
"""Options whose values may be written without brackets."""

FACTOR_RECOVERY = "factor-recovery"
"""Name of the attack on the clients' choice of factors."""


def attack(arguments: Sequence[str]) -> int:
    """Attack a finished run; returns the exit code: 1 where an attack failed."""
    quieten()
    listed = list(with_lists(arguments))
    if FACTOR_RECOVERY in attack_names(listed):
        return recover_factors(listed)
    return reconstruct(listed) if wants_reconstruction(listed) else infer_membership(listed)


def infer_membership(arguments: Sequence[str]) -> int:
    """Infer who was a member of a finished run; returns the exit code."""
    parser = attack_parser()
    options = parser.parse_args(list(arguments))
    folder = finished_run(Path(options.run))
    callback = _callback(parser, options)
    command = AttackCommand(folder)
    command.give_home(callback)
    federation = command.prepared()
    rounds = len(folder.read_lines("metrics.jsonl"))
    print(f"attacking {folder.path}, trained for {rounds} rounds", flush=True)
    findings = callback.run(federation, Transcript(folder.path / "transcript"), rounds, final=True)
    if command.tracker is not None:
        command.tracker.finalize("success")
    print(f"results are in {folder.path / 'attacks'}: leakage.png, roc.png, clients.csv, vulnerable.csv, *.npz")
    return exit_code([finding.conditions.label for finding in findings if finding.failed])


def recover_factors(arguments: Sequence[str]) -> int:
    """Recover which factors the clients of a finished run use; returns the exit code.

    Uploads are those of the transcript; the true choices come from the last checkpoint.

    Raises:
        UserError: where other attacks are named beside it, or the run has no checkpoint.
    """
    if others := [name for name in attack_names(arguments) if name != FACTOR_RECOVERY]:
        raise UserError.of(
            f"{FACTOR_RECOVERY} is named together with {', '.join(others)}",
            "the kinds of attacks have options of their own",
            "run `rampart attack` once for each",
        )
    folder = finished_run(Path(factor_parser().parse_args(list(arguments)).run))
    checkpoint = newest_usable(folder.checkpoints)
    if checkpoint is None:
        raise UserError.of(
            f"the run {folder.path} has no checkpoint",
            "which factors its clients truly use is known from there alone",
            "train it again with --trainer.enable_checkpointing true, or with --config factor-recovery",
        )
    federation, callback = AttackCommand(folder).prepared(), FactorRecovery()
    callback.results = FactorResults(folder)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    federation.personal.load_state_dict(state["personal"])
    callback.run(federation, Transcript(folder.path / "transcript"), len(folder.read_lines("metrics.jsonl")))
    return 0


def with_lists(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with `--attacks yeom,shokri` and the like in the form of lists."""
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in LISTS and equals:
            yield f"{option}={_as_list(value)}"
        else:
            yield _as_list(argument) if before in LISTS else argument
        before = argument


def _as_list(value: str) -> str:
    return value if value.startswith(("[", "{", "-")) else f"[{value}]"


def attack_parser() -> ArgumentParser:
    """Options of membership inference: those of its callback, but for attacks during training."""
    parser = run_parser(str(__doc__), "rampart attack RUN [--attacks NAME,NAME ...] [--OPTION VALUE ...]")
    parser.add_class_arguments(MembershipInference, None, skip={"every"})
    return parser


def factor_parser() -> ArgumentParser:
    """Options of `rampart attack RUN --attacks factor-recovery`."""
    description = "Recover which factors the clients of a finished run use (WAFFLe)."
    parser = run_parser(description, f"rampart attack RUN --attacks {FACTOR_RECOVERY}")
    parser.add_argument("--attacks", type=list[str], help=FACTOR_RECOVERY)
    return parser


def _callback(parser: ArgumentParser, options: Namespace) -> MembershipInference:
    values = {key: value for key, value in vars(parser.instantiate_classes(options)).items() if key != "run"}
    return MembershipInference(**values)
