"""NbAFL: clients clip their weights and add noise before they upload; the server may add more before it broadcasts."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer

from app.common.errors import Problem, UserError
from app.common.ranges import Count, Inside, Positive
from app.common.wording import counted
from app.federation.accounted import AccountedDefense
from app.federation.channels.base import Aggregate, Update
from app.federation.execution.distributed import from_first, gather
from app.federation.hooks import Around, Knob
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.privacy.accounting import Steps, beyond_budget, composed_epsilon, composed_noise_for
from app.privacy.ledger import Ledger
from app.privacy.noise import NoiseSource, NoiseStream, clip_factor
from app.privacy.settings import delta_problems, raised_problems, setting_problem
from app.privacy.statements import PrivacyStatement
from app.privacy.traits import Trait

NOMINAL = (
    "the theorem takes a trained model for an average over its samples, so that replacing one of m samples moves it by "
    "at most 2C/m; several steps of gradient descent can move it further"
)


class NbAFL(AccountedDefense):
    """Noising before aggregation (Wei et al. 2020): clipped weights, noise on every upload and on the broadcast.

    Only parameters are clipped and noised, never buffers: a running variance must stay positive. With the published
    sensitivity epsilon is nominal, since several steps of gradient descent can move a model further than the theorem
    assumes; with the worst-case sensitivity the noise on uploads proves it, for a client's local model, against the
    server and everybody after it. There the noise is at least what the exact composition of all uploads of a client
    needs, including those before the run got more rounds.

    Example::

        rampart fit --defenses.nbafl NbAFL --defenses.nbafl.epsilon 50 --defenses.nbafl.clip 30
        rampart fit --defenses.nbafl NbAFL --defenses.nbafl.sensitivity worst-case

    Args:
        epsilon: budget of the whole run, above 0; nominal with the published sensitivity.
        delta: in (0, 1), below one over the samples of every client.
        clip: Euclidean norm C that a client's weights are scaled down to.
        variant: `theorem` adds noise to uploads and broadcasts as NbAFL has it; `weight-clip` is the rule of the code
            compared in MemDefense: on uploads only.
        exposures: how often an adversary sees a client's upload (L), 1 up to the number of rounds; without a number,
            every time the client takes part.
        sensitivity: `published` is 2C/m for the m samples of the smallest client; `worst-case` is 2C, which holds for
            any training and makes epsilon a proof.
        secret_noise: key the noise by the operating system; such a run cannot be repeated.
    """

    knob = Knob("epsilon", (200, 50, 10))
    tuned: ClassVar = {"clip": Around(10, 4)}

    def __init__(
        self,
        epsilon: Positive = 50.0,
        delta: Inside = 1e-5,
        clip: Positive = 30.0,
        variant: Literal["theorem", "weight-clip"] = "theorem",
        exposures: Count | None = None,
        sensitivity: Literal["published", "worst-case"] = "published",
        secret_noise: bool = False,
    ) -> None:
        self.epsilon, self.delta, self.clip = epsilon, delta, clip
        self.variant, self.exposures, self.sensitivity = variant, exposures, sensitivity
        self.ledger = Ledger()
        self._source = NoiseSource(secret_noise)
        self._sent: list[int] = []

    def traits(self) -> frozenset[Trait]:
        promise: Trait = "nominal-dp" if self.sensitivity == "published" else "upload-dp"
        down: set[Trait] = {"server-noise"} if self.variant == "theorem" else set()
        return frozenset({"own-noise", promise, *down})

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        wrong = list(self._setting_problems(federation.rounds, max(federation.client_pool.sizes)))
        yield from wrong
        if not wrong:
            yield from raised_problems(lambda: self.noise(federation))

    def _setting_problems(self, rounds: int, largest: int) -> Iterable[Problem]:
        yield from delta_problems(
            "NbAFL", self.delta, largest, f"the largest client has {counted(largest, 'sample')}", "sample"
        )
        if self.exposures is not None and self.exposures > rounds:
            consequence = f"an upload is seen once a round at most, and the run has {rounds}"
            allowed = f"to {rounds} or less, or leave it out"
            yield setting_problem("NbAFL", "exposures", self.exposures, consequence, allowed)

    def setting(self, federation: FederatedModule) -> NbAFLSetting:
        client_pool, rounds = federation.client_pool, federation.rounds
        clients = len(client_pool.present_in(0))
        participants = max(1, round(client_pool.participation * clients))
        moved = 2 * self.clip / (min(client_pool.sizes) if self.sensitivity == "published" else 1)
        exposures = self.exposures or max(1, -(-rounds * participants // clients))
        return NbAFLSetting(self.epsilon, self.delta, self.clip, moved, rounds, exposures, clients, participants)

    def hindrance(self, federation: FederatedModule) -> Problem:
        up, down = self.noise(federation)
        cause = f"NbAFL clips weights to norm {self.clip:g} and adds noise of {up:.3g} to uploads, {down:.3g} to sums"
        return Problem(cause, remedy="raise --defenses.NAME.epsilon, or lower --defenses.NAME.clip")

    def noise(self, federation: FederatedModule) -> tuple[float, float]:
        """Standard deviations per coordinate of the noise on uploads and on the broadcast."""
        setting = self.setting(federation)
        if self.variant == "weight-clip":
            return weight_clip_noise(setting), 0.0
        return uplink_noise(setting), downlink_noise(setting)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._formula, self._down = self.noise(pl_module)
        self._noise = self._formula / self._moved
        if self.sensitivity == "published" and trainer.is_global_zero:
            warnings.warn(
                f"NbAFL: epsilon {self.epsilon:g} is nominal, not a guarantee: {NOMINAL}. "
                f"--defenses.{self.given_name}.sensitivity worst-case adds noise that proves its epsilon.",
                stacklevel=2,
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        assert isinstance(pl_module, FederatedModule)
        if self.sensitivity == "worst-case":
            self._noise = self._proved_noise(pl_module, range(trainer.current_epoch, pl_module.rounds))

    def _proved_noise(self, federation: FederatedModule, rounds: range) -> float:
        """Noise multiplier of the rounds to come with which no client exceeds the budget, its past included.

        It is the formula's, or the one used so far, where that is enough.
        """
        noise = max(self._noise, self.ledger.latest_noise or 0.0)
        open_rounds = [round_ for round_ in rounds if not self.ledger.ahead(round_)]
        uploads = Counter(client for one in open_rounds for client in federation.client_pool.participants(one))
        for client, count in uploads.items():
            past = self.ledger.history(client)
            if composed_epsilon([*past, Steps(noise, 1.0, count)], self.delta) > self.epsilon:
                noise = composed_noise_for(self.epsilon, self.delta, count, past)
            if math.isinf(noise):
                raise beyond_budget(self.epsilon, self.delta, "exact", composed_epsilon(past, self.delta))
        return noise

    @property
    def _moved(self) -> float:
        """Largest change of clipped weights, whatever the training."""
        return 2 * self.clip

    def _deviation(self, noise: float) -> float:
        """Standard deviation per coordinate of a noise multiplier; that of the formula keeps its bits."""
        return self._formula if noise == self._formula / self._moved else noise * self._moved

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        self._sent = []
        released = self.ledger.ahead(plan.round)
        noise = next(iter(released.values())).noise if released else self._noise
        self._up = self._deviation(noise)
        self.spend(federation, {client: Steps(noise, 1.0, 1) for client in plan.participants})

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        self._sent.append(update.client)
        weights = update.vector[: update.trainable]
        weights *= clip_factor(weights, self.clip)
        stream = self._source.stream(federation.seed, "nbafl-up", update.round, update.client)
        weights += stream.normal_like(weights, self._up)

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        self.settle(federation, [client for part in gather(self._sent) for client in part])
        trainable = federation.space.trainable
        mean, sent = aggregate.mean[:trainable], aggregate.weight[:trainable] > 0
        key = from_first(self._source.key(federation.seed, "nbafl-down", federation.plan.round))
        mean += NoiseStream(key).normal_like(mean, self._down) * sent

    def measurements(self) -> dict[str, float]:
        return {"nbafl/noise_up": self._up, "nbafl/noise_down": self._down}

    def statement(self, federation: FederatedModule) -> PrivacyStatement:
        clients = self.ledger.clients()
        proved = tuple((client, composed_epsilon(self.ledger.history(client), self.delta)) for client in clients)
        worst = max((epsilon for _, epsilon in proved), default=0.0)
        nominal = self.sensitivity == "published"
        notes = [self._source.description, *self.ledger_notes(federation)]
        if nominal:
            notes += [NOMINAL, f"for any training, the noise on the uploads proves an epsilon of {worst:.3g}"]
        if nominal and self.epsilon > 1:
            notes.append("the constant of the Gaussian mechanism is proved for an epsilon of at most 1")
        return PrivacyStatement(
            mechanism=f"NbAFL ({self.variant})",
            unit="local model",
            against="the server and everybody after it",
            epsilon=self.epsilon if nominal else worst,
            delta=self.delta,
            adjacency="replace one",
            sampling="every upload counts",
            accountant="the theorem" if nominal else "Gaussian mechanism, exact composition",
            noise=self._noise if (used := self.ledger.latest_noise) is None else used,
            clip=self.clip,
            nominal=nominal,
            clients=() if nominal else proved,
            notes=tuple(notes),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.ledger.load_state_dict(state_dict["ledger"])


@dataclass(frozen=True)
class NbAFLSetting:
    """Parameters of NbAFL's noise."""

    epsilon: float  # budget of the whole run, above 0
    delta: float  # in (0, 1)
    clip: float  # largest Euclidean norm C of a client's weights
    sensitivity: float  # largest change of the clipped weights: nominally 2C/m, at worst 2C
    rounds: int  # T, rounds of the run
    exposures: int  # L, how often a client's upload is seen, 1 to T
    clients: int  # N
    participants: int  # K, clients of a round, 1 to N

    @property
    def factor(self) -> float:
        """The constant c of the Gaussian mechanism, proved for an epsilon of at most 1."""
        return math.sqrt(2 * math.log(1.25 / self.delta))


def uplink_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate of what a client adds: c L (2C/m) / epsilon."""
    return setting.factor * setting.exposures * setting.sensitivity / setting.epsilon


def downlink_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate of what the server adds to the mean; 0 where the clients' noise is enough.

    With all clients: c (2C/m) sqrt(T^2 - L^2 N) / (N epsilon) for T > L sqrt(N). With K of N clients, T is divided by
    b = -(T/epsilon) ln(1 - N/K + (N/K) exp(-epsilon/T)), and N gives way to K.

    Raises:
        UserError: where the formula has no value, because too few clients take part for the budget.
    """
    scale = _amplified(setting)
    missing = (setting.rounds / scale) ** 2 - setting.exposures**2 * setting.participants
    if missing <= 0:
        return 0.0
    spread = setting.factor * setting.sensitivity / (setting.participants * setting.epsilon)
    return spread * math.sqrt(missing)


def _amplified(setting: NbAFLSetting) -> float:
    """The constant b; 1 where all clients take part."""
    if setting.participants == setting.clients:
        return 1.0
    share = setting.clients / setting.participants
    inside = 1 - share + share * math.exp(-setting.epsilon / setting.rounds)
    if inside <= 0:
        least = math.ceil(setting.clients * -math.expm1(-setting.epsilon / setting.rounds))
        raise UserError.of(
            f"NbAFL's theorem has no down-link noise for {setting.participants} of {setting.clients} clients per round "
            f"and epsilon {setting.epsilon:g} over {counted(setting.rounds, 'round')}",
            "its constant b is the logarithm of a negative number",
            f"let more than {least} clients take part (--model.participation), or lower the budget",
        )
    return -(setting.rounds / setting.epsilon) * math.log(inside)


def weight_clip_noise(setting: NbAFLSetting) -> float:
    """Standard deviation per coordinate by the rule of the compared code: (2C/m) sqrt(2 q T ln(1/delta)) / epsilon.

    It is the user-level scheme of Wei et al. 2021, on the up-link only; q is the share of clients per round.
    """
    share = setting.participants / setting.clients
    return setting.sensitivity * math.sqrt(2 * share * setting.rounds * math.log(1 / setting.delta)) / setting.epsilon
