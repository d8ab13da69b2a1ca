"""A run that learns nothing: signs of it in the rounds, and the likely cause by what acted on the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from app.common.errors import Problem
from app.common.wording import counted
from app.federation.hooks import federated_callbacks
from app.federation.reports import DEFENDED, DIVERGED, RoundReport
from app.metrics.fairness import Spread
from app.privacy.traits import Trait

if TYPE_CHECKING:
    from app.federation.module import FederatedModule

LEAST_ROUNDS = 5
"""Rounds that a run must have, and that must be at chance at its end, before it counts as one that learnt nothing."""

DEVIATIONS = 3.0
"""Standard deviations of the accuracy of guesses within which an accuracy counts as chance."""

NOISE: frozenset[Trait] = frozenset(
    {"sample-dp", "client-dp", "sum-dp", "upload-dp", "nominal-dp", "own-noise", "partial-noise", "server-noise"}
)
"""Traits of defenses that add noise."""


Sign = Literal["diverged", "defended", "dropped", "chance"]
"""What shows that a run does not learn: local training diverges, defenses destroy updates, updates are refused or lost
on their way, or the accuracy stays low."""


@dataclass(frozen=True)
class RoundSigns:
    """What a round shows of learning."""

    clients: int  # that were trained, or refused
    accepted: int  # whose update was used
    diverged: int  # whose model or loss was not finite after local training
    destroyed: int  # whose update was not finite after the defenses
    refused: int
    accuracy: float  # in [0, 1], on the common test set; NaN where it was not evaluated
    samples: int  # that it was evaluated on
    finite: bool  # whether the server's loss is a number


class LearningWatch:
    """Collects the signs of all rounds, also of those before a run was resumed."""

    def __init__(self) -> None:
        self.rounds: list[RoundSigns] = []

    def observe(self, report: RoundReport, personal: bool, samples: int) -> None:
        """Add a round; `personal`: clients keep a part of the model, so that their accuracy counts, on `samples`."""
        accuracy, tested = report.server.accuracy if report.server.total else math.nan, report.server.total
        if personal:
            accuracy, tested = Spread.of(client.trained_common for client in report.clients).mean, samples
        self.rounds.append(
            RoundSigns(
                clients=len(report.clients),
                accepted=sum(not client.dropped for client in report.clients),
                diverged=sum(client.dropped_for == DIVERGED for client in report.clients),
                destroyed=sum(client.dropped_for == DEFENDED for client in report.clients),
                refused=sum(bool(client.refusal) for client in report.clients),
                accuracy=float(accuracy),
                samples=int(tested),
                finite=not report.server.total or math.isfinite(report.server.mean_loss),
            )
        )

    @property
    def no_update(self) -> bool:
        """Whether no update of any client was ever used."""
        return not any(signs.accepted for signs in self.rounds)

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(signs) for signs in self.rounds]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        self.rounds = [RoundSigns(**signs) for signs in state]

    def warnings(self, federation: FederatedModule) -> list[str]:
        """What shows that the run has learnt nothing, or less than it could, each with likely cause and remedy."""
        found = []
        if not self.rounds:
            return []
        if lost := [number for number, signs in enumerate(self.rounds, 1) if signs.clients and not signs.accepted]:
            found.append(f"{_lost(self.rounds, lost)}. {advice(federation, self._sign('dropped'))}")
        elif self.no_update:
            found.append(f"no client took part in any of {len(self.rounds)} rounds.")
        if not self.rounds[-1].finite:
            found.append(f"the loss of the server's model is not finite. {advice(federation, DIVERGED)}")
        elif not self.no_update and (last := self._at_chance(chance(federation))):
            found.append(
                f"the model is no better than guessing: {last[-1].accuracy:.1%} of {last[-1].samples} test samples are "
                f"right, where guessing gives {chance(federation):.1%}, as in all evaluations of the last "
                f"{_window(len(self.rounds))} of {len(self.rounds)} rounds. {advice(federation, self._sign('chance'))}"
            )
        return found

    def _sign(self, otherwise: Sign) -> Sign:
        """Whether updates were not finite, and since when."""
        if any(signs.diverged for signs in self.rounds):
            return DIVERGED
        return DEFENDED if any(signs.destroyed for signs in self.rounds) else otherwise

    def _at_chance(self, guessing: float) -> list[RoundSigns]:
        """Evaluations at the end of the run, where all of them are at chance and it is long enough; else none."""
        evaluated = [one for one in self.rounds[-_window(len(self.rounds)) :] if not math.isnan(one.accuracy)]
        if len(self.rounds) < LEAST_ROUNDS or not all(_is_chance(one, guessing) for one in evaluated):
            return []
        return evaluated


def chance(federation: FederatedModule) -> float:
    """Accuracy on the common test set without looking at an image: always the most frequent class, or any at random."""
    data = federation.data
    labels = data.store.labels[data.common_test.to(data.store.labels.device)]
    return max(1 / data.shape.classes, float(labels.bincount().max()) / len(labels)) if len(labels) else 1.0


def advice(federation: FederatedModule, sign: Sign) -> str:
    """Likely cause and remedy: what defenses do to the training, noise first; without any, the learning rate.

    Clients whose local training diverges are a matter of noise or of the learning rate, not of what is done to updates.
    """
    noise, others = _hindrances(federation)
    hindrances = {DIVERGED: noise, "dropped": []}.get(sign, [*noise, *others])
    hindrances = hindrances or [_of_settings(federation, sign)]
    causes = "; ".join(hindrance.cause for hindrance in hindrances)
    remedies = "; or ".join(hindrance.remedy for hindrance in hindrances)
    return f"Likely cause: {causes}. Remedy: {remedies}."


def _hindrances(federation: FederatedModule) -> tuple[list[Problem], list[Problem]]:
    """What defenses do that may keep the federation from learning: those that add noise, and others."""
    noise: list[Problem] = []
    others: list[Problem] = []
    for callback in federated_callbacks(federation.trainer):
        if (found := callback.hindrance(federation)) is not None:
            remedy = found.remedy.replace(".NAME.", f".{callback.given_name}.")
            (noise if callback.traits() & NOISE else others).append(Problem(found.cause, remedy=remedy))
    return noise, others


def _of_settings(federation: FederatedModule, sign: Sign) -> Problem:
    lr, local = federation.learning_rate, federation.local
    if sign == "dropped":
        return Problem("as the warnings of these rounds say", remedy="correct what clients or the channel refuse")
    if sign == DEFENDED:
        return Problem("what the defenses make of updates", remedy="weaken the defenses")
    if sign == DIVERGED:
        return Problem(f"the learning rate {lr:g} is too large", remedy="lower --model.local.optimizer.lr")
    clipped = f", whose steps are clipped to norm {local.clip_norm:g}," if local.clip_norm is not None else ""
    larger = " or --model.local.clip_norm" if local.clip_norm is not None else ""
    return Problem(
        f"{counted(federation.rounds, 'round')} at learning rate {lr:g}{clipped} may be too few, "
        "or the rate does not suit the data",
        remedy=f"change --model.local.optimizer.lr{larger}, or train longer with --trainer.max_epochs",
    )


def _window(rounds: int) -> int:
    """Rounds at the end of a run that are looked at: a third of it, at least five."""
    return min(rounds, max(LEAST_ROUNDS, math.ceil(rounds / 3)))


def _is_chance(signs: RoundSigns, guessing: float) -> bool:
    spread = math.sqrt(guessing * (1 - guessing) / max(1, signs.samples))
    return signs.accuracy <= guessing + DEVIATIONS * spread


def _lost(rounds: Sequence[RoundSigns], lost: Sequence[int]) -> str:
    """Rounds without any update, and what became of their clients."""
    without = [rounds[number - 1] for number in lost]
    diverged, refused = sum(one.diverged for one in without), sum(one.refused for one in without)
    others = sum(one.clients for one in without) - diverged - refused
    counted = {"diverged": diverged, "refused to train": refused, "sent an update that could not be used": others}
    what = ", ".join(f"{count} {words}" for words, count in counted.items() if count)
    named = ", ".join(map(str, lost[:10])) + (" ..." if len(lost) > 10 else "")
    return f"in {len(lost)} of {len(rounds)} rounds no client sent a usable update (round {named}): {what}"
