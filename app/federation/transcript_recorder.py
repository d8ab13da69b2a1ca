"""Keeps what adversaries could see, for attacks after the run."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator
from functools import partial
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.utilities import rank_zero_only

from app.common.errors import Problem
from app.federation.channels.base import Aggregate, Form, Message
from app.federation.channels.tapped import TappedChannel
from app.federation.collusion import drawn_colluders
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.kept_round import HIDDEN
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.federation.private_coordinates import uploaded_keys
from app.federation.transcript import Transcript, TranscriptSettings

DEFAULT_SETTINGS = TranscriptSettings()


class TranscriptRecorder(FederatedCallback):
    """Records broadcasts and messages of the rounds that attacks will need, straight to disk.

    Example::

        Trainer(callbacks=[TranscriptRecorder("runs/mine/transcript", TranscriptSettings(last=2))])

    Args:
        folder: where to keep it; by default a temporary folder that is deleted with this object.
        settings: which rounds to keep.
        announce: whether to print before the first round how much will be written.
    """

    kind = "recorder"

    def __init__(
        self,
        folder: str | Path | None = None,
        settings: TranscriptSettings = DEFAULT_SETTINGS,
        announce: bool = True,
    ) -> None:
        self._chosen, self._settings, self._announce = folder, settings, announce
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._transcript = Transcript(Path())  # in which nothing is recorded before `setup`
        self._open_end = False
        self._colluders: tuple[int, ...] = ()

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if missing := [round_ for round_ in self._settings.rounds if not 1 <= round_ <= federation.rounds]:
            yield Problem(
                f"round {missing[0]} is to be kept in the transcript, of {federation.rounds}",
                "there is no such round, and an attack on it would find nothing",
                "keep earlier rounds (--transcript.rounds), or train longer (--trainer.max_epochs)",
            )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        if self._chosen is None and self._temporary is None and trainer.is_global_zero:
            self._temporary = tempfile.TemporaryDirectory(prefix="rampart-transcript-")
        chosen = self._chosen or (self._temporary.name if self._temporary is not None else "")
        folder = Path(trainer.strategy.broadcast(str(chosen)))  # all processes write to the same one
        pl_module.transcript = self._transcript = Transcript(folder)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        # with an unknown last round, a window of rounds is kept on the way
        stopping = any(isinstance(callback, (EarlyStopping, Timer)) for callback in callbacks)
        self._open_end = stopping or any(callback.may_stop for callback in federated_callbacks(trainer))
        self._watch_colluders(pl_module)

    def _watch_colluders(self, federation: FederatedModule) -> None:
        """Prepare to record what participants would tell, where the channel hides it from the server."""
        others = federated_callbacks(federation.trainer)
        count = max([self._settings.colluding, *(callback.joined_by for callback in others)])
        self._colluders = ()
        if count == 0:
            return
        federation.prepare()
        self._colluders = drawn_colluders(federation.seed, len(federation.client_pool.sizes), count)
        if federation.channel.form == "masked":
            federation.channel = TappedChannel(federation.channel, partial(self._record_sum, federation))

    def _record_sum(self, federation: FederatedModule, aggregate: Aggregate) -> None:
        round_ = federation.plan.round + 1
        if self._recording(round_, federation):
            change = aggregate.weight * (aggregate.mean - federation.theta)
            rank_zero_only(self._transcript.record_sum)(round_, change, aggregate.weight)

    def expected_bytes(self, federation: FederatedModule) -> int:
        """Size of the transcript on disk at the end of the run."""
        kept = [round_ for round_ in range(1, federation.rounds + 1) if self._wanted(round_, federation)]
        total = 0
        for round_ in kept:
            plan = federation.plan_of(round_ - 1)
            known: dict[Hashable, int] = {}  # bytes of the values, by what is uploaded; equal indices are kept once
            for client, key in uploaded_keys(federation, plan).items():
                if key not in known:
                    cells = int(federation.personal.shared(plan.index(client)).sum())
                    known[key] = 4 * cells
                    total += 4 * cells if cells != federation.space.size else 0
                total += known[key] if self._keeps_values(federation, client) else 0
        return total + (2 * len(kept) + 1) * federation.space.size * 4

    def _keeps_values(self, federation: FederatedModule, client: int) -> bool:
        """Whether the values of a client's uploads are recorded."""
        form = federation.channel.form
        return form not in HIDDEN or client in self._colluders or (form == "ciphertext" and bool(self._colluders))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        rank_zero_only(self._forget)(trainer.current_epoch, pl_module)
        trainer.strategy.barrier("transcript")  # nobody records before the old messages are gone
        if self._announce:
            rank_zero_only(print)(
                f"transcript for attacks: about {self.expected_bytes(pl_module) / 1e6:.1f} MB", flush=True
            )

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        if self._recording(plan.round + 1, federation):
            record = rank_zero_only(self._transcript.record_broadcast)
            record(plan.round + 1, federation.theta, federation.channel.form)

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        if not self._recording(message.round + 1, federation):
            return
        self._transcript.record_message(message, federation.space.size)
        if message.opens is not None and message.form in HIDDEN and self._keeps_values(federation, message.client):
            form: Form = "opened" if message.form == "ciphertext" else "plain"
            self._transcript.record_own(message, form, *message.opens(), federation.space.size)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        round_ = pl_module.plan.round + 1
        if self._recording(round_, pl_module):
            own = None if trainer.is_global_zero else self._transcript.hand_over(round_)
            parts = [part for part in gather(own) if part is not None]  # of the other processes, on the disk
            pl_module.helpers.run(partial(self._conclude, pl_module, round_, parts))
        oldest = round_ - self._settings.last
        if self._open_end and oldest > 0 and not self._asked_for(oldest, pl_module):
            rank_zero_only(self._transcript.forget)(oldest)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._transcript.discard()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._transcript.discard()

    def _conclude(self, federation: FederatedModule, round_: int, parts: list[Path]) -> None:
        self._transcript.record_aggregate(round_, federation.space.read(federation.net))
        self._transcript.finish(round_, parts)
        for callback in federation.hooks.callbacks:
            federation.hooks.deliver(
                callback.on_round_kept(federation, self._transcript, round_), f"after round {round_}"
            )

    def _forget(self, done: int, federation: FederatedModule) -> None:
        """Rounds that will be repeated, and those that were the last ones of a run that now goes on."""
        self._transcript.forget_unfinished()
        for kept in self._transcript.rounds:
            if kept > done or not self._recording(kept, federation):
                self._transcript.forget(kept)

    def _recording(self, round_: int, federation: FederatedModule) -> bool:
        return (self._open_end and self._settings.last > 0) or self._wanted(round_, federation)

    def _wanted(self, round_: int, federation: FederatedModule) -> bool:
        return self._settings.wanted(round_, federation.rounds) or self._asked_for(round_, federation)

    def _asked_for(self, round_: int, federation: FederatedModule) -> bool:
        if round_ in self._settings.rounds:
            return True
        return any(round_ in callback.rounds_to_keep(federation.rounds) for callback in federation.hooks.callbacks)
