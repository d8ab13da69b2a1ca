"""DP-FedAvg: client-level differential privacy by a trusted server."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.common.errors import Problem, UserError
from app.common.ranges import Bound, Count, Inside, NonNegative, Positive
from app.common.wording import counted
from app.federation.accounted import AccountedDefense, bounded_weight, client_delta
from app.federation.channels.base import Aggregate, Update
from app.federation.execution.distributed import from_first, gather
from app.federation.hooks import Around, Knob
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.privacy.accounting import AccountantName, Steps, epsilon, noise_for, version
from app.privacy.adaptive_clipping import AdaptiveClipping
from app.privacy.ledger import ALL_CLIENTS, Ledger
from app.privacy.noise import NoiseSource, NoiseStream, clip_factor
from app.privacy.settings import accountant_problems, client_budget_problems, raised_problems
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait


class DPFedAvg(AccountedDefense):
    """Client-level differential privacy (McMahan et al. 2018): clip whole updates, noise their sum, fixed denominators.

    A client's change over all its coordinates is clipped together (flat clipping); Gaussian noise goes to every
    coordinate that any client may train; and a coordinate's sum is divided by the weight expected there, whoever takes
    part, so a coordinate that few clients train gets more noise relative to its change.

    The guarantee holds for whole clients, against other clients and everybody who sees the released model. The server
    is trusted: it sees every update.

    Example::

        rampart fit --defenses.dp DPFedAvg --defenses.dp.target_epsilon 8 --model.sampling poisson

    Args:
        target_epsilon: budget of the whole run, above 0. Without `noise`, the noise is chosen so that the run just
            stays within it, and chosen anew for the remaining rounds where the run gets more of them; with `noise`, the
            run ends when it is spent. One of the two is needed.
        noise: standard deviation of the noise on the sum over the clipping norm, at least 0.
        clip: Euclidean norm that a client's change is scaled down to.
        delta: in (0, 1), below one over the number of clients; without a number, a tenth of that, at most 1e-5.
        accountant: `rdp`, or `prv` or `pld`, which are tighter and slower; `pld` needs dp-accounting.
        max_samples: with --model.weighting samples: a client with so many samples or more has weight 1, others in
            proportion; without a number, the largest client's.
        secret_noise: key the noise by the operating system; such a run cannot be repeated.
        quantile: let the clipping norm follow this quantile of the clients' norms (Andrew et al. 2021), from `clip` on;
            without a number, the norm stays.
        clip_rate: learning rate of the norm's logarithm.
        count_noise: standard deviation of the noise on the number of clients whose norm is within the clipping norm;
            without a number, a twentieth of the clients expected in a round, and with few of them the noise multiplier,
            which leaves the changes 15 % more noise. It is part of the same budget.
    """

    knob = Knob("target_epsilon", (64, 16, 4, 1))
    tuned: ClassVar = {"clip": Around(10, 10)}
    may_stop = True
    unnoised: ClassVar = {
        "dp_fedavg/clipped": "share of the clients whose change was clipped",
        "dp_fedavg/noise_to_change": "norm of the noise over that of the clients' summed change",
    }

    def __init__(
        self,
        target_epsilon: Positive | None = None,
        noise: NonNegative | None = None,
        clip: Bound = 1.0,
        delta: Inside | None = None,
        accountant: AccountantName = "rdp",
        max_samples: Count | None = None,
        secret_noise: bool = False,
        quantile: Inside | None = None,
        clip_rate: Positive = 0.2,
        count_noise: Positive | None = None,
    ) -> None:
        self.target_epsilon, self.noise, self.clip, self.delta = target_epsilon, noise, clip, delta
        self.accountant, self.max_samples = accountant, max_samples
        self.quantile, self.clip_rate, self.count_noise = quantile, clip_rate, count_noise
        self._norm = clip
        self._source = NoiseSource(secret_noise)
        self.ledger = Ledger(accountant)
        self._multiplier = self._noise = noise or 0.0
        self._clipped: list[bool] = []
        self._deviation = 0.0
        self._numbers: dict[str, float] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"client-dp", "sampled-client-dp", "server-noise"})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        clients = len(federation.client_pool.sizes)
        wrong = list(self._setting_problems(clients))
        yield from wrong
        if not wrong:
            yield from raised_problems(lambda: self._change_noise(federation, self._calibrated(federation)))

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        if not (noise := self._multiplier or self._calibrated(federation)):
            return None
        weaker = "raise --defenses.NAME.target_epsilon" if self.noise is None else "lower --defenses.NAME.noise"
        cause = f"{type(self).__name__} adds noise of {noise:.3g} times clip {self.clip:g} to the sum of the updates"
        return Problem(cause, remedy=f"{weaker}, let more clients take part, or try another clip")

    def _setting_problems(self, clients: int) -> Iterable[Problem]:
        name = type(self).__name__
        yield from client_budget_problems(name, self.target_epsilon, self.noise, self.clip, self.delta, clients)
        yield from accountant_problems(self.accountant)

    def _change_noise(self, federation: FederatedModule, noise: float) -> float:
        """Noise multiplier of the changes: less than all noise where clients also send bits for the clipping norm."""
        return noise if self.quantile is None else self._adaptive(federation, noise).change_noise(noise)

    def _adaptive(self, federation: FederatedModule, noise: float) -> AdaptiveClipping:
        assert self.quantile is not None
        count_noise = self.count_noise or max(self._expected_clients(federation) / 20, noise)
        return AdaptiveClipping(self.quantile, self.clip_rate, count_noise)

    def _expected_clients(self, federation: FederatedModule) -> float:
        return federation.client_pool.participation * len(federation.client_pool.sizes)

    def _steps(self, federation: FederatedModule, noise: float, round_: int) -> Steps:
        """What a round (from 0) costs."""
        return Steps(noise, federation.participation, 1)

    def _calibrated(self, federation: FederatedModule) -> float:
        """The noise multiplier: as set, or the smallest one that keeps to the budget."""
        if self.noise is not None:
            return self.noise
        assert self.target_epsilon is not None
        plan = [Steps(1.0, federation.participation, federation.rounds)]
        return noise_for(self.target_epsilon, self._delta(federation), plan, self.accountant)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        assert isinstance(pl_module, FederatedModule)
        if not trainer.current_epoch:
            self._norm = self.clip
        self._multiplier = self._planned(pl_module, trainer.current_epoch)
        trainer.should_stop |= self._is_spent(pl_module, trainer.current_epoch)

    def _planned(self, federation: FederatedModule, done: int) -> float:
        """The noise multiplier of the rounds to come: as before, if that keeps to the budget, or else a larger one."""
        past, used = self.ledger.history(ALL_CLIENTS), self.ledger.latest_noise
        if self.noise is not None or used is None:
            return self._calibrated(federation)
        assert self.target_epsilon is not None
        delta = self._delta(federation)
        left = sum(not self.ledger.ahead(round_) for round_ in range(done, federation.rounds))
        steps = Steps(used, federation.participation, left)
        if epsilon([*past, steps], delta, self.accountant) <= self.target_epsilon:
            return used
        noise = noise_for(self.target_epsilon, delta, [steps], self.accountant, past)
        if federation.trainer.is_global_zero:
            warnings.warn(
                f"{type(self).__name__}: the budget was planned for fewer rounds; {left} more within epsilon "
                f"{self.target_epsilon:g} need noise {noise:.3g} instead of {used:.3g}.",
                stacklevel=2,
            )
        return noise

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._clipped = []
        released = self.ledger.ahead(plan.round)
        self._noise = self._repeated(released[ALL_CLIENTS]) if released else self._multiplier

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        received = update.received[: update.trainable]
        change = update.vector[: update.trainable] - received
        factor = clip_factor(change, self._norm)
        if factor < 1:
            update.vector[: update.trainable] = received + factor * change
        update.weight = self._weight(federation, update.client)
        self._clipped.append(factor < 1)

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        self.spend(federation, {ALL_CLIENTS: self._steps(federation, self._noise, federation.plan.round)})
        self._deviation = self._change_noise(federation, self._noise) * self._norm if self._noise > 0 else 0.0
        trainable = federation.space.trainable
        theta = federation.theta[:trainable].to(aggregate.mean.dtype)
        expected = self._expected_weights(federation)[:trainable].to(aggregate.mean.dtype)
        total = aggregate.weight[:trainable] * (aggregate.mean[:trainable] - theta)
        key = from_first(self._source.key(federation.seed, "dp-fedavg", federation.plan.round))
        stream = NoiseStream(key)
        noise = self._mixed(lambda: stream.normal_like(total, self._deviation))
        moved = theta + (total + noise) / torch.where(expected > 0, expected, 1)
        trained = expected > 0
        aggregate.mean[:trainable] = torch.where(trained, moved, aggregate.mean[:trainable])
        aggregate.weight[:trainable] = expected
        # noise moves the model even in a round in which nobody takes part, or that would show
        aggregate.updates = max(1, aggregate.updates)
        self._measure(federation, total[trained], expected[trained])
        if self.quantile is not None:
            self._move_norm(federation, stream)

    def _repeated(self, released: Steps) -> float:
        """The noise multiplier of a round that is repeated, from what it cost."""
        return released.noise

    def _mixed(self, draw: Callable[[], Tensor]) -> Tensor:
        """Noise on the sum of a round; every `draw` is independent noise."""
        return draw()

    def _move_norm(self, federation: FederatedModule, stream: NoiseStream) -> None:
        """The clipping norm of the next round, from the noisy number of clients within that of this one."""
        adaptive = self._adaptive(federation, self._noise)
        clipped = [one for part in gather(self._clipped) for one in part]
        scale = adaptive.count_noise if self._noise > 0 else 0.0
        draw = float(stream.normal_like(torch.zeros(1, dtype=torch.float64), scale))
        within, expected = len(clipped) - sum(clipped), self._expected_clients(federation)
        self._norm = adaptive.next_norm(self._norm, within, len(clipped), expected, draw)
        self._numbers["dp_fedavg/clip"] = self._norm

    def _expected_weights(self, federation: FederatedModule) -> Tensor:
        """Sum of the weights at every coordinate, averaged over the draw of participants: public."""
        plan, client_pool = federation.plan, federation.client_pool
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for client in client_pool.present_in(plan.round):
            groups[plan.key(client)].append(client)
        expected = torch.zeros(federation.space.size, dtype=torch.float64, device=federation.theta.device)
        for clients in groups.values():
            index = plan.index(clients[0])
            index = index[federation.personal.shared(index)]
            weight = sum(self._weight(federation, client) for client in clients) * client_pool.participation
            expected.index_add_(0, index, torch.full_like(index, weight, dtype=expected.dtype))
        return expected

    def _weight(self, federation: FederatedModule, client: int) -> float:
        return bounded_weight(federation, client, self.max_samples)

    def _measure(self, federation: FederatedModule, total: Tensor, expected: Tensor) -> None:
        clipped = [one for part in gather(self._clipped) for one in part]
        self._numbers = {
            "dp_fedavg/epsilon": self._epsilon(federation, everything=False),
            "dp_fedavg/clipped": sum(clipped) / max(1, len(clipped)),
            "dp_fedavg/noise_to_change": float(self._deviation * total.numel() ** 0.5 / total.norm().clamp(min=1e-12)),
            "dp_fedavg/noise_of_thinnest_cell": float(self._deviation / expected.min()) if expected.numel() else 0.0,
        }

    def measurements(self) -> dict[str, float]:
        """Epsilon so far, share of clipped clients, norm of the noise over that of the sum, largest noise."""
        return self._numbers

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        following = trainer.current_epoch + 1
        if following < pl_module.rounds and self._is_spent(pl_module, following):
            trainer.should_stop = True
            if trainer.is_global_zero:
                warnings.warn(
                    f"{type(self).__name__}: the budget is spent after {counted(following, 'round')}; the run ends "
                    f"here. More noise (--defenses.{self.given_name}.noise) or fewer clients per round "
                    "(--model.participation) make it last longer.",
                    stacklevel=2,
                )

    def _is_spent(self, federation: FederatedModule, following: int) -> bool:
        """Whether one more round, the following one (from 0), would exceed the budget."""
        if following >= federation.rounds:
            return False
        further = self._epsilon(federation, following, everything=False)
        return self.target_epsilon is not None and further > self.target_epsilon

    def statement(self, federation: FederatedModule) -> PrivacyStatement:
        share, fixed = federation.participation, federation.sampling == "fixed" and federation.participation < 1
        drawn = "fixed number of clients" if fixed else "Poisson over clients" if share < 1 else "all clients"
        notes = [self._source.description, "the server is trusted: it sees every update"]
        notes += self.ledger_notes(federation)
        if self.quantile is not None:
            notes.append(f"the clipping norm, now {self._norm:.3g}, follows a noisy quantile, which epsilon covers")
        if share < 1:
            notes.append("who takes part must stay secret for sampling to count; it is drawn by the run's seed")
        return PrivacyStatement(
            mechanism="DP-FedAvg",
            unit="client",
            against="other clients and everybody outside, not the server",
            epsilon=self._epsilon(federation),
            delta=self._delta(federation),
            adjacency="add or remove one",
            sampling=f"{drawn}, rate {share:g}",
            accountant=f"{self.accountant} ({version(self.accountant)})",
            noise=self._multiplier if (used := self.ledger.latest_noise) is None else used,
            clip=self._norm,
            nominal=fixed,
            notes=tuple(notes),
        )

    def _epsilon(self, federation: FederatedModule, following: int | None = None, everything: bool = True) -> float:
        """Epsilon so far, or after one more round, the following one (from 0)."""
        more = [] if following is None else [self._steps(federation, self._multiplier, following)]
        return self.ledger.epsilon(ALL_CLIENTS, self._delta(federation), more, everything)

    def _delta(self, federation: FederatedModule) -> float:
        return client_delta(federation, self.delta)

    def state_dict(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state_dict(), "numbers": dict(self._numbers), "norm": self._norm}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "ledger" not in state_dict:
            raise UserError.of(
                "the checkpoint is of version 0.3 or earlier, which did not keep the noise of its rounds",
                "the privacy budget that it has spent is not known",
                "start afresh: --run.overwrite true, or another --run.name",
            )
        self.ledger.load_state_dict(state_dict["ledger"])
        self._numbers = dict(state_dict["numbers"])
        self._norm = state_dict.get("norm", self.clip)
