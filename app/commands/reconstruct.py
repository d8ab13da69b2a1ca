"""`rampart attack RUN --attacks rolling-model`: reconstruct training images of a finished run.

Passive attacks read the transcript. Attacks of a malicious server need clients that respond: the last rounds of the run
are repeated, with all its defenses, by a server that deviates from the protocol.
"""

from __future__ import annotations

import difflib
import importlib
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
from app.commands.finished import AttackCommand, attack_names, exit_code, finished_run, run_parser
from app.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.results.attacks.reconstruction_results import ReconstructionResults
from app.results.run.folder import RunFolder
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.attacks.malicious_server import MaliciousServer, Score


class ReconstructionOptions:
    """Attacks that reconstruct training images, and how they are scored."""

    def __init__(
        self,
        attacks: list[str | ActiveAttack | PassiveAttack],
        reading: ImageExtraction = DEFAULT_EXTRACTION,
        score: Score = "matched",
        insist: bool = False,
    ) -> None:
        """Choose the attacks.

        Args:
            attacks: names (`rampart list attacks` shows them), dotted names of your own classes, or class_path with
                init_args.
            reading: how a malicious server extracts images from an isolated update.
            score: `legacy` adds the scores of the published evaluation of the attacks on unequal models.
            insist: let a malicious server attack also where it cannot succeed; the result is labelled.
        """
        if mixed := [attack for attack in attacks if isinstance(attack, str) and attack in ATTACKS]:
            raise UserError.of(
                f"{', '.join(mixed)} infers membership, and other attacks of the list reconstruct images",
                "the two have options of their own",
                "run `rampart attack` once for each kind",
            )
        self.attacks = [make_reconstruction(attack) for attack in attacks]
        self.reading, self.score, self.insist = reading, score, insist


def wants_reconstruction(arguments: Sequence[str]) -> bool:
    """Whether the named attacks reconstruct images, rather than infer membership."""
    return any(map(_reconstructs, attack_names(arguments)))


def _reconstructs(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    known = {**ACTIVE, **PASSIVE}
    if name in known or kind in {attack.__name__ for attack in known.values()}:
        return True
    near = [] if name in ATTACKS else difflib.get_close_matches(name, [*known, *ATTACKS], n=1)
    if near and near[0] in known:
        return True  # a typing error, which the catalogue of reconstructions explains best
    try:
        value = getattr(importlib.import_module(module), kind, None) if module else None
    except ImportError:
        return False
    return isinstance(value, type) and issubclass(value, (ActiveAttack, PassiveAttack))


def reconstruct(arguments: Sequence[str]) -> int:
    """Reconstruct images of a finished run; returns the exit code: 1 where an attack failed."""
    parser = reconstruction_parser()
    options = parser.parse_args(list(arguments))
    folder = finished_run(Path(options.run))
    values = {key: value for key, value in vars(parser.instantiate_classes(options)).items() if key != "run"}
    chosen = ReconstructionOptions(**values)
    command = AttackCommand(folder)
    results = ReconstructionResults(folder, command.tracker)
    findings = []
    for finding in _findings(command, folder, chosen):
        results.add(finding)
        findings.append(finding)
    results.conclude(findings)
    if command.tracker is not None:
        command.tracker.finalize("success")
    print(f"results are in {folder.path / 'attacks' / 'reconstruction'}: images (*.png, *.npz) and scores (*.json)")
    return exit_code([finding.conditions.label for finding in findings if finding.failed])


def reconstruction_parser() -> ArgumentParser:
    """The options of the command."""
    parser = run_parser(str(__doc__), "rampart attack RUN --attacks NAME,NAME [--OPTION VALUE ...]")
    parser.add_class_arguments(ReconstructionOptions, None)
    return parser


def _findings(
    command: AttackCommand, folder: RunFolder, chosen: ReconstructionOptions
) -> Iterator[ReconstructionFinding]:
    used: Counter[str] = Counter()
    for attack in chosen.attacks:
        if isinstance(attack, ActiveAttack):
            used[attack.name] += 1
            again = f"-{used[attack.name]}" if used[attack.name] > 1 else ""
            yield from _attack_actively(folder, attack, chosen, attack.name + again)
    if passive := [attack for attack in chosen.attacks if isinstance(attack, PassiveAttack)]:
        rounds = _rounds(folder)
        print(f"attacking {folder.path}, trained for {rounds} rounds", flush=True)
        transcript = Transcript(folder.path / "transcript")
        yield from ImageReconstruction(list(passive)).run(command.prepared(), transcript, rounds)


def _rounds(folder: RunFolder) -> int:
    return len(folder.read_lines("metrics.jsonl"))


def _attack_actively(
    folder: RunFolder, attack: ActiveAttack, chosen: ReconstructionOptions, label: str
) -> list[ReconstructionFinding]:
    """Repeat the last rounds of a run with a malicious server; an attack that is refused gives the reason as result."""
    rounds = _rounds(folder)
    try:
        return _repeated_rounds(folder, attack, chosen, label, rounds)
    except UserError as error:
        conditions = ReconstructionConditions(attack.name, label, "malicious server", attack.sees, rounds, ())
        return [ReconstructionFinding(conditions, NotAvailable(explained(error)))]


def _repeated_rounds(
    folder: RunFolder, attack: ActiveAttack, chosen: ReconstructionOptions, label: str, rounds: int
) -> list[ReconstructionFinding]:
    first = max(1, rounds - attack.rounds + 1)
    command, transcript = AttackCommand(folder), Transcript(folder.path / "transcript")
    server = MaliciousServer(attack, first, chosen.reading, chosen.score, chosen.insist, label)
    _put_in_place(command.trainer, server, rounds, first)
    federation = command.prepared()
    federation.evaluation = replace(federation.evaluation, clients=False)
    if federation.personal:
        server.remarks = ("rounds are repeated: what clients keep to themselves starts anew",)
    if not transcript.server_view().readable(first):
        return [server.unavailable(federation, "the server adds ciphertexts and cannot read the sum")]
    federation.space.write(federation.net, transcript.client_view().broadcast(first).to(federation.device))
    repeated = f"rounds {first} to {rounds}" if first < rounds else f"round {rounds}"
    print(f"repeating {repeated} of {folder.path} with a malicious server: {label}", flush=True)
    command.trainer.fit(federation, datamodule=command.datamodule)
    return server.findings or server.run(federation)


def _put_in_place(trainer: Trainer, server: MaliciousServer, rounds: int, first: int) -> None:
    """Let a server act from a round (counted from 1) to the last one; of the run's callbacks, the defenses remain."""
    others = [callback for callback in trainer.callbacks if not _observes(callback)]  # type: ignore[attr-defined]
    trainer.callbacks = [*others, server]  # type: ignore[attr-defined]
    trainer.limit_val_batches = 0
    trainer.fit_loop.max_epochs = rounds
    for count in ("ready", "started", "processed", "completed"):  # as Lightning sets them where a run is resumed
        setattr(trainer.fit_loop.epoch_progress.current, count, first - 1)


def _observes(callback: object) -> bool:
    return isinstance(callback, FederatedCallback) and callback.kind == "observer"
