"""Attacks on a trained federation: on a finished run from its transcript, or on one in memory."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from torch.nn.functional import pad

from app.attacks.findings import explained
from app.attacks.membership.base import MembershipAttack
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.models import TargetKind
from app.attacks.naming import by_name
from app.attacks.protocols.audit import ControlPolicy
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.catalogue import ProtocolName
from app.attacks.reconstruction.active.base import ActiveAttack
from app.attacks.reconstruction.base import ReconstructionConditions, ReconstructionFinding
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.attacks.reconstruction.inversion.extraction import DEFAULT_EXTRACTION, ImageExtraction
from app.attacks.reconstruction.inversion.uploads import PassiveAttack
from app.attacks.shadows.shadow_store import DEFAULT_SHADOWS, ShadowSettings
from app.common.errors import UserError, raise_all
from app.common.progress import PROGRESS_LOG, reported
from app.common.ranges import Count, Whole, range_problems
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.finished import FinishedRun, at_round
from app.metrics.membership import NotAvailable
from app.result import Result
from app.results.attacks.membership import AttackRecord, scores_by_label
from app.results.attacks.membership_figures import draw_roc
from app.results.attacks.reconstruction import ReconstructionRecord
from app.results.frames import as_frame, html_table
from app.results.run.attempts import Attempt
from app.results.run.results import RESULT_KINDS, conclude
from app.results.run.tracking import RoundLogger
from callbacks.attacks.factor_recovery import FactorRecovery
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.attacks.malicious_server import MaliciousServer, Score
from callbacks.attacks.membership_inference import MembershipInference
from callbacks.attacks.source_inference import SourceInference

if TYPE_CHECKING:
    import pandas

Attack = str | MembershipAttack | ActiveAttack | PassiveAttack | FederatedCallback

KINDS: Any = (MembershipAttack, ActiveAttack, PassiveAttack, FederatedCallback)

OTHERS: dict[str, type[FederatedCallback]] = {"factor-recovery": FactorRecovery, "source-inference": SourceInference}
"""Attacks that neither infer membership nor reconstruct images, by name."""


class AttackSuite:
    """Attacks of any kind, and how they are carried out."""

    def __init__(
        self,
        attacks: list[Attack] | None = None,
        targets: list[TargetKind] | None = None,
        rounds: list[Count] | None = None,
        shadows: ShadowSettings = DEFAULT_SHADOWS,
        protocol: ProtocolName | Protocol = "audit",
        calibrate: bool = True,
        controls: ControlPolicy = "withhold",
        adaptive: bool = True,
        reading: ImageExtraction = DEFAULT_EXTRACTION,
        score: Score = "matched",
        insist: bool = False,
        colluding: Whole = 0,
    ) -> None:
        """Choose the attacks.

        Args:
            attacks: names (`rampart list attacks` shows them), dotted names of your own classes, or class_path with
                init_args; five usual membership attacks where none are named.
            targets: of membership inference: `global` (the released model, seen from outside) and `uploads` (each
                client's last upload, seen by the server); both without a choice.
            rounds: further rounds whose models membership inference attacks, counted from 1; the transcript holds them.
            shadows: of membership inference: how shadow models are made.
            protocol: of membership inference: `audit` for a sound evaluation, or the paper whose evaluation is to be
                repeated as it was; a paper's class_path with init_args where its options matter.
            calibrate: whether membership attackers choose a threshold on a shadow model, for accuracies.
            controls: `withhold` the numbers of a membership attack that fails a control, `warn` beside them, or `skip`.
            adaptive: beside every membership attack, the same by an adversary who knows the run's defenses.
            reading: how a malicious server extracts images from an isolated update.
            score: `legacy` adds the scores of the published evaluation of the attacks on unequal models.
            insist: let a malicious server attack also where it cannot succeed; the result is labelled.
            colluding: participants, drawn at random, that join the adversaries of membership inference and of passive
                reconstructions; where the channel hides uploads, the run must have kept what they know
                (--transcript.colluding).
        """
        chosen = [_made(attack, protocol) for attack in attacks or ()]
        self.callbacks: list[FederatedCallback] = []
        membership = [attack for attack in chosen if isinstance(attack, (str, MembershipAttack))]
        if membership or attacks is None:
            self.callbacks.append(
                MembershipInference(
                    None if attacks is None else membership,
                    targets,
                    rounds,
                    shadows=shadows,
                    protocol=protocol,
                    calibrate=calibrate,
                    controls=controls,
                    adaptive=adaptive,
                    colluding=colluding,
                )
            )
        used: Counter[str] = Counter()
        for attack in chosen:
            if isinstance(attack, ActiveAttack):
                used[attack.name] += 1
                label = attack.name + (f"-{used[attack.name]}" if used[attack.name] > 1 else "")
                self.callbacks.append(MaliciousServer(attack, None, reading, score, insist, label))
        if passive := [attack for attack in chosen if isinstance(attack, PassiveAttack)]:
            self.callbacks.append(ImageReconstruction(list(passive), colluding))
        self.callbacks += [attack for attack in chosen if isinstance(attack, FederatedCallback)]
        raise_all(range_problems(self.callbacks))


def _made(attack: Attack, protocol: ProtocolName | Protocol) -> Attack:
    """An attack by name; names that only the evaluation of a paper has are left to it."""
    others: dict[str, Any] = {**ACTIVE, **PASSIVE, **OTHERS}
    if not isinstance(attack, str) or (protocol != "audit" and attack not in others and "." not in attack):
        return attack
    made: Attack = by_name(attack, {**ATTACKS, **others}, KINDS, "attack")
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Results of attacks on one federation, in order."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> list[str]:
        """Labels of the attacks that broke down."""
        return [result.label for result in self.results if result.failed]

    def table(self) -> str:
        """All results as text, kind by kind."""
        return "\n\n".join(f"{kind.kind}\n{kind.text(own)}" for kind, own in self._kinds())

    def roc(self) -> Figure:
        """ROC curves of the membership attacks, on logarithmic axes."""
        scores = scores_by_label([result for result in self.results if isinstance(result, AttackRecord)])
        if not scores:
            raise UserError.of(
                "no membership attack has given scores", "there is no curve", "see table() for the reasons"
            )
        return draw_roc(scores, "membership inference")

    def to_pandas(self) -> pandas.DataFrame:
        """One row per number: kind, label of the result, name, value."""
        rows = [(one.kind, one.label, name, value) for one in self.results for name, value in one.numbers.items()]
        return as_frame(("kind", "label", "number", "value"), rows)

    def _kinds(self) -> Iterator[tuple[type[Result], list[Result]]]:
        for kind in dict.fromkeys(map(type, self.results)):
            yield kind, [result for result in self.results if type(result) is kind]

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        tables = [(kind, kind.table(own)) for kind, own in self._kinds()]
        return "".join(f"<h4>{kind.kind}</h4>{html_table(table.columns, table.rows)}" for kind, table in tables)


def audit(
    target: FederatedModule | FinishedRun | str | Path,
    attacks: Sequence[Attack] | None = None,
    *,
    trust: bool = False,
    **options: Any,
) -> Audit:
    """Attack a trained federation, or a finished run, whose folder then holds the results too.

    Example::

        audit("runs/mine", attacks=["yeom", "lira-online"], targets=["global"]).table()

    Args:
        target: a federation that a Trainer has fitted, a finished run, or its folder.
        attacks: names, attacks or callbacks of any kind; see `AttackSuite`.
        trust: let the configuration in a folder name classes that do not come with this program, whose code then runs.
        options: further arguments of `AttackSuite`.

    Raises:
        UserError: where there is no such run or attack, or the federation is not trained.
    """
    suite = AttackSuite(None if attacks is None else list(attacks), **options)
    if isinstance(target, FederatedModule):
        with reported(target._trainer is not None and target.trainer.progress_bar_callback is not None):
            return Audit(tuple(_in_memory(target, suite.callbacks)))
    run = target if isinstance(target, FinishedRun) else FinishedRun(target, trust)
    return attack_run(run, suite)


def attack_run(
    run: FinishedRun,
    suite: AttackSuite,
    tracker: RoundLogger | None = None,
    attempt: Attempt | None = None,
    shown: bool | None = None,
) -> Audit:
    """Attack a finished run; every result is written to its folder at once, to which nothing else writes meanwhile.

    Results of an earlier attempt at the same attacks are not repeated. Progress is shown on the terminal if so `shown`,
    or as the run itself showed its own.
    """
    _ = run.transcript  # without which there is nothing to attack
    if not run.metrics:
        cause = f"metrics.jsonl of {run.folder.path} tells no round"
        raise UserError.of(cause, "it is unknown what was trained", "take the file from a copy, or train the run again")
    results: list[Result] = []
    if shown is None:
        shown = (run.config.get("trainer") or {}).get("enable_progress_bar") is not False
    with run.folder.locked(), reported(shown, run.folder.path / PROGRESS_LOG):
        for part, callback in enumerate(suite.callbacks):
            kept = None if attempt is None else attempt.results(part, RESULT_KINDS)
            own = list(_saved(run, callback, part, attempt)) if kept is None else kept
            for kind in dict.fromkeys(map(type, own)):
                conclude(run.folder, [result for result in own if type(result) is kind], tracker=tracker)
            results += own
    return Audit(tuple(results))


def _saved(run: FinishedRun, callback: FederatedCallback, part: int, attempt: Attempt | None) -> Iterator[Result]:
    """The results of one callback, each of them saved and noted when it is there."""
    if attempt is not None and not isinstance(callback, MaliciousServer):
        run.run.federation.kept_findings = attempt.findings()
    for result in _attacked(run, callback):
        result.save(run.folder.path)
        if attempt is not None:
            attempt.note(result, part)
        yield result
    if attempt is not None:
        attempt.note_end(part)


def _attacked(run: FinishedRun, callback: FederatedCallback) -> Iterable[Result]:
    if isinstance(callback, MaliciousServer):
        return _actively(run, callback)
    federation = run.run.federation
    raise_all(callback.problems(federation))
    return callback.on_transcript(federation, run.transcript) or ()


def _in_memory(federation: FederatedModule, callbacks: Sequence[FederatedCallback]) -> Iterator[Result]:
    """Attack a federation in memory; what was not recorded, attacks cannot see."""
    if federation._trainer is None or not federation.trainer.current_epoch:
        remedy = "fit it first: Trainer(max_epochs=10).fit(federation, datamodule=Digits())"
        raise UserError.of("the federation is not trained", "there is nothing to attack", remedy)
    if active := [callback for callback in callbacks if isinstance(callback, MaliciousServer)]:
        raise UserError.of(
            f"{active[0].label} is the attack of a malicious server, and the training is over",
            "clients no longer respond",
            f"train with callbacks=[MaliciousServer({active[0].attack.name!r})], or attack the folder of a run",
        )
    federation.data.to(federation.device)
    with tempfile.TemporaryDirectory() as folder:
        transcript = federation.transcript
        if transcript is None:
            transcript, theta = Transcript(Path(folder)), federation.space.read(federation.net)
            transcript.record_aggregate(federation.trainer.current_epoch, theta)
            transcript.finish(federation.trainer.current_epoch)
            transcript.record_released(theta)
        for callback in callbacks:
            raise_all(callback.problems(federation))
            yield from callback.on_transcript(federation, transcript) or ()


# ---- attacks of a malicious server -----------------------------------------------------------------------------------


def _actively(finished: FinishedRun, server: MaliciousServer) -> list[Result]:
    """Repeat the last rounds of a run with a malicious server; an attack that is refused gives the reason as result."""
    rounds = len(finished.metrics)
    try:
        return _repeated_rounds(finished, server, rounds)
    except UserError as error:
        attack = server.attack
        conditions = ReconstructionConditions(attack.name, server.label, "malicious server", attack.sees, rounds, ())
        return [ReconstructionRecord.of(ReconstructionFinding(conditions, NotAvailable(explained(error))))]


def _repeated_rounds(finished: FinishedRun, server: MaliciousServer, rounds: int) -> list[Result]:
    first = max(1, rounds - server.attack.rounds + 1)
    server.round = first
    run = finished.rebuilt()
    trainer, transcript = run.trainer, finished.transcript
    others = [callback for callback in trainer.callbacks if not _watches(callback)]  # type: ignore[attr-defined]
    trainer.callbacks = [*others, server]  # type: ignore[attr-defined]
    trainer.limit_val_batches, trainer.fit_loop.max_epochs = 0, rounds
    at_round(run, first - 1)
    federation = run.prepared()
    federation.evaluation = replace(federation.evaluation, clients=False)
    if federation.personal:
        server.remarks = ("rounds are repeated: what clients keep to themselves starts anew",)
    if not transcript.server_view().readable(first):
        reason = "the server adds ciphertexts and cannot read the sum"
        return [ReconstructionRecord.of(server.unavailable(federation, reason))]
    sent = transcript.client_view().broadcast(first).to(federation.device)
    inserted = federation.space.size - len(sent)  # layers that this server puts in front and that are still 0
    federation.space.write(federation.net, pad(sent, (inserted, 0)))
    repeated = f"rounds {first} to {rounds}" if first < rounds else f"round {rounds}"
    print(f"repeating {repeated} of {finished.folder.path} with a malicious server: {server.label}", flush=True)
    try:
        with redirect_stdout(StringIO()):  # results are shown together with those of other attacks
            trainer.fit(federation, datamodule=run.data)
    except SystemExit:  # how Lightning ends an interrupted run
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from None
    return federation.results


def _watches(callback: object) -> bool:
    """Whether a callback of the run is no part of what clients and server do."""
    return isinstance(callback, FederatedCallback) and callback.kind != "defense"
