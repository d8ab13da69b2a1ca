"""`rampart attack RUN --attacks rolling-model`: bring training images of a finished run back.

Attacks that only look read the transcript. A malicious server's attack needs clients that answer: the last rounds of
the run are played again, with all its defenses, by a server that deviates.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer

from app.attacks.findings import explained
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.active.base import ActiveAttack
from app.attacks.reconstruction.base import ReconstructionConditions, ReconstructionFinding
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE, make_reconstruction
from app.attacks.reconstruction.inversion.extraction import DEFAULT_EXTRACTION, ImageExtraction
from app.attacks.reconstruction.inversion.uploads import PassiveAttack
from app.commands.finished import AttackCommand, exit_code, finished_run
from app.commands.fit import FitParser
from app.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.results.attacks.reconstruction_results import ReconstructionResults
from app.results.run.folder import RunFolder
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.attacks.malicious_server import MaliciousServer, Score


class ReconstructionOptions:
    """Attacks that bring training images back, and how they are judged."""

    def __init__(
        self,
        attacks: list[str | ActiveAttack | PassiveAttack],
        reading: ImageExtraction = DEFAULT_EXTRACTION,
        score: Score = "matched",
        insist: bool = False,
    ) -> None:
        """Choose the attacks.

        Args:
            attacks: names (`rampart list attacks` shows them), dotted classes of yours, or class_path with init_args.
            reading: how a malicious server reads images from an update once it is isolated.
            score: `legacy` adds the scores of the published evaluation of the attacks on unequal models.
            insist: let a malicious server attack also where nothing can come of it; the result is labelled.
        """
        if mixed := [attack for attack in attacks if isinstance(attack, str) and attack in ATTACKS]:
            raise UserError.of(
                f"{', '.join(mixed)} infers membership, and other attacks of the list bring images back",
                "the two have options of their own",
                "run `rampart attack` once for each kind",
            )
        self.attacks = [make_reconstruction(attack) for attack in attacks]
        self.reading, self.score, self.insist = reading, score, insist


def wants_reconstruction(arguments: Sequence[str]) -> bool:
    """Whether the attacks that are asked for bring images back, rather than tell members from others."""
    wanted = False
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--attacks":
            text = value if equals else " ".join(arguments[place + 1 : place + 2])
            wanted = any(map(_reconstructs, re.findall(r"[\w.-]+", text)))
    return wanted


def _reconstructs(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    known = {**ACTIVE, **PASSIVE}
    if name in known or kind in {attack.__name__ for attack in known.values()}:
        return True
    if name not in ATTACKS and difflib.get_close_matches(name, [*known, *ATTACKS], n=1)[:1] in [
        [near] for near in known
    ]:
        return True  # a slip, which the catalogue of reconstructions explains best
    try:
        found = getattr(importlib.import_module(module), kind, None) if module else None
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, (ActiveAttack, PassiveAttack))


def reconstruct(arguments: Sequence[str]) -> int:
    """Bring images of a finished run back; returns the exit code: 1 where an attack broke down."""
    parser = reconstruction_parser()
    options = parser.parse_args(list(arguments))
    folder = finished_run(Path(options.run))
    values = {key: value for key, value in vars(parser.instantiate_classes(options)).items() if key != "run"}
    chosen = ReconstructionOptions(**values)
    command = AttackCommand(folder)
    results = ReconstructionResults(folder, command.tracker)
    found = []
    for finding in _findings(command, folder, chosen):
        results.add(finding)
        found.append(finding)
    results.conclude(found)
    if command.tracker is not None:
        command.tracker.finalize("success")
    print(f"results are in {folder.path / 'attacks' / 'reconstruction'}: images (*.png, *.npz) and scores (*.json)")
    return exit_code([finding.conditions.label for finding in found if finding.failed])


def reconstruction_parser() -> ArgumentParser:
    """The options of the command."""
    parser = FitParser(
        prog="rampart attack",
        description=__doc__,
        usage="rampart attack RUN --attacks NAME,NAME [--OPTION VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=str, help="folder of a finished run, such as runs/demo")
    parser.add_class_arguments(ReconstructionOptions, None)
    return parser


def _findings(
    command: AttackCommand, folder: RunFolder, chosen: ReconstructionOptions
) -> Iterator[ReconstructionFinding]:
    """Results, as soon as they are there."""
    used: Counter[str] = Counter()
    for attack in chosen.attacks:
        if isinstance(attack, ActiveAttack):
            used[attack.name] += 1
            again = f"-{used[attack.name]}" if used[attack.name] > 1 else ""
            yield from _replayed(folder, attack, chosen, attack.name + again)
    if looking := [attack for attack in chosen.attacks if isinstance(attack, PassiveAttack)]:
        rounds = _rounds(folder)
        print(f"looking at {folder.path}, trained for {rounds} rounds", flush=True)
        transcript = Transcript(folder.path / "transcript")
        yield from ImageReconstruction(list(looking)).run(command.prepared(), transcript, rounds)


def _rounds(folder: RunFolder) -> int:
    return len(folder.read_lines("metrics.jsonl"))


def _replayed(
    folder: RunFolder, attack: ActiveAttack, chosen: ReconstructionOptions, label: str
) -> list[ReconstructionFinding]:
    """Play the last rounds of a run again with a malicious server; what is refused is a result with its reason."""
    rounds = _rounds(folder)
    try:
        return _played(folder, attack, chosen, label, rounds)
    except UserError as error:
        conditions = ReconstructionConditions(attack.name, label, "malicious server", attack.sees, rounds, ())
        return [ReconstructionFinding(conditions, NotAvailable(explained(error)))]


def _played(
    folder: RunFolder, attack: ActiveAttack, chosen: ReconstructionOptions, label: str, rounds: int
) -> list[ReconstructionFinding]:
    first = max(1, rounds - attack.rounds + 1)
    command, transcript = AttackCommand(folder), Transcript(folder.path / "transcript")
    server = MaliciousServer(attack, first, chosen.reading, chosen.score, chosen.insist, label)
    _put_in_place(command.trainer, server, rounds, first)
    federation = command.prepared()
    federation.evaluation = replace(federation.evaluation, clients=False)
    if federation.personal:
        server.remarks = ("played again: what clients keep to themselves starts anew",)
    if not transcript.server_view().readable(first):
        return [server.unavailable(federation, "the server adds ciphertexts and cannot read the sum")]
    federation.space.write(federation.net, transcript.client_view().broadcast(first).to(federation.device))
    played = f"rounds {first} to {rounds}" if first < rounds else f"round {rounds}"
    print(f"playing {played} of {folder.path} again with a malicious server: {label}", flush=True)
    command.trainer.fit(federation, datamodule=command.datamodule)
    return server.found or server.run(federation)


def _put_in_place(trainer: Trainer, server: MaliciousServer, rounds: int, first: int) -> None:
    """Let a server play from a round (counted from 1) to the last, beside the run's defenses and nobody else."""
    others = [one for one in trainer.callbacks if not _observes(one)]  # type: ignore[attr-defined]
    trainer.callbacks = [*others, server]  # type: ignore[attr-defined]
    trainer.limit_val_batches = 0
    trainer.fit_loop.max_epochs = rounds
    for count in ("ready", "started", "processed", "completed"):  # what Lightning sets where a run is resumed
        setattr(trainer.fit_loop.epoch_progress.current, count, first - 1)


def _observes(callback: object) -> bool:
    return isinstance(callback, FederatedCallback) and callback.kind == "observer"
