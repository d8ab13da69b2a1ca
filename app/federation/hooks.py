"""The hooks of a federation's round: what a defense, an observer or an active attack may do, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from app.federation.channel import Aggregate, Message, Update
from app.federation.plan import Plan
from app.federation.transcript import Transcript

if TYPE_CHECKING:
    from app.federation.client import ClientModule
    from app.federation.module import FederatedModule


class FederatedCallback(Callback):
    """A Lightning callback that also hears what happens inside a round.

    Override the one or two hooks you need, fail in `setup` with an error that names the remedy, and keep state in
    `state_dict`. Callbacks run in the order in which they are given.

    `on_client_start`, `client_loss` and `on_client_end` are called where the client is trained, which may be a worker
    thread: touch only the client at hand there. All other hooks run one at a time in the main thread, updates in the
    order of the plan. With several processes every process hears its own clients.
    """

    kind: ClassVar[Literal["defense", "observer"]] = "defense"
    """Defenses change what is learnt or sent; observers only watch."""

    vectorisable: ClassVar[bool] = False
    """Whether `client_loss` may be called for many clients at once under `torch.func.vmap`.

    Leave it False for callbacks that use `on_client_start`, `on_client_end` or the client's identity.
    """

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        """Before the clients of a round are trained."""

    def on_broadcast(self, trainer: Trainer, federation: FederatedModule, client: int, vector: Tensor) -> None:
        """The server is about to send `vector` (the client's cells) to one client; edit it in place."""

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        """Submodel loaded, local training about to start; may replace `client.optimizer` and `client.batches`."""

    def client_loss(
        self,
        federation: FederatedModule,
        client: ClientModule,
        batch: tuple[Tensor, Tensor],
        logits: Tensor,
        loss: Tensor,
    ) -> Tensor:
        """Each local step: the loss to minimise, given the loss so far."""
        return loss

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        """Local training is over; undo what `on_client_start` changed."""

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        """An update is ready; edit `update.vector` in place."""

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        """The server has received a message."""

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        """The aggregate is ready; edit `aggregate.mean` in place."""

    def rounds_to_keep(self, rounds: int) -> set[int]:
        """Rounds (counted from 1) of so many whose transcript the callback will need."""
        return set()

    def on_round_kept(self, federation: FederatedModule, transcript: Transcript, round_: int) -> None:
        """A round (counted from 1) is over and its transcript complete; only for rounds that are kept.

        Called on the first process only.
        """

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> None:
        """The run is over and its transcript complete: attacks take the view of the adversary they play.

        Called on the first process only.
        """


class RoundHooks:
    """Calls the hooks of a trainer's federated callbacks, in order."""

    def __init__(self, trainer: Trainer, federation: FederatedModule) -> None:
        self._trainer = trainer
        self._federation = federation
        everyone: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self.callbacks = [callback for callback in everyone if isinstance(callback, FederatedCallback)]

    def call(self, hook: str, *arguments: Any) -> None:
        """Call one of the main thread's hooks on every callback."""
        for callback in self.callbacks:
            getattr(callback, hook)(self._trainer, self._federation, *arguments)

    def client_hooks(self, hook: str) -> tuple[Callable[[ClientModule], None], ...]:
        """`on_client_start` or `on_client_end` (in reverse order, as one unwraps) of those that override it, bound."""
        callbacks = overriding(self.callbacks, hook)
        ordered = callbacks[::-1] if hook == "on_client_end" else callbacks
        return tuple(partial(getattr(callback, hook), self._trainer, self._federation) for callback in ordered)

    def loss_hooks(self) -> tuple[Callable[[ClientModule, tuple[Tensor, Tensor], Tensor, Tensor], Tensor], ...]:
        """`client_loss` of those that override it, bound."""
        return tuple(
            partial(callback.client_loss, self._federation) for callback in overriding(self.callbacks, "client_loss")
        )

    def vectorisation_obstacles(self) -> list[str]:
        """Why clients cannot be trained in one call, as far as callbacks are concerned."""
        hooks = ("on_client_start", "client_loss", "on_client_end")
        callbacks = [callback for hook in hooks for callback in overriding(self.callbacks, hook)]
        names = dict.fromkeys(type(callback).__name__ for callback in callbacks if not callback.vectorisable)
        return [f"{name} acts on clients one by one" for name in names]


def overriding(callbacks: list[FederatedCallback], hook: str) -> list[FederatedCallback]:
    """Those of the callbacks that override `hook`."""
    return [callback for callback in callbacks if getattr(type(callback), hook) is not getattr(FederatedCallback, hook)]
