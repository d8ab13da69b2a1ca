"""The hooks of a federation: what a defense, an attack or a recorder may do, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from lightning.pytorch import Callback, Trainer
from torch import Tensor
from tqdm import tqdm

from app.common.described import Described
from app.common.errors import Problem
from app.common.progress import reported
from app.federation.channels.base import Aggregate, Message, Update
from app.federation.plan import Plan
from app.federation.transcript import Transcript
from app.privacy.ledger import Spend
from app.privacy.statements import ChannelStatement, PrivacyStatement
from app.privacy.traits import Trait
from app.result import Result

if TYPE_CHECKING:
    from app.federation.client import ClientModule
    from app.federation.module import FederatedModule
    from app.models.base import ScalableNet


class Knob(NamedTuple):
    """How strong a defense is: one of its options, and values of it from weak to strong that are worth comparing."""

    option: str
    values: tuple[float, ...]


class Around(NamedTuple):
    """Where to search an option: from the recipe's value over `below` to the value times `above`, both at least 1."""

    below: float
    above: float


KINDS = ("defense", "attack", "recorder")
"""Kinds of callbacks, in the order in which their hooks are called."""


class FederatedCallback(Described, Callback):
    """A Lightning callback with hooks inside a round: for defenses, attacks and recorders.

    Override the hooks you need, report wrong settings in `problems`, and keep state in `state_dict`. Hooks are called
    for defenses first, then attacks, then recorders, each in the order in which they are given.

    `on_client_start`, `client_loss`, `client_penalty` and `on_client_end` run where the client is trained, which may be
    a worker thread: they may change nothing but the client they get. All other hooks run one at a time in the main
    thread, updates in the order of the plan. With several processes, every process calls them for its own clients.
    """

    kind: ClassVar[Literal["defense", "attack", "recorder"]] = "defense"
    """Defenses change what is learnt or sent, attacks play an adversary, recorders only watch."""

    vectorisable: bool = False
    """Whether `client_loss` and `client_penalty` may be called for many clients at once under `torch.func.vmap`.

    Leave it False for callbacks that use `on_client_start`, `on_client_end` or the client's identity.
    """

    given_name: str = "NAME"
    """What the user calls it under `--defenses` or `--attacks`, for messages that name an option."""

    knob: ClassVar[Knob | None] = None
    """What makes a defense stronger, for `sweep: default` of a comparison; None where nothing does."""

    tuned: ClassVar[Mapping[str, Around]] = {}
    """Options besides the knob that accuracy depends on, for `tune` of a comparison, and where to search them.

    They are its own (`clip`), or those of the training that it calls for (`model.local.batch_size`). What makes it
    stronger or weaker is not among them.
    """

    may_stop: ClassVar[bool] = False
    """Whether it may end the run before its last round."""

    joined_by: int = 0
    """Participants that help the adversary of an attack, whose own uploads the transcript has to hold."""

    unnoised: ClassVar[Mapping[str, str]] = {}
    """Measurements that are computed of private data without noise, by name, and what they are in words.

    Where a budget is promised they stay in the run's own files, and no logger gets them.
    """

    # ---- before the first round ------------------------------------------------------------------------------------

    def traits(self) -> frozenset[Trait]:
        """What it does to privacy, as far as other parts of a run or an adaptive attacker must know."""
        return frozenset()

    def on_data(self, federation: FederatedModule) -> None:
        """Before the clients are counted: their data are dealt, and may be added to (`federation.data.insert`)."""

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        """Problems of its settings, once the federation's data and network are known."""
        return ()

    def ships(self, federation: FederatedModule, net: ScalableNet) -> ScalableNet:
        """The network that clients get the code of; a dishonest server may put other layers in front of it."""
        return net

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        """What it does, and how strongly, that may keep a federation from learning; the remedy weakens it."""
        return None

    def restore_spends(self, spends: Iterable[Spend]) -> None:
        """Before the first round of a run that goes on: what it has released so far, in all attempts at its rounds."""

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        """Before the clients of a round are trained."""

    def on_spend(self, trainer: Trainer, federation: FederatedModule, spend: Spend) -> None:
        """Before something leaves that costs privacy budget, on all processes; when it returns, the release may leave.

        A later spend of the same mechanism, round and attempt takes the place of the one before.
        """

    def withdraws(self, federation: FederatedModule, client: int) -> bool:
        """Whether a client of the plan stays out of the current round, for example because its budget is spent."""
        return False

    def announces(self, federation: FederatedModule, plan: Plan) -> Tensor | None:
        """The model that a dishonest server claims to send to all clients in a round; None for its real one."""
        return None

    def on_broadcast(self, trainer: Trainer, federation: FederatedModule, client: int, vector: Tensor) -> None:
        """Before the server sends `vector` (the client's coordinates) to one client; edit it in place."""

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        """Before local training, with the submodel loaded.

        May replace `client.net`, `client.optimizer`, `client.batches` and `client.take_step`. A client whose
        `client.refusal` is set to a reason does not take part in the round.
        """

    def client_loss(
        self,
        federation: FederatedModule,
        client: ClientModule,
        batch: tuple[Tensor, Tensor],
        logits: Tensor,
        loss: Tensor,
    ) -> Tensor:
        """In each local step: the loss to minimise, given the loss so far; a mean over the samples of the batch."""
        return loss

    def client_penalty(self, federation: FederatedModule, client: ClientModule) -> Tensor:
        """In each local step: a term of the loss that does not depend on data, such as a norm of the parameters."""
        raise NotImplementedError

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        """After local training; undo what `on_client_start` changed."""

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        """Before an update is uploaded; edit `update.vector` in place."""

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        """After the server has received a message."""

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        """After aggregation; edit `aggregate.mean` in place. All processes call it with the same aggregate."""

    # ---- what it tells ---------------------------------------------------------------------------------------------

    def measurements(self) -> Mapping[str, float]:
        """Numbers of the round that has just ended, by name, equal on all processes; added to its metrics."""
        return {}

    def unplanned(self, federation: FederatedModule, round_: int, metric: str) -> bool:
        """Whether a metric of an earlier round (from 1) was measured only because the run was to end there."""
        return False

    def costs(self) -> Mapping[str, float]:
        """Costs of the round that has just ended, by name, equal on all processes; they add up over rounds."""
        return {}

    def on_round_end(
        self,
        trainer: Trainer,
        federation: FederatedModule,
        metrics: Mapping[str, float],
        costs: Mapping[str, float],
    ) -> None:
        """After a round, with everything that was measured in it; on all processes."""

    def statement(self, federation: FederatedModule) -> PrivacyStatement | None:
        """The privacy budget spent so far, where the defense guarantees differential privacy."""
        return None

    def channel_statement(self, federation: FederatedModule) -> ChannelStatement | None:
        """What the server cannot see, where the defense replaces the channel."""
        return None

    # ---- the transcript, and the end of the run --------------------------------------------------------------------

    def rounds_to_keep(self, rounds: int) -> set[int]:
        """Rounds (counted from 1, of `rounds`) whose transcript the callback needs."""
        return set()

    def on_round_kept(
        self, federation: FederatedModule, transcript: Transcript, round_: int
    ) -> Iterable[Result] | None:
        """After a round (counted from 1) whose transcript is kept, on the first process only; may yield results."""

    def results(self, federation: FederatedModule) -> Iterable[Result]:
        """After the last round, on all processes: what it has measured."""
        return ()

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterable[Result] | None:
        """After the last round, on the first process only: attack the transcript, in an adversary's view of it.

        May yield results, each as soon as there is one. Work that takes long can be shared with the other processes by
        `federation.helpers.share`.
        """

    def on_result(self, trainer: Trainer, federation: FederatedModule, result: Result) -> None:
        """After any callback has yielded a result; on the processes that have it."""

    def on_results(self, trainer: Trainer, federation: FederatedModule, results: Sequence[Result], when: str) -> None:
        """After a callback has yielded all its results; `when` says after which round, and is empty for the last."""

    def on_run_end(self, trainer: Trainer, federation: FederatedModule) -> None:
        """After the last round, when all results are there."""


class RoundHooks:
    """Calls the hooks of a trainer's federated callbacks, in order."""

    def __init__(self, trainer: Trainer, federation: FederatedModule) -> None:
        self._trainer = trainer
        self._federation = federation
        self.callbacks = sorted(federated_callbacks(trainer), key=turn)

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self._trainer, self._federation, *arguments)

    def client_hooks(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """A hook of local training of the callbacks that override it, bound; `on_client_end` in reverse order."""
        callbacks = overriding(self.callbacks, hook)
        ordered = callbacks[::-1] if hook == "on_client_end" else callbacks
        bound = (self._trainer, self._federation) if hook.startswith("on_") else (self._federation,)
        return tuple(partial(getattr(callback, hook), *bound) for callback in ordered)

    def withdrawn(self, client: int) -> bool:
        return any(callback.withdraws(self._federation, client) for callback in self.callbacks)

    def announced(self, plan: Plan) -> Tensor:
        """The model that the server claims to send to all clients in a round; a dishonest one may claim another."""
        claims = (callback.announces(self._federation, plan) for callback in self.callbacks)
        return next((claim for claim in claims if claim is not None), self._federation.theta)

    def measurements(self) -> dict[str, float]:
        return {name: value for callback in self.callbacks for name, value in callback.measurements().items()}

    def costs(self) -> dict[str, float]:
        return {name: value for callback in self.callbacks for name, value in callback.costs().items()}

    def channel_statements(self) -> list[ChannelStatement]:
        made = (callback.channel_statement(self._federation) for callback in self.callbacks)
        return [statement for statement in made if statement is not None]

    def deliver(self, results: Iterable[Result] | None, when: str = "") -> None:
        """Pass results on, one by one and all together, and print them; a callback that yields none is passed over."""
        delivered: list[Result] = []
        for result in results or ():
            self.call("on_result", result)
            delivered.append(result)
        self._federation.results += delivered
        for kind in dict.fromkeys(type(result) for result in delivered):
            own = [result for result in delivered if type(result) is kind]
            if self._trainer.is_global_zero and (text := kind.text(own)):
                tqdm.write(f"\n{kind.kind}{', ' + when if when else ''}\n{text}\n")
            self.call("on_results", own, when)

    def conclude(self) -> None:
        """Collect the results of the run: recorders first, with all processes, then attacks on the first one.

        The others help it with work that attacks share (`FederatedModule.helpers`).
        """
        federation, first = self._federation, self._trainer.is_global_zero
        shown = first and self._trainer.progress_bar_callback is not None
        with reported(shown, federation.progress_log if first else None):
            for callback in self.callbacks:
                self.deliver(callback.results(federation))
            if federation.transcript is not None:
                federation.helpers.run(partial(self._attack, federation.transcript))
            self.call("on_run_end")

    def _attack(self, transcript: Transcript) -> None:
        federation = self._federation
        transcript.record_released(federation.space.read(federation.net))
        for callback in self.callbacks:
            self.deliver(callback.on_transcript(federation, transcript))

    def vectorisation_obstacles(self) -> list[str]:
        """Callbacks because of which clients cannot be trained in one vectorised call."""
        hooks = ("on_client_start", "client_loss", "client_penalty", "on_client_end")
        callbacks = [callback for hook in hooks for callback in overriding(self.callbacks, hook)]
        names = dict.fromkeys(type(callback).__name__ for callback in callbacks if not callback.vectorisable)
        return [f"{name} acts on clients one by one" for name in names]


def turn(callback: Callback) -> int:
    """When a callback's hooks are called: by kind; those of Lightning together with recorders."""
    return KINDS.index(callback.kind if isinstance(callback, FederatedCallback) else "recorder")


def federated_callbacks(trainer: Trainer) -> list[FederatedCallback]:
    """The trainer's callbacks with hooks inside a round, in order."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, FederatedCallback)]


def overriding(callbacks: list[FederatedCallback], hook: str) -> list[FederatedCallback]:
    """The callbacks that override `hook`."""
    return [callback for callback in callbacks if getattr(type(callback), hook) is not getattr(FederatedCallback, hook)]
