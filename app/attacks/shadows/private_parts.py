"""Shadows of networks with a private part, read as their target was: no attacker ever sees a client's private part.

A shadow learns its own private part like a client does. The attacked model comes without one, so an attack that was
learnt from whole shadows would expect what its target cannot show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from app.attacks.adaptive.base import Adaptation, ObservedModel, ReadingStrategy
from app.attacks.models import AttackedModel
from app.attacks.public_knowledge import PublicKnowledge
from app.federation.parameters import ParameterSpace

READ_ALIKE = "shadows learn a private part of their own, and are read like the target: without it"


def reading_notes(knowledge: PublicKnowledge) -> list[str]:
    """How shadows are read, for the report; empty where networks have no private part."""
    return [READ_ALIKE] if knowledge.prototype.private_names() else []


def rounds_to_keep(knowledge: PublicKnowledge, rounds: tuple[int, ...]) -> tuple[int, ...]:
    """Rounds after which snapshots of a shadow are needed for reading it in the given rounds, ascending.

    Where networks have a private part, a reader may compare a model with the one a round before.
    """
    if not knowledge.prototype.private_names():
        return rounds
    return tuple(sorted({*rounds, *(round_ - 1 for round_ in rounds if round_ > 1)}))


def as_seen(
    knowledge: PublicKnowledge,
    model: AttackedModel,
    start: Callable[[], Tensor],
    rounds: tuple[int, ...],
    reading: ReadingStrategy | None,
) -> AttackedModel:
    """A shadow as the attacker of its target would have seen it; itself where networks have no private part.

    Args:
        knowledge: the network.
        model: the shadow, private part included, in the rounds of `rounds_to_keep`.
        start: gives its vector before the first round.
        rounds: rounds that the target was seen in.
        reading: how the target was read.
    """
    if not knowledge.prototype.private_names():
        return model
    concealing = PrivatePartMask(knowledge, model.last.rate)
    vectors = {0: start().cpu(), **{one.round: one.vector for one in model.snapshots}}
    observations = [concealing.observed(round_, vectors[round_ - 1], vectors[round_]) for round_ in rounds]
    snapshots = ReadingStrategy(_reading_shadows(reading), rounds).snapshots(observations, rounds)
    return replace(model, key=f"{model.key}-{shadow_reading(knowledge, reading)}", snapshots=snapshots)


def shadow_reading(knowledge: PublicKnowledge, reading: ReadingStrategy | None) -> str:
    """Name of the way in which shadows are read, such as `concealed+recovered`; empty for as they are."""
    if not knowledge.prototype.private_names():
        return ""
    return "+".join(["concealed", *(one.name for one in _reading_shadows(reading))])


class PrivatePartMask:
    """Takes the private part out of vectors of one width."""

    def __init__(self, knowledge: PublicKnowledge, rate: float) -> None:
        """Find out what is private.

        Args:
            knowledge: the network.
            rate: width rate, in (0, 1].
        """
        with torch.random.fork_rng(devices=[]):  # building a network draws initial values
            net = knowledge.prototype.scaled(rate)
        net.mask_private()
        space, private = ParameterSpace(net), set(net.private_names())
        self._rate, self._trainable, self._values = rate, space.trainable, space.read(net)
        self._private = torch.zeros(space.size, dtype=torch.bool)
        for block in space.blocks:
            self._private[block.coordinates] = block.name in private

    def vector(self, vector: Tensor) -> Tensor:
        """The vector with what anybody may see in place of its private part."""
        return torch.where(self._private, self._values.to(vector), vector)

    def observed(self, round_: int, received: Tensor, sent: Tensor) -> ObservedModel:
        """What a server would have seen of a model that went from one vector to another."""
        return ObservedModel(
            round=round_,
            rate=self._rate,
            index=torch.arange(len(sent)),
            received=self.vector(received),
            sent=self.vector(sent),
            arrived=~self._private,
            trainable=self._trainable,
        )


def _reading_shadows(reading: ReadingStrategy | None) -> tuple[Adaptation, ...]:
    """What the reader of the target does to shadows, too, that were trained by themselves."""
    return () if reading is None else tuple(one for one in reading.adaptations if one.reads_shadows)
