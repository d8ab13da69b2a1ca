"""DP-SGD: clients clip every sample's gradient and add noise (Abadi et al. 2016)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer

from app.common.errors import Problem
from app.common.ranges import Bound, Count, Inside, NonNegative, Positive
from app.common.wording import counted
from app.federation.accounted import AccountedDefense
from app.federation.channels.base import Aggregate
from app.federation.client import Batch, ClientModule
from app.federation.execution.distributed import gather
from app.federation.hooks import Around, Knob
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.privacy.accounting import AccountantName, Steps, version
from app.privacy.budgets import Budgets, RoundOfSteps
from app.privacy.noise import NoiseSource, NoiseStream
from app.privacy.private_steps import ClippingMethod, Mechanism, PrivateSteps, unsupported_layers
from app.privacy.settings import accountant_problems, budget_problems, delta_problems, raised_problems
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait


class DPSGD(AccountedDefense):
    """Sample-level differential privacy by DP-SGD (Abadi et al. 2016, Algorithm 1), accounted over all rounds.

    The guarantee holds for every training sample, against the server and everybody after it; no client has to trust
    another. It does not hide how many samples a client has, nor that it takes part. A client whose budget is spent
    stays out; the run ends when all have spent theirs. Taking part in some rounds only saves budget, but the chance of
    not taking part does not: the server knows who takes part.

    Example::

        rampart fit --defenses.dp DPSGD --defenses.dp.target_epsilon 8
        rampart fit --defenses.dp DPSGD --defenses.dp.noise 1 --defenses.dp.clip 0.5

    Args:
        target_epsilon: budget of every client for the whole run, above 0. Without `noise`, the noise is chosen so that
            no client exceeds it in the planned rounds; with `noise`, clients stay out once it is spent. One of the two
            is needed.
        delta: in (0, 1), below one over the samples of every client; without a number, each client's own: a tenth of
            one over its samples, at most 1e-5.
        noise: standard deviation of the noise on the sum of a step's gradients over the clipping norm, at least 0.
        clip: Euclidean norm that every sample's gradient is scaled down to, over all layers together; infinite only
            with noise 0.
        accountant: `rdp`, or `prv`, which is tighter and slower.
        clipping: how per-sample gradients are computed, which changes speed only: `ghost` (ghost clipping, fastest),
            `hooks` (any layer), `ew` (torch's expanded weights).
        physical_batch: most samples that pass the network at once, at least 1, to bound memory; the steps stay the
            same.
        sampling: `poisson` draws every sample into a step independently; `shuffled` uses ordinary batches, for which
            epsilon is nominal.
        secret_noise: key noise and sampling by the operating system; such a run cannot be repeated.
    """

    knob = Knob("target_epsilon", (64, 16, 4, 1))
    tuned: ClassVar = {"clip": Around(10, 10), "model.local.batch_size": Around(1, 16)}
    may_stop = True

    def __init__(
        self,
        target_epsilon: Positive | None = None,
        delta: Inside | None = None,
        noise: NonNegative | None = None,
        clip: Bound = 1.0,
        accountant: AccountantName = "rdp",
        clipping: ClippingMethod = "ghost",
        physical_batch: Count | None = None,
        sampling: Literal["poisson", "shuffled"] = "poisson",
        secret_noise: bool = False,
    ) -> None:
        self.target_epsilon, self.delta, self.noise, self.clip = target_epsilon, delta, noise, clip
        self.accountant, self.clipping, self.physical_batch = accountant, clipping, physical_batch
        self.sampling = sampling
        self.budgets = Budgets(accountant, target_epsilon, delta)
        self.ledger = self.budgets.ledger
        self._source = NoiseSource(secret_noise)
        self._running: dict[int, PrivateSteps] = {}
        self._taken: list[int] = []
        self._staying_out: frozenset[int] = frozenset()
        self._numbers: dict[str, float] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"sample-dp", "trains-differently"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        wrong = [*self._budget_problems(max(federation.client_pool.sizes)), *self._training_problems(federation)]
        yield from wrong
        if not wrong:
            yield from self._planning_problems(federation)

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        if not (noise := self.noise if self.noise is not None else self.budgets.noise):
            return None
        weaker = "raise --defenses.NAME.target_epsilon" if self.noise is None else "lower --defenses.NAME.noise"
        cause = f"DPSGD adds noise of {noise:.3g} times clip {self.clip:g} to the sum of every step's gradients"
        return Problem(cause, remedy=f"{weaker}, give clients more samples per step, or try another clip")

    def _budget_problems(self, largest: int) -> Iterator[Problem]:
        yield from accountant_problems(self.accountant)
        yield from budget_problems("DPSGD", self.target_epsilon, self.noise, self.clip, "gradients")
        if self.delta is not None:
            count = f"the largest client has {counted(largest, 'sample')}"
            yield from delta_problems("DPSGD", self.delta, largest, count, "sample")

    def _training_problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if federation.local.clip_norm is not None:
            yield Problem(
                f"local.clip_norm is {federation.local.clip_norm} under DPSGD",
                "the gradient of every sample is clipped instead, so it would have no effect",
                "leave out --model.local.clip_norm and set --defenses.NAME.clip",
            )
        if layers := unsupported_layers(federation.net, self.clipping):
            yield Problem(
                f"DPSGD cannot tell the samples apart in {', '.join(layers)}",
                "their gradients could not be clipped one by one",
                "set --defenses.NAME.clipping hooks, which takes most layers, or choose another --model.net",
            )
        precision = federation.trainer.precision
        if precision == "bf16-true" or (precision == "bf16-mixed" and self.clipping == "ew"):
            yield Problem(
                f"precision {precision} under DPSGD with clipping {self.clipping}",
                "rounded sums would break the bound on what one sample can change",
                "set --trainer.precision 32-true, or bf16-mixed with --defenses.NAME.clipping ghost",
            )

    def _planning_problems(self, federation: FederatedModule) -> Iterator[Problem]:
        unplannable = list(raised_problems(lambda: self._plan(federation)))
        yield from unplannable
        if not unplannable and self.budgets.everybody_is_out:
            yield Problem(
                f"one round with noise {self.budgets.noise:.3g} costs more than epsilon {self.target_epsilon:g}",
                "nobody would ever train",
                "raise --defenses.NAME.noise (or leave it out) or --defenses.NAME.target_epsilon",
            )

    def _plan(self, federation: FederatedModule) -> None:
        """Choose the noise: as set, or the least that keeps to the budget in the planned rounds."""
        local, client_pool = federation.local, federation.client_pool
        passes = [local.steps_per_epoch(samples) for samples in client_pool.sizes]
        counts = [local.steps if local.steps is not None else local.epochs * batches for batches in passes]
        self.budgets.plan(list(map(RoundOfSteps, client_pool.sizes, passes, counts)))
        if self.noise is not None:
            self.budgets.noise = self.noise
        else:
            rounds = range(federation.rounds)
            self.budgets.noise = self.budgets.noise_for(
                Counter(client for round_ in rounds for client in client_pool.participants(round_))
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.noise is None and (used := self.ledger.latest_noise) is not None:
            self.budgets.noise = used  # a run that goes on keeps the noise that it was planned with
        if self.sampling == "shuffled" and trainer.is_global_zero:
            warnings.warn(
                "DPSGD: accounting assumes Poisson sampling, and these batches are shuffled, so epsilon is nominal. "
                f"Remedy: --defenses.{self.given_name}.sampling poisson.",
                stacklevel=2,
            )
        trainer.should_stop |= self.budgets.everybody_is_out

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._taken = []
        self._staying_out = frozenset(filter(self.budgets.is_out, plan.participants))
        training = [client for client in plan.participants if client not in self._staying_out]
        self.spend(federation, {client: self.budgets.steps(client) for client in training})

    def withdraws(self, federation: FederatedModule, client: int) -> bool:
        return client in self._staying_out

    def on_client_start(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        assert client.optimizer is not None
        steps, place = self.budgets.steps(client.client), (client.round, client.client)
        expected = client.samples * steps.rate if self.sampling == "poisson" else None
        mechanism = Mechanism(self.clip, steps.noise, self.clipping, self.physical_batch, expected)
        noise = self._source.stream(federation.seed, "dp-sgd", *place)
        private = PrivateSteps(client.net, client.optimizer, mechanism, noise)
        self._running[client.client] = private
        client.net = private.net
        client.take_step = partial(private.step, loss_of=client.data_loss, penalty=client.penalty)
        if self.sampling == "poisson":
            coins = self._source.stream(federation.seed, "poisson", *place)
            client.batches = _poisson_batches(client, steps, coins)

    def on_client_end(self, trainer: Trainer, federation: FederatedModule, client: ClientModule) -> None:
        private = self._running.pop(client.client)
        private.close()
        client.net, client.take_step = private.plain, client.plain_step
        if not client.refusal:  # a client that refused to train has taken no step
            self._taken.append(client.client)

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        self.settle(federation, [client for part in gather(self._taken) for client in part])
        spent = [value for _, value in self.budgets.spent(everything=False)]
        self._numbers = {
            "privacy/epsilon": max(spent, default=0.0),
            "privacy/epsilon_mean": sum(spent) / max(1, len(spent)),
            "privacy/withdrawn": float(self.budgets.out),
        }

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        if self.budgets.everybody_is_out and trainer.current_epoch + 1 < pl_module.rounds:
            trainer.should_stop = True
            if trainer.is_global_zero:
                warnings.warn(
                    f"DPSGD: all clients have spent their budget after {counted(trainer.current_epoch + 1, 'round')}; "
                    f"the run ends here. More noise (--defenses.{self.given_name}.noise) makes it last longer.",
                    stacklevel=2,
                )

    def measurements(self) -> dict[str, float]:
        return self._numbers

    def statement(self, federation: FederatedModule) -> PrivacyStatement:
        """The largest budget that a client has spent: clients hold different samples, so budgets do not add up."""
        rates = {self.budgets.of(client).rate for client in range(len(federation.client_pool.sizes))}
        drawn = "Poisson" if self.sampling == "poisson" else "shuffled batches, accounted for as Poisson"
        spent = self.budgets.spent()
        return PrivacyStatement(
            mechanism="DP-SGD",
            unit="sample",
            against="the server and everybody after it",
            epsilon=max((value for _, value in spent), default=0.0),
            delta=self.budgets.largest_delta,
            adjacency="add or remove one",
            sampling=f"{drawn}, rate {' to '.join(f'{rate:.3g}' for rate in sorted({min(rates), max(rates)}))}",
            accountant=f"{self.accountant} ({version(self.accountant)})",
            noise=self.budgets.noise or 0.0,
            clip=self.clip,
            nominal=self.sampling == "shuffled",
            clients=spent,
            notes=(
                self._source.description,
                "how many samples a client has is taken to be public",
                *self.ledger_notes(federation),
            ),
        )

    def state_dict(self) -> dict[str, Any]:
        return self.budgets.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.budgets.load_state_dict(state_dict)


def _poisson_batches(client: ClientModule, steps: Steps, coins: NoiseStream) -> Iterator[Batch]:
    """Batches into which every sample is drawn independently; some may be empty."""
    draw, samples = client.load_samples, client.samples
    assert draw is not None
    for _ in range(steps.count):
        yield draw(coins.coins(samples, steps.rate).nonzero().flatten())
