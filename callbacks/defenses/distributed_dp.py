"""Distributed differential privacy: clients make noise together that only the sum of their updates shows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from app.common.errors import Problem
from app.common.ranges import Bits, Count, Decay, Inside, NonNegative, Positive, Whole
from app.common.seeding import derive_bytes
from app.common.wording import counted
from app.crypto.contributors import Contributors
from app.crypto.fixed_point import FixedPoint, Outside
from app.federation.accounted import AccountedDefense, bounded_weight, client_delta
from app.federation.channels.base import Aggregate, Update
from app.federation.channels.integer_code import WeightCode, weight_code
from app.federation.channels.noisy_code import NoisyCode, Randomness
from app.federation.checks.federation import stack_traits
from app.federation.execution.distributed import gather
from app.federation.hooks import Knob, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.federation.private_coordinates import uploaded_indices
from app.privacy.accounting import Composition, Steps, beyond_budget, epsilon, noise_for, version
from app.privacy.distributed.discrete_noise import DiscreteMechanism
from app.privacy.distributed.shared_noise import SharedNoise
from app.privacy.ledger import Ledger
from app.privacy.noise import NoiseSource, clip_factor
from app.privacy.settings import client_budget_problems, raised_problems
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait
from callbacks.defenses.secure_aggregation import SecureAggregation

TITLES: dict[DiscreteMechanism, str] = {"gaussian": "distributed discrete Gaussian", "skellam": "distributed Skellam"}


class DistributedDP(AccountedDefense):
    """Client-level differential privacy without a trusted server (Kairouz et al. 2021, Agarwal et al. 2021).

    A client's change over all its coordinates is clipped together, rotated, rounded to integers of bounded norm, and
    gets a share of integer noise that is enough once the channel has added up all shares. It needs such a channel:
    SecureAggregation or Paillier. Noise is enough even if so many clients drop out, and others reveal theirs, as the
    settings say; where more drop out of some sum, the round is given up. Submodels may be unequal: all sums have the
    same noise, whoever contributes to them, so that of few contributors each makes more.

    Who takes part is known to the server, so that sampling of clients does not count. Epsilon holds for single samples,
    too, as parts of a client; it is no smaller for them, since a sample moves an update by more than its own gradient
    where there are several local steps, and rounding moves it further.

    Example::

        rampart fit --config secure-aggregation --defenses.ddp DistributedDP --defenses.ddp.target_epsilon 8

    Args:
        target_epsilon: budget of the whole run, above 0. Without `noise`, the noise is chosen so that every client just
            stays within it, and chosen anew for the remaining rounds where the run gets more of them; with `noise`, the
            run ends before a client exceeds it. One of the two is needed.
        noise: standard deviation of the noise of a sum over the clipping norm, at least 0: of the Gaussian mechanism
            that the discrete one is at least as private as.
        clip: Euclidean norm that a client's change is scaled down to.
        delta: in (0, 1), below one over the number of clients; without a number, a tenth of that, at most 1e-5.
        mechanism: distribution of the noise: discrete `gaussian`, or `skellam`, whose sums have it exactly.
        bits: sums are taken modulo 2^bits under masks, in [8, 32]; the finest grid is chosen that they have room for.
        failure: bound on the probability that some sum of a round wraps around; that costs accuracy, not privacy.
        dropouts: share of the contributors of every sum, in [0, 1), that may drop out; more of it needs more noise.
        colluders: clients of a round whose noise may be known to the adversary: 1 is a curious client, or a server with
            a client of its own.
        max_samples: with --model.weighting samples: a client with so many samples or more has weight 1, others in
            proportion; without a number, the largest client's.
        secret_noise: key the noise by the operating system; such a run cannot be repeated.
    """

    knob = Knob("target_epsilon", (64, 16, 4, 1))
    may_stop = True
    unnoised: ClassVar = {"distributed_dp/clipped": "share of the clients whose change was clipped"}

    def __init__(
        self,
        target_epsilon: Positive | None = None,
        noise: NonNegative | None = None,
        clip: Positive = 1.0,
        delta: Inside | None = None,
        mechanism: DiscreteMechanism = "gaussian",
        bits: Bits = 20,
        failure: Inside = 1e-6,
        dropouts: Decay = 1 / 3,
        colluders: Whole = 1,
        max_samples: Count | None = None,
        secret_noise: bool = False,
    ) -> None:
        self.target_epsilon, self.noise, self.clip, self.delta = target_epsilon, noise, clip, delta
        self.mechanism, self.bits, self.failure = mechanism, bits, failure
        self.dropouts, self.colluders, self.max_samples = dropouts, colluders, max_samples
        self._source = NoiseSource(secret_noise)
        self._accountant: Composition = "rdp" if mechanism == "gaussian" else "rdp-whole"
        self.ledger = Ledger(self._accountant)
        self._multiplier = noise or 0.0
        self._clipped: dict[int, bool] = {}
        self._code: NoisyCode | None = None
        self._numbers: dict[str, float] = {}

    def traits(self) -> frozenset[Trait]:
        return frozenset({"sum-dp"})

    # ---- before the first round ------------------------------------------------------------------------------------

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        clients = len(federation.client_pool.sizes)
        wrong = list(
            client_budget_problems("DistributedDP", self.target_epsilon, self.noise, self.clip, self.delta, clients)
        )
        if "channel" not in stack_traits(federation):
            wrong.append(
                Problem(
                    "DistributedDP over uploads that the server reads",
                    "each has a share of the noise only, which is too little for a single update",
                    "add --config secure-aggregation, or --config paillier",
                )
            )
        yield from wrong
        if not wrong:
            yield from raised_problems(lambda: self._first_grid(federation))

    def _first_grid(self, federation: FederatedModule) -> object:
        """The integers of the first round; a `UserError` where there are none."""
        theta = federation.space.read(federation.net)
        contributors = Contributors.of(theta.numel(), uploaded_indices(federation, federation.plan_of(0)))
        weights = weight_code(federation, 1.0)
        noise = self._planned(federation, 0)
        made = self._made_with(federation, 0, noise)
        return NoisyCode(contributors, FixedPoint(8, 1.0), weights, theta, "clip", *made).grid

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        federation = pl_module

        def coding(
            contributors: Contributors, point: FixedPoint, weights: WeightCode, theta: Tensor, outside: Outside
        ) -> NoisyCode:
            made = self._made_with(federation, trainer.current_epoch, self._noise_of(trainer.current_epoch))
            self._code = NoisyCode(contributors, point, weights, theta, outside, *made)
            return self._code

        pl_module.coding = coding

    def _made_with(self, federation: FederatedModule, round_: int, noise: float) -> tuple[SharedNoise, Randomness]:
        """What the integers of a round are made with."""
        seed, source = federation.seed, self._source
        masked = any(isinstance(one, SecureAggregation) for one in federated_callbacks(federation.trainer))
        bits = self.bits if masked else None
        shared = SharedNoise(self.mechanism, noise, self.clip, bits, self.failure, self.dropouts, self.colluders)
        randomness = Randomness(
            signs=lambda block: derive_bytes(seed, "distributed-dp-signs", round_, block),
            noise=lambda client: source.stream(seed, "distributed-dp", round_, client),
        )
        return shared, randomness

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        if not (noise := self._multiplier or self._planned(federation, 0)):
            return None
        weaker = "raise --defenses.NAME.target_epsilon" if self.noise is None else "lower --defenses.NAME.noise"
        cause = f"DistributedDP makes noise of {noise:.3g} times clip {self.clip:g} on the sum of the updates"
        return Problem(cause, remedy=f"{weaker}, let more clients take part, or try another clip")

    # ---- the budget ------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        assert isinstance(pl_module, FederatedModule)
        self._multiplier = self._planned(pl_module, trainer.current_epoch)
        trainer.should_stop |= self._is_spent(pl_module, trainer.current_epoch)

    def _planned(self, federation: FederatedModule, done: int) -> float:
        """Noise multiplier of the rounds to come: as set, as before, or the smallest with which no client exceeds."""
        if self.noise is not None:
            return self.noise
        assert self.target_epsilon is not None
        target, delta, noise = self.target_epsilon, self._delta(federation), self.ledger.latest_noise or 0.0
        ahead = [round_ for round_ in range(done, federation.rounds) if not self.ledger.ahead(round_)]
        counts = Counter(client for round_ in ahead for client in federation.client_pool.participants(round_))
        pasts = {(tuple(self.ledger.history(client)), count) for client, count in counts.items()}
        for past, count in sorted(pasts, key=lambda one: -one[1]):
            if epsilon([*past, Steps(noise, 1.0, count)], delta, self._accountant) > target:
                if epsilon(past, delta, self._accountant) > target:
                    raise beyond_budget(target, delta, self._accountant, epsilon(past, delta, self._accountant))
                noise = noise_for(target, delta, [Steps(1.0, 1.0, count)], self._accountant, past)
        return noise

    def _noise_of(self, round_: int) -> float:
        """That of the round to be repeated, or that of the plan."""
        released = self.ledger.ahead(round_)
        return next(iter(released.values())).noise if released else self._multiplier

    def _is_spent(self, federation: FederatedModule, round_: int) -> bool:
        """Whether a client of a round would exceed its budget in it."""
        if self.target_epsilon is None or self.noise is None or round_ >= federation.rounds:
            return False
        clients = federation.client_pool.participants(round_)
        return any(self._spent(federation, client, 1) > self.target_epsilon for client in clients)

    def _spent(self, federation: FederatedModule, client: int, further: int = 0, everything: bool = False) -> float:
        more = [Steps(self._multiplier, 1.0, further)]
        return self.ledger.epsilon(client, self._delta(federation), more, everything)

    def _delta(self, federation: FederatedModule) -> float:
        return client_delta(federation, self.delta)

    # ---- a round ---------------------------------------------------------------------------------------------------

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._clipped = {}
        self.spend(federation, dict.fromkeys(plan.participants, Steps(self._noise_of(plan.round), 1.0, 1)))

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        """Clipping comes later, with the integers; whether an update leaves must not show whether it is finite."""
        if not update.vector.isfinite().all():
            update.vector.copy_(update.received)
        update.weight = bounded_weight(federation, update.client, self.max_samples)
        self._clipped[update.client] = clip_factor(update.vector - update.received, self.clip) < 1

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        clipped = {client: one for part in gather(self._clipped) for client, one in part.items()}
        self.settle(federation, clipped)
        assert self._code is not None
        grid = self._code.grid
        self._numbers = {
            "distributed_dp/epsilon": self._worst(federation),
            "distributed_dp/clipped": sum(clipped.values()) / max(1, len(clipped)),
            "distributed_dp/clip_in_units": grid.scale * self.clip,
            "distributed_dp/rounding": grid.moved.norm / (grid.scale * self.clip) - 1,
        }

    def _worst(self, federation: FederatedModule, everything: bool = False) -> float:
        spent = (self._spent(federation, client, 0, everything) for client in self.ledger.clients(everything))
        return max(spent, default=0.0)

    def measurements(self) -> dict[str, float]:
        """Largest epsilon, share of clipped clients, clip in units of the grid, growth of the norm by rounding."""
        return self._numbers

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        if self._is_spent(pl_module, trainer.current_epoch + 1):
            trainer.should_stop = True
            if trainer.is_global_zero:
                warnings.warn(
                    f"DistributedDP: a client's budget is spent after {counted(trainer.current_epoch + 1, 'round')}; "
                    f"the run ends here. More noise (--defenses.{self.given_name}.noise) or fewer clients per round "
                    "(--model.participation) make it last longer.",
                    stacklevel=2,
                )

    # ---- what it tells ---------------------------------------------------------------------------------------------

    def statement(self, federation: FederatedModule) -> PrivacyStatement:
        clients = self.ledger.clients()
        notes = [
            self._source.description,
            "noise of single numbers is exact up to 2^-100, and sums need no trust in floating point",
            f"the noise of a sum is enough if up to {self.dropouts:.0%} of its contributors drop out; if more do, the "
            "round is given up",
            "a client's update is what epsilon hides; that it takes part, and its weight, are public",
            "single samples have the same epsilon, as parts of a client",
            *self.ledger_notes(federation),
        ]
        return PrivacyStatement(
            mechanism=TITLES[self.mechanism],
            unit="client",
            against="everybody who sees sums and models, and knows the noise of up to "
            f"{counted(self.colluders, 'client')}, as far as the channel hides single updates",
            epsilon=self._worst(federation, everything=True),
            delta=self._delta(federation),
            adjacency="add or remove one",
            sampling="every round that a client takes part in counts",
            accountant=f"{self._accountant} ({version()})",
            noise=self._multiplier if (used := self.ledger.latest_noise) is None else used,
            clip=self.clip,
            clients=tuple((client, self._spent(federation, client, 0, True)) for client in clients),
            notes=tuple(notes),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state_dict(), "numbers": dict(self._numbers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.ledger.load_state_dict(state_dict["ledger"])
        self._numbers = dict(state_dict["numbers"])
