"""Secure aggregation: updates are masked, the masks cancel in the sum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer

from app.common.errors import Problem
from app.common.ranges import Bits, Count, Decay, Majority, Positive, Several
from app.common.wording import counted
from app.crypto.fixed_point import FixedPoint, Outside
from app.crypto.secure_aggregation.parameters import SECURITY_BITS, GraphSettings
from app.crypto.secure_aggregation.streams import word_for
from app.federation.channels.base import Aggregate
from app.federation.channels.integer_code import largest_sum
from app.federation.channels.masked import MaskedChannel, Masking
from app.federation.channels.release_guard import ReleaseGuard
from app.federation.execution.distributed import gather
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.plan import ClientPool
from app.federation.plan_audit.guard import GuardFinding, combination_problems, examine, guard_problems
from app.federation.plan_audit.release_ledger import PlanBlocks, ReleaseLedger
from app.federation.reports import listed
from app.privacy.settings import raised_problems
from app.privacy.statements import ChannelStatement
from app.privacy.traits import Trait


class SecureAggregation(FederatedCallback):
    """Secure aggregation (Bonawitz et al. 2017): the server sees sums of updates.

    Unequal submodels are summed coordinate by coordinate, which exposes clients where few of them train a coordinate:
    the plan is audited before the first round, and refused where that happens. Single sums hide single updates from an
    honest-but-curious server. Sums of several rounds over different clients can be solved for single updates if the
    model stands still: clients refuse to train again on a model, or a tensor of it, that they have trained on before
    (exactly the same values, in any order), and a ledger of all sums tells whom they would isolate. Against a server
    that changes its model by just a little, only noise helps. Sums and the released model are as open to attack as
    without it, and a malicious server that sends one manipulated model to all clients can still extract samples from a
    sum.

    Example::

        rampart fit --defenses.secagg SecureAggregation --defenses.secagg.k 3

    Args:
        k: fewest clients behind every sum, and fewest by which the clients behind a coordinate may change from one
            planned round to the next; at least 2. Either client of a sum of two can compute the other's part.
        allow_singletons: train although the plan exposes clients; what it exposes is recorded.
        guard: what to do about clients that combinations of the sums of several rounds isolate, if the model stood
            still: `warn` with names and numbers, or `strict`: refuse such a plan, and give up a round whose sums would
            do so after clients have dropped out.
        model_bound: masks cancel only among clients that received the same values, so that a server which sends
            different models gets noise.
        refuse_repeated: a client sends no second update for a model, or a tensor of it with 16 distinct values or more,
            that it has trained on before: for exactly the same values, in any order. A server that has converged, or
            learns nothing at all, repeats its model honestly; its clients then refuse, and it will never move again.
        threshold: share of a round's clients that must stay to the end, above 0.5 and at most 1; below it the round is
            aborted.
        bits: of one value with its sign, in [8, 32].
        range: largest change of a parameter in one round; the precision is range / 2^(bits - 1).
        outside: stop where a change is larger, or cut it to the range.
        max_weight: largest weight of a client under --model.server QFFL, whose weights are masked, too.
        attempts: how often a damaged message is sent before the client is left out of the round.
        neighbours: with how many clients each masks and shares its secrets (SecAgg+, Bell et al. 2020): `all`, a
            number, or `auto`: all below 128 clients in a round, and from there on as few as `dropouts` and `colluders`
            allow, with a chance of 2^-40 that a client is exposed and of 2^-20 that a round has to be given up.
        dropouts: share of a round's clients that may drop out where not all are neighbours.
        colluders: share of a round's clients, and of those behind every weight, that may help a server that lies, where
            not all are neighbours.
    """

    def __init__(
        self,
        k: Several = 2,
        allow_singletons: bool = False,
        guard: Literal["warn", "strict"] = "warn",
        model_bound: bool = True,
        refuse_repeated: bool = True,
        threshold: Majority = 2 / 3,
        bits: Bits = 24,
        range: Positive = 2.0,
        outside: Outside = "refuse",
        max_weight: Positive = 16.0,
        attempts: Count = 2,
        neighbours: Literal["auto", "all"] | Several = "auto",
        dropouts: Decay = 0.05,
        colluders: Decay = 0.1,
    ) -> None:
        self.k, self.guard, self.allow_singletons = k, guard, allow_singletons
        self.model_bound, self.refuse_repeated, self.threshold = model_bound, refuse_repeated, threshold
        self.point, self.outside = FixedPoint(bits, range), outside
        self.max_weight, self.attempts = max_weight, attempts
        self.graph = GraphSettings(neighbours, dropouts, colluders)
        self._channel: MaskedChannel | None = None
        self._guard = ReleaseGuard(guard == "strict", refuse_repeated)
        self._findings: list[GuardFinding] = []
        self._numbers: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"channel"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        wrong = list(self._setting_problems(federation.client_pool))
        yield from wrong
        if wrong:
            return
        yield from raised_problems(lambda: word_for(largest_sum(federation, self.point, self.max_weight)))
        blocks = PlanBlocks(federation)
        self._findings = examine(federation, self.k, blocks)
        self._guard.ledger = ReleaseLedger(federation, blocks, self.k)
        if not self.allow_singletons:
            yield from guard_problems(self._findings, self.model_bound)
        if self.guard == "strict":
            yield from combination_problems(self._guard.ledger)

    def _setting_problems(self, client_pool: ClientPool) -> Iterable[Problem]:
        if client_pool.most < 2:
            yield Problem(
                f"{client_pool.most} of {len(client_pool.sizes)} clients takes part in a round",
                "a sum over one client is its update, so every round would be given up",
                "raise --model.participation",
            )
        yield from self._graph_problems(client_pool.most)
        if self.guard == "strict" and self.allow_singletons:
            yield Problem(
                "SecureAggregation has guard strict and allow_singletons true",
                "one refuses what the other accepts",
                "set --defenses.NAME.guard warn, or --defenses.NAME.allow_singletons false",
            )

    def _graph_problems(self, clients: int) -> Iterable[Problem]:
        least = self.graph.parameters(clients)
        if isinstance(self.graph.neighbours, str) or (least and least.degree <= self.graph.neighbours):
            return
        yield Problem(
            f"{self.graph.neighbours} neighbours among {counted(clients, 'client')} are fewer than the "
            f"{least.degree if least else clients - 1} that withstand {self.graph.dropouts:.0%} of drop-outs and "
            f"{self.graph.colluders:.0%} of colluders",
            "the server could learn single updates, or rounds would be given up",
            "set --defenses.NAME.neighbours auto, or smaller --defenses.NAME.dropouts or --defenses.NAME.colluders",
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.prepare()
        settings = Masking(
            point=self.point,
            outside=self.outside,
            max_weight=self.max_weight,
            threshold=self.threshold,
            graph=self.graph,
            model_bound=self.model_bound,
            least=1 if self.allow_singletons else self.k,
            attempts=self.attempts,
            name=self.given_name,
        )
        self._channel = pl_module.channel = MaskedChannel(pl_module, settings, self._guard)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ledger = self._guard.ledger
        if ledger is not None and ledger.planned is not None and trainer.is_global_zero:
            warnings.warn(
                f"secure aggregation: {ledger.text(ledger.planned)}, if the model stood still. Against a server "
                "that nearly repeats its model, add differential privacy, or refuse such plans with "
                f"--defenses.{self.given_name}.guard strict.",
                stacklevel=2,
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._channel is not None:
            self._channel.end()

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        assert self._channel is not None
        self._numbers = {
            "secagg/dropped": float(self._channel.dropped),
            "secagg/given_up": float(self._channel.given_up),
            "secagg/clipped": self._channel.clipped_share,
            "secagg/refused": float(len(self._guard.refused)),
        }
        self._costs = {
            "secagg/protocol_bytes": float(self._channel.protocol_bytes),
            # the server's part of the protocol is in it, too
            "client_seconds/cryptography": sum(gather(federation.clock.seconds["channel"])),
        }
        if self._guard.refused and trainer.is_global_zero:
            warnings.warn(
                f"round {federation.plan.round + 1}: {listed(self._guard.refused)} refused to send an update: the "
                "model, or a tensor of it, is one that they have trained on before",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return self._guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._guard.load_state_dict(state_dict)

    def measurements(self) -> dict[str, float]:
        return self._numbers

    def costs(self) -> dict[str, float]:
        return self._costs

    def channel_statement(self, federation: FederatedModule) -> ChannelStatement:
        notes = [*self._repetition_notes(), "sums, and the models made of them, are as open to attack as without masks"]
        if not self.model_bound:
            notes.append("masks are not bound to the model: a server can send clients different models unnoticed")
        notes.append(
            "a server that sends the same manipulated model to all clients can still read single samples out of a sum; "
            "only differential privacy bounds that"
        )
        accepted = tuple(map(str, self._findings)) if self.allow_singletons else ()
        return ChannelStatement(
            mechanism=f"secure aggregation, threshold {self.threshold:.0%}, k = {self.k}",
            hides="a server that follows the protocol, and whose models differ from round to round, sees sums of "
            + ("updates, some of few clients" if accepted else f"at least {self.k} updates"),
            trusts="the registry of the clients' identity keys, which the server cannot change; "
            + self._trusted_clients(federation.client_pool.most),
            step=self.point.step,
            accepted=accepted,
            notes=tuple(notes),
        )

    def _trusted_clients(self, clients: int) -> str:
        """Which clients may help the server, in rounds of so many."""
        graph = self.graph.sparse(clients)
        if graph is None:
            return (
                f"fewer than {self.threshold:.0%} of a round's clients help a server that follows the protocol, fewer "
                f"than {2 * self.threshold - 1:.0%} one that lies about keys or about who has dropped out"
            )
        return (
            f"at most {self.graph.colluders:.0%} of a round's clients, and of those behind every weight, help the "
            "server, and they were chosen before the public randomness of the run was opened; a round with "
            f"{graph.degree} neighbours per client then exposes a client with a chance of at most 2^-{SECURITY_BITS}"
        )

    def _repetition_notes(self) -> list[str]:
        """What holds about the sums of several rounds, by what the server does to its model between them."""
        ledger: ReleaseLedger | None = self._guard.ledger
        repeated = (
            "against a server that repeats a model exactly: clients send no second update for a model, or a tensor of "
            "it, that they have trained on before"
        )
        notes = [
            repeated
            if self.refuse_repeated
            else "clients train on a model that is repeated exactly, and do not notice",
            "against a server that nearly repeats a model, sums of different clients can be solved for single updates; "
            "only noise (differential privacy) helps",
        ]
        if ledger is None:
            return notes
        found, when = (ledger.released, "so far") if self._numbers else (ledger.planned, "as planned")
        text = f"if the model stood still ({when}): {ledger.text(found)}; sums of different weights do not combine"
        return [*notes, text]
