"""Tripwire: clients inspect the model they receive and refuse to train on one that looks made to extract their data."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.common.errors import Problem
from app.common.ranges import Positive, Several, Share
from app.common.seeding import torch_generator
from app.crypto.commitment import Commitment
from app.crypto.contributors import Contributors
from app.federation.channels.base import Aggregate, Message
from app.federation.client import ClientModule
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.parameters import WidthNets, plain_array
from app.federation.plan import Plan
from app.federation.reports import listed
from app.privacy.model_checks import (
    REASONS,
    Check,
    gradient_ratio,
    least_distinct_rows,
    least_variation,
    repeated_share,
    without_dropout,
)
from app.privacy.traits import Trait

Coordinates = tuple[Tensor, Tensor]
"""Coordinates of the server's vector (int64, ascending) and their values."""


class Tripwire(FederatedCallback):
    """Clients check what the server sends, and refuse to train on a model that looks made to extract their data.

    A client uses only what it has: the model it received, the one of the last round in which its update arrived (kept
    with its coordinates for every client and saved with the run), its data, the public seed and the announced method.

    It aims at a malicious server. Not detected: a manipulated model that is sent to all clients and committed to, as
    long as it changes from round to round and its weights look like weights. Trap weights (Boenisch et al. 2023) do,
    unless their rows are copies of each other. A server that has converged, or learns nothing at all, repeats its model
    honestly; its clients then refuse, and it will never move again.

    Example::

        rampart fit --defenses.tripwire Tripwire --defenses.tripwire.action warn

    Args:
        repeated: alarm if at least this share of a client's parameters, in (0, 1], has exactly the value it had in the
            last round in which the client's update arrived; others have moved the model since. For this and the
            following checks, null or false switches the check off.
        plan: alarm if the submodel is not the one that the announced method gives for the public seed.
        distinct_rows: alarm (`constant_fill`) if a layer has a smaller share of distinct rows, in (0, 1].
        variation: alarm (`constant_fill`) if the standard deviation of a layer's weights is less than this many times
            their absolute mean, above 0: 0 for a constant, 0.17 for noise of 30 % around it, 0.58 for an honest start
            between 0 and a bound.
        gradient_suppression: alarm if, on the client's own samples, the gradient of the first layer is shorter than
            this many times that of the last, above 0: a constant in single precision has 1e-7. Trap weights do not
            suppress gradients; small positive weights in many layers do, however honest.
        commitment: the server publishes digests of its model at the start of a round, by which clients notice when
            they do not all receive coordinates of one model.
        probe_samples: samples for the gradients, at least 2, at most what the client has.
        action: a client that is alarmed does not train in this round (`refuse`), or trains and only warns (`warn`).
        architecture: alarm if the network has layers that the announced one does not have, as imprint attacks need
            (Fowl et al. 2022). Clients that run whatever code the server ships have nothing to compare it with.
    """

    unnoised: ClassVar = {
        "tripwire/alarms": "number of clients that were alarmed",
        "tripwire/gradient_suppression": "number of clients whose gradients were suppressed",
    }

    def __init__(
        self,
        repeated: Share | None = 1.0,
        plan: bool = True,
        distinct_rows: Share | None = 0.9,
        variation: Positive | None = 0.3,
        gradient_suppression: Positive | None = 1e-5,
        commitment: bool = True,
        probe_samples: Several = 32,
        action: Literal["refuse", "warn"] = "refuse",
        architecture: bool = True,
    ) -> None:
        self.architecture = architecture
        self.repeated, self.plan, self.commitment = repeated, plan, commitment
        self.distinct_rows, self.variation, self.gradient_suppression = distinct_rows, variation, gradient_suppression
        self.probe_samples, self.action = probe_samples, action
        self._memory: dict[int, Coordinates] = {}
        self._received: dict[int, Coordinates] = {}
        self._arrived: dict[int, Coordinates] = {}
        self._alarms: dict[int, tuple[Check, ...]] = {}
        self._expected: dict[Hashable, Tensor] = {}
        self._nets: WidthNets | None = None
        self._numbers: dict[str, float] = {}
        self._digest_bytes = 0.0

    # ---- before the first round ------------------------------------------------------------------------------------

    def traits(self) -> frozenset[Trait]:
        private = self.gradient_suppression is not None and self.action == "refuse"
        return frozenset({"refuses-by-data"}) if private else frozenset()

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        if not self._active:
            remedy = "leave the defense out, or switch one on, such as --defenses.NAME.plan true"
            yield Problem("all checks of Tripwire are switched off", "clients would notice nothing", remedy)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._method = pl_module.method  # a malicious server, whose setup comes later, may use another one

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._nets = WidthNets(pl_module.net, without_dropout)  # received models are tried in networks of their own

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._nets = None

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._received, self._arrived, self._alarms, self._expected = {}, {}, {}, {}
        if self.commitment:
            self._holders = Contributors.of(federation.space.size, self._received_indices(federation, plan))
            self._published = Commitment.to(plan.round, self._holders, plain_array(federation.hooks.announced(plan)))
            self._digest_bytes = float(self._published.size * len(plan.participants))

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        assert client.received is not None
        assert client.index is not None
        coordinates = _sent_parameters(federation, client.index.cpu(), client.received.cpu())
        failed = tuple(self._failed_checks(federation, client, coordinates))
        if failed:
            self._alarms[client.client] = failed
            if self.action == "refuse":
                client.refusal = "; ".join(filter(None, [client.refusal, *(REASONS[check] for check in failed)]))
        if self.repeated is not None:
            self._received[client.client] = coordinates

    def on_message(self, trainer: Trainer, federation: FederatedModule, message: Message) -> None:
        if message.client in self._received:
            self._arrived[message.client] = self._received.pop(message.client)

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        parts = gather((self._arrived, self._alarms))
        for arrived, _ in parts if aggregate.updates else ():  # an aborted round is forgotten
            self._memory.update(arrived)
        alarms = {client: failed for _, part in parts for client, failed in part.items()}
        self._numbers = {"tripwire/alarms": float(len(alarms))}
        for check in self._active:
            self._numbers[f"tripwire/{check}"] = float(sum(check in failed for failed in alarms.values()))
        if self.action == "warn" and trainer.is_global_zero:
            _warn(federation.plan.round + 1, alarms)

    # ---- the checks ------------------------------------------------------------------------------------------------

    @property
    def _active(self) -> list[Check]:
        fill = self.distinct_rows is not None or self.variation is not None
        suppression = self.gradient_suppression is not None
        states = (self.architecture, self.repeated is not None, self.plan, fill, suppression, self.commitment)
        return [check for check, on in zip(get_args(Check), states, strict=True) if on]

    def _failed_checks(
        self, federation: FederatedModule, client: ClientModule, coordinates: Coordinates
    ) -> Iterator[Check]:
        """Checks that the model of a client fails; those that need no network come first."""
        assert client.index is not None
        if self.architecture and federation.inserted:
            yield "architecture"
        before = self._memory.get(client.client)
        if self.repeated is not None and before is not None and repeated_share(*before, *coordinates) >= self.repeated:
            yield "repeated"
        if self.plan and not torch.equal(client.index.cpu(), self._index(federation, federation.plan, client.client)):
            yield "plan"
        if self._is_filled(federation, client):
            yield "constant_fill"
        if self._is_suppressing(federation, client):
            yield "gradient_suppression"
        if self.commitment and not self._is_committed(federation, client):
            yield "commitment"

    def _index(self, federation: FederatedModule, plan: Plan, client: int) -> Tensor:
        """The client's coordinates by the announced method; several workers call it, so nothing is ever removed."""
        client_round = plan.client_round(client)
        key = self._method.key(client_round)
        index = self._expected.get(key)
        if index is None:
            index = self._method.index(federation.space, client_round)
            if len(self._expected) < 64:  # methods with one submodel per client must not fill the memory
                self._expected[key] = index
        return index

    def _is_filled(self, federation: FederatedModule, client: ClientModule) -> bool:
        weights = self._received_weights(federation, client)
        copied = self.distinct_rows is not None and least_distinct_rows(weights) < self.distinct_rows
        return copied or (self.variation is not None and least_variation(weights) < self.variation)

    def _is_suppressing(self, federation: FederatedModule, client: ClientModule) -> bool:
        if self.gradient_suppression is None:
            return False
        return self._gradient_ratio(federation, client) < self.gradient_suppression

    def _received_weights(self, federation: FederatedModule, client: ClientModule) -> list[Tensor]:
        """Weight tensors (two dimensions or more) that the server sent, without personal layers."""
        assert client.received is not None
        assert client.index is not None
        assert self._nets is not None
        _, flat = self._nets.of(federation.plan.rate(client.client))
        sent = federation.personal.shared(client.index)
        blocks = [block for block in flat.space.blocks if len(block.shape) > 1 and bool(sent[block.coordinates].all())]
        return [client.received[block.coordinates].view(block.shape) for block in blocks]

    def _gradient_ratio(self, federation: FederatedModule, client: ClientModule) -> float:
        """`gradient_ratio` on samples drawn by a separate generator, so that local training is not affected."""
        assert client.received is not None
        assert self._nets is not None
        net, flat = self._nets.of(federation.plan.rate(client.client))
        flat.write(client.received)
        draws = torch_generator(federation.seed, "probe", client.round, client.client)
        drawn = torch.randperm(client.samples, generator=draws)[: self.probe_samples]
        ids = federation.data.train_indices(client.client)[drawn].to(client.received.device)
        images, labels = federation.data.store.batch(ids, client.received.dtype)
        return gradient_ratio(net, client.label_loss(net(images), labels))

    def _received_indices(self, federation: FederatedModule, plan: Plan) -> dict[int, np.ndarray]:
        """Coordinates that the server has to send to every participant; clients of one submodel share one array."""
        arrays: dict[Hashable, np.ndarray] = {}
        indices: dict[int, np.ndarray] = {}
        for client in plan.participants:
            key = self._method.key(plan.client_round(client))
            if key not in arrays:
                index = self._index(federation, plan, client)
                arrays[key] = index[federation.personal.shared(index)].numpy()
            indices[client] = arrays[key]
        return indices

    def _is_committed(self, federation: FederatedModule, client: ClientModule) -> bool:
        assert client.received is not None
        assert client.index is not None
        values = plain_array(client.received[federation.personal.shared(client.index)])
        shown = self._published.shown(self._published.root, client.round)
        return shown and self._published.holds(self._holders, client.client, values)

    # ---- the results -----------------------------------------------------------------------------------------------

    def measurements(self) -> dict[str, float]:
        return self._numbers

    def costs(self) -> dict[str, float]:
        return {"tripwire/digest_bytes": self._digest_bytes} if self.commitment else {}

    def state_dict(self) -> dict[str, Any]:
        return {"clients": {str(client): list(coordinates) for client, coordinates in self._memory.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._memory = {int(client): (index, values) for client, (index, values) in state_dict["clients"].items()}


def _sent_parameters(federation: FederatedModule, index: Tensor, values: Tensor) -> Coordinates:
    """Parameters that the server sends, without buffers, which move by themselves, and personal coordinates."""
    kept = (index < federation.space.trainable) & federation.personal.shared(index)
    return (index, values) if bool(kept.all()) else (index[kept], values[kept])


def _warn(round_: int, alarms: Mapping[int, tuple[Check, ...]]) -> None:
    for check, reason in REASONS.items():
        clients = sorted(client for client, failed in alarms.items() if check in failed)
        if clients:
            warnings.warn(f"round {round_}: alarm of {listed(clients)}: {reason}", stacklevel=2)
