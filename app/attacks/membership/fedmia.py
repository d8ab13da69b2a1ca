"""Zhu et al. 2025, FedMIA: a client's upload is compared with those of all other clients, round by round.

No other client has trained on the target's samples, so that the others' scores on a sample show what the score of a
non-member is like: one Gaussian per sample and round, without any shadow model. Unequal submodels have unequal scores:
clients are comparable on coordinates that both of them have uploaded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.nn.functional import normalize

from app.attacks.adaptive.base import ObservedModel
from app.attacks.context import AttackContext
from app.attacks.membership.attack_net import choice_problem
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.models import AttackedModel, Ids, Snapshot
from app.common.errors import raise_all
from app.federation.parameters import plain_array
from app.metrics.membership import Array

Blocks = Literal["covered", "shared", "own"]
"""Compare a client with those that have uploaded all of its coordinates; with every client, on the coordinates that
both have uploaded; or all coordinates of one with all of the other."""

FEWEST = 2
"""Other clients without which there is no spread to compare with."""


class FedMIA(MembershipAttack):
    """How far a client's score on a sample lies above the other clients': 0 to 1, mean over the rounds.

    In each round it is the distribution function at the client's distance from the others' mean, in their standard
    deviations: Student's t, since both are estimated of few clients, where the paper has the Gaussian's. 0.5 is the
    mean of the others.

    Args:
        blocks: `covered` compares with the clients that have uploaded all of the target's coordinates, and where there
            are fewer than two, as `shared` does: with every client, on the coordinates that both have uploaded, within
            the target's network. `own` compares all coordinates of each, as if unequal submodels had comparable scores.
    """

    threshold = 0.5
    all_rounds = True

    def __init__(self, blocks: Blocks = "covered") -> None:
        raise_all(choice_problem(self.name, "blocks", blocks, Blocks))
        self._blocks: Blocks = blocks

    @abstractmethod
    def gaps(self, own: ObservedModel, others: Sequence[ObservedModel], samples: Ids, context: AttackContext) -> Array:
        """(others, samples) the score of one client's upload minus that of each other one; higher for members."""

    def obstacle(self, target: AttackedModel, context: AttackContext) -> str:
        if not (uploads := context.uploads()):
            return f"{self.name} compares the uploads of clients: it has no other target"
        if self._rounds(target, context):
            return ""
        return (
            f"{self.name} compares client {target.client} with {FEWEST} others or more that upload the same "
            f"coordinates in the same round; {len(uploads) - 1} others have uploaded in the kept rounds"
        )

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        rounds = self._rounds(target, context)
        return np.asarray(np.mean([student(self.gaps(*pair, samples, context)) for pair in rounds], axis=0))

    def _rounds(self, target: AttackedModel, context: AttackContext) -> list[tuple[ObservedModel, list[ObservedModel]]]:
        """The target's upload and those that it is compared with, in every round with enough of them."""
        uploads, rounds = context.uploads(), []
        for round_, own in uploads.get(target.client, {}).items():
            beside = [seen[round_] for client, seen in uploads.items() if client != target.client and round_ in seen]
            others = self._comparable(own, beside)
            if round_ in target.rounds and len(others) >= FEWEST:
                rounds.append((own, others))
        return rounds

    def _comparable(self, own: ObservedModel, beside: list[ObservedModel]) -> list[ObservedModel]:
        if self._blocks == "own":
            return beside
        shared = [common(own, other) for other in beside]
        covering = [other for other, block in zip(beside, shared, strict=True) if torch.equal(block, own.arrived)]
        if self._blocks == "covered" and len(covering) >= FEWEST:
            return covering
        return [other for other, block in zip(beside, shared, strict=True) if bool(block.any())]


def student(gaps: Array) -> Array:
    """(samples,) probability that one more client's score would be lower than the target's, if it is no member.

    From the gaps to each other client (others, samples), at least 2. The smallest spread is the resolution of a score
    in single precision.
    """
    others = len(gaps)
    spread = np.maximum(gaps.std(axis=0, ddof=1), 1e-6)
    return np.asarray(stdtr(others - 1, gaps.mean(axis=0) / (spread * math.sqrt(1 + 1 / others))))


class FedMIALoss(FedMIA):
    """FedMIA-I: the score of an upload is the logit of the true class's probability under it.

    On shared coordinates, it is that of the target's network as it was broadcast, with these coordinates replaced by
    what one client or the other has uploaded.
    """

    name = "fedmia-loss"
    threat = Threat(sees="all clients' uploads over rounds: losses", data="none", trains="nothing")

    def gaps(self, own: ObservedModel, others: Sequence[ObservedModel], samples: Ids, context: AttackContext) -> Array:
        def phi(rate: float, vector: Tensor) -> Array:
            return context.query.run(Snapshot(own.round, rate, vector), samples).margins

        if self._blocks == "own":
            whole = phi(own.rate, own.after)
            return np.stack([whole - phi(other.rate, other.after) for other in others])
        gaps: list[Array] = []
        known: dict[bytes, Array] = {}
        for other in others:
            shared = common(own, other)
            if (block := digest(shared)) not in known:
                known[block] = phi(own.rate, torch.where(shared, own.after, own.before))
            replaced = own.before.clone()
            replaced[shared] = other.after[places(own, other, shared)].to(replaced)
            gaps.append(known[block] - phi(own.rate, replaced))
        return np.stack(gaps)


class FedMIAGradient(FedMIA):
    """FedMIA-II: the score is the cosine between an upload's step and the sample's descent direction at the broadcast.

    On shared coordinates, both clients' steps are compared with one gradient, that of the target's network.
    """

    name = "fedmia-gradient"
    threat = Threat(sees="all clients' uploads over rounds: weights", data="none", trains="nothing")

    def gaps(self, own: ObservedModel, others: Sequence[ObservedModel], samples: Ids, context: AttackContext) -> Array:
        def cosines(frame: ObservedModel, compared: Callable[[Tensor], Tensor]) -> Array:
            before = Snapshot(own.round, frame.rate, frame.before)
            return context.query.sample_gradients(before, samples, compared).T.double().cpu().numpy()

        if self._blocks == "own":
            alone, models = np.zeros((1 + len(others), len(samples))), [own, *others]
            for numbers in _grouped([digest(model.index) + digest(model.before) for model in models]):
                steps = torch.stack([step(models[number]) for number in numbers])
                alone[numbers] = cosines(models[numbers[0]], partial(_cosines, steps=steps))
            return alone[0] - alone[1:]
        shared = [common(own, other)[: own.trainable] for other in others]
        blocks = _grouped(list(map(digest, shared)))
        compared = []
        for numbers in blocks:
            block = shared[numbers[0]]
            beside = [step(others[number])[places(own, others[number], block)] for number in numbers]
            compared.append((block.nonzero().flatten(), torch.stack([step(own)[block], *beside])))

        def gaps(gradients: Tensor) -> Tensor:
            parts = [_cosines(gradients[:, chosen.to(gradients.device)], steps) for chosen, steps in compared]
            return torch.cat([part[:, :1] - part[:, 1:] for part in parts], dim=1)

        return cosines(own, gaps)[np.argsort(np.concatenate(blocks))]


def common(own: ObservedModel, other: ObservedModel) -> Tensor:
    """Which of one model's coordinates both clients have uploaded (bool)."""
    return own.arrived & torch.isin(own.index, other.index[other.arrived])


def places(own: ObservedModel, other: ObservedModel, shared: Tensor) -> Tensor:
    """Positions, in the other model, of the first of one model's coordinates that are `shared` (bool)."""
    return torch.searchsorted(other.index, own.index[: len(shared)][shared])


def step(model: ObservedModel) -> Tensor:
    """(parameters,) by how much a client's training has lowered each parameter."""
    return (model.before - model.after)[: model.trainable]


def digest(values: Tensor) -> bytes:
    """Equal for equal values."""
    return blake2b(plain_array(values).tobytes()).digest()


def _grouped(keys: Sequence[bytes]) -> list[list[int]]:
    """Positions of equal keys together."""
    groups: dict[bytes, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _cosines(gradients: Tensor, steps: Tensor) -> Tensor:
    """(samples, steps) cosines, 0 for a step that is 0."""
    return normalize(gradients, dim=1) @ normalize(steps.to(gradients), dim=1).T
