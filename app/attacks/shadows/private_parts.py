"""Shadows of networks with a private part, observed like their target: without it.

A shadow learns a private part like a client does. Since the attacked model is observed without it, an attack must learn
from shadows without it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from app.attacks.adaptive.base import Adaptation, ObservedModel, ReadingStrategy
from app.attacks.models import AttackedModel
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import initial_vector
from app.federation.parameters import ParameterSpace

READ_ALIKE = "shadows learn a private part of their own, and are read like the target: without it"


def reading_notes(knowledge: PublicKnowledge) -> list[str]:
    """A note for the report where networks have a private part."""
    return [READ_ALIKE] if knowledge.prototype.private_names() else []


def rounds_to_keep(knowledge: PublicKnowledge, rounds: tuple[int, ...]) -> tuple[int, ...]:
    """Rounds whose snapshots of a shadow are needed to observe it in the given rounds, ascending.

    Where networks have a private part, an adaptation may compare a model with that of the round before.
    """
    if not knowledge.prototype.private_names():
        return rounds
    return tuple(sorted({*rounds, *(round_ - 1 for round_ in rounds if round_ > 1)}))


def as_seen(
    knowledge: PublicKnowledge,
    model: AttackedModel,
    start: int,
    rounds: tuple[int, ...],
    reading: ReadingStrategy | None,
) -> AttackedModel:
    """A shadow as the attacker would observe it; itself where networks have no private part.

    The model holds its private part and the rounds of `rounds_to_keep`; `start` is the key of its initial values.
    """
    if not knowledge.prototype.private_names():
        return model
    rate = model.last.rate
    vectors = {0: initial_vector(knowledge, rate, start).cpu(), **{one.round: one.vector for one in model.snapshots}}
    observed = _observed(knowledge, rate, vectors, rounds)
    snapshots = ReadingStrategy(_shadow_adaptations(reading), rounds).snapshots(observed, rounds)
    return replace(model, key=f"{model.key}-{shadow_reading(knowledge, reading)}", snapshots=snapshots)


def shadow_reading(knowledge: PublicKnowledge, reading: ReadingStrategy | None) -> str:
    """Name of the reading of shadows, such as `concealed+recovered`; empty where they have no private part."""
    if not knowledge.prototype.private_names():
        return ""
    return "+".join(["concealed", *(one.name for one in _shadow_adaptations(reading))])


def _observed(
    knowledge: PublicKnowledge, rate: float, vectors: Mapping[int, Tensor], rounds: tuple[int, ...]
) -> list[ObservedModel]:
    """The server's observations of a model in some rounds, with public values in place of its private part.

    Vectors are those after each round, of these and of the rounds before them.
    """
    with torch.random.fork_rng(devices=[]):  # building a network draws initial values
        net = knowledge.prototype.scaled(rate)
    net.mask_private()
    space, names = ParameterSpace(net), set(net.private_names())
    private, public = torch.zeros(space.size, dtype=torch.bool), space.read(net)
    for block in space.blocks:
        private[block.coordinates] = block.name in names
    seen = {round_: torch.where(private, public.to(vector), vector) for round_, vector in vectors.items()}
    index = torch.arange(space.size)
    return [
        ObservedModel(round_, rate, index, seen[round_ - 1], seen[round_], ~private, space.trainable)
        for round_ in rounds
    ]


def _shadow_adaptations(reading: ReadingStrategy | None) -> tuple[Adaptation, ...]:
    """Adaptations of the target's reading that apply to centrally trained shadows, too."""
    return () if reading is None else tuple(one for one in reading.adaptations if one.reads_shadows)
