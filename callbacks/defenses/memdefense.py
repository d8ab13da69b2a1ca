"""MemDefense: clients zero the weights that moved least before they upload their model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from app.common.errors import Problem
from app.common.ranges import Fraction
from app.federation.channels.base import Aggregate, Update
from app.federation.hooks import FederatedCallback, Knob
from app.federation.module import FederatedModule
from app.federation.plan import Plan
from app.privacy.settings import raised_problems
from app.privacy.traits import Trait

Scope = Literal["global", "layer"]
"""Choose among all of a client's weights together, or within each of its weight and bias tensors."""

Variant = Literal["zero", "keep-old", "masked-mean"]

TRAITS: Mapping[Variant, Trait] = {"zero": "pruned-uploads", "keep-old": "kept-cells", "masked-mean": "chosen-cells"}

AGREEMENT = 0.6
"""Clients that agree on less of what they keep can lose the model when the learning rate falls."""


class MemDefense(FederatedCallback):
    """Zeroes the fraction of each client's weights that moved least in local training, then uploads (MemDefense).

    The paper's Algorithms 1 to 3 zero the weights themselves, and the zeros enter the mean: the server's model shrinks.
    Buffers (running statistics) are never touched. Each client chooses among the coordinates of its own submodel. It
    aims at membership inference on uploads and on the released model, and gives no formal guarantee: a server can see
    which weights are zero and refill them.

    Example::

        rampart fit --defenses.mem MemDefense --defenses.mem.gamma 0.9 --defenses.mem.spare "['*bias']"

    Args:
        gamma: fraction of the weights that are given up, 0 (no defense) to 1 (all), rounded down to whole coordinates;
            the paper uses 0.9.
        scope: choose among all weights of a client together (`global`, as the paper is written) or within each tensor
            (`layer`).
        variant: `zero` uploads zeros (the paper); `keep-old` uploads the values received instead; `masked-mean` does
            not upload them, so that the mean is over the clients that kept a weight, which tells the server what each
            client kept.
        spare: shell-style patterns of parameters that are never given up, such as `*bias`.
    """

    knob = Knob("gamma", (0.5, 0.7, 0.9))
    unnoised: ClassVar = {
        f"memdefense/{name}": f"{name.replace('_', ' ')} of what MemDefense keeps"
        for name in ("zeros", "agreement", "silent_units", "norm_ratio")
    }

    def __init__(
        self,
        gamma: Fraction = 0.9,
        scope: Scope = "global",
        variant: Variant = "zero",
        spare: list[str] | None = None,
    ) -> None:
        self.gamma, self.scope, self.variant = gamma, scope, variant
        self.spare = list(spare or [])
        self._numbers: dict[str, float] = {}
        self._lr = 0.0
        self._warned = False

    def traits(self) -> frozenset[Trait]:
        return frozenset({TRAITS[self.variant]}) if self.gamma > 0 else frozenset()

    def problems(self, federation: FederatedModule) -> Iterable[Problem]:
        wrong = list(raised_problems(lambda: federation.space.matching(self.spare)))
        yield from wrong
        if not wrong and bool(federation.space.matching(self.spare)[: federation.space.trainable].all()):
            remedy = "spare less: --defenses.NAME.spare, or leave the defense out"
            yield Problem("MemDefense spares every parameter", "it would give up no weight", remedy)

    def hindrance(self, federation: FederatedModule) -> Problem | None:
        cause = f"MemDefense gives up {self.gamma:.0%} of the weights of every upload"
        return Problem(cause, remedy="lower --defenses.NAME.gamma") if self.gamma > 0 else None

    def on_round_start(self, trainer: Trainer, federation: FederatedModule, plan: Plan) -> None:
        coordinates, device = federation.space.size, federation.theta.device
        self._held, self._kept = (torch.zeros(coordinates, device=device) for _ in range(2))
        self._spared = federation.space.matching(self.spare).to(device)

    def on_client_update(self, trainer: Trainer, federation: FederatedModule, update: Update) -> None:
        given_up = self._given_up(federation, update)
        parameters = update.index[: update.trainable]
        kept = parameters[~given_up[: update.trainable]]
        self._held.index_add_(0, parameters, torch.ones_like(parameters, dtype=self._held.dtype))
        self._kept.index_add_(0, kept, torch.ones_like(kept, dtype=self._kept.dtype))
        if self.variant == "masked-mean":
            _leave_out(update, given_up)
        elif self.variant == "keep-old":
            update.vector[given_up] = update.received[given_up]
        else:
            update.vector[given_up] = 0
        self._warn_of_collapse(federation.learning_rate, update.round)

    def _given_up(self, federation: FederatedModule, update: Update) -> Tensor:
        """Mask over the update's coordinates; buffers and spared parameters are never in it."""
        mask = torch.zeros_like(update.vector, dtype=torch.bool)
        choosable = torch.nonzero(~self._spared[update.index[: update.trainable]]).flatten()
        change = update.vector[choosable] - update.received[choosable]
        parts = [len(choosable)]
        if self.scope == "layer":
            starts = torch.tensor([block.start for block in federation.space.blocks][1:], device=update.index.device)
            ends = torch.searchsorted(update.index[choosable], starts).tolist()
            parts = [end - start for start, end in zip([0, *ends], [*ends, len(choosable)], strict=True)]
        mask[choosable] = least_moved(change, self.gamma, parts)
        return mask

    def _warn_of_collapse(self, lr: float, round_: int) -> None:
        """Warn once where the learning rate falls from one round to the next while clients keep different weights."""
        agreement = self._numbers.get("memdefense/agreement", 1.0)
        if lr < self._lr and agreement < AGREEMENT and self.variant == "zero" and not self._warned:
            self._warned = True
            warnings.warn(
                f"MemDefense: the learning rate falls to {lr:g} in round {round_ + 1} while clients agree "
                f"on {agreement:.0%} of the weights they keep: weights that others zero cannot grow back with small "
                "steps, and accuracy may collapse. Lower the rate later, or use a smaller "
                f"--defenses.{self.given_name}.gamma.",
                stacklevel=2,
            )
        self._lr = lr

    def on_server_update(self, trainer: Trainer, federation: FederatedModule, aggregate: Aggregate) -> None:
        held, kept = (federation.sum_over_processes(count) for count in (self._held, self._kept))
        before = federation.theta[: federation.space.trainable]
        mean = aggregate.mean[: federation.space.trainable]
        self._numbers = {
            "memdefense/zeros": float((mean == 0).double().mean()),
            "memdefense/agreement": float((kept.square() / held.clamp(min=1)).sum() / kept.sum().clamp(min=1)),
            "memdefense/silent_units": _silent_units(federation, mean),
            "memdefense/norm_ratio": float(mean.norm() / before.norm().clamp(min=1e-12)),
        }

    def measurements(self) -> Mapping[str, float]:
        """How far the defense has gone, as fractions.

        `zeros`: weights of the mean that are zero; `agreement`: clients that keep a weight, of those that train it,
        averaged over what is kept; `silent_units`: units without any incoming weight; `norm_ratio`: norm of the mean
        over the norm of the model before.
        """
        return self._numbers

    def state_dict(self) -> dict[str, object]:
        return {"numbers": dict(self._numbers), "lr": self._lr, "warned": self._warned}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self._numbers, self._lr = state_dict["numbers"], state_dict["lr"]  # type: ignore[assignment]
        self._warned = bool(state_dict["warned"])


def _leave_out(update: Update, given_up: Tensor) -> None:
    kept = ~given_up
    update.trainable = int(kept[: update.trainable].sum())
    update.index, update.vector, update.received = update.index[kept], update.vector[kept], update.received[kept]


def _silent_units(federation: FederatedModule, mean: Tensor) -> float:
    """Share of the units (rows of weight tensors) without any incoming weight."""
    weights = [block for block in federation.space.blocks if len(block.shape) > 1]
    rows = [mean[block.coordinates].view(block.shape[0], -1).abs().sum(dim=1) == 0 for block in weights]
    return float(torch.cat(rows).double().mean())


def least_moved(change: Tensor, fraction: float, parts: Sequence[int]) -> Tensor:
    """Mask (bool) of the given fraction of coordinates with the smallest absolute change, part by part.

    Args:
        change: (n,) values after training minus values before.
        fraction: of the coordinates of each part, 0 to 1, rounded down.
        parts: lengths of consecutive parts; they add up to n.
    """
    pieces = change.abs().split(list(parts))
    # a fraction such as 0.7 of 10 coordinates is 6.999... in floating point, and means 7
    counts = [math.floor(round(fraction * piece.numel(), 6)) for piece in pieces]
    return torch.cat([smallest(piece, count) for piece, count in zip(pieces, counts, strict=True)])


def smallest(values: Tensor, count: int) -> Tensor:
    """Mask (bool) of exactly `count` smallest of (n,) finite values; among equal ones the first by position."""
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = torch.kthvalue(values, count).values
    mask = values < threshold
    # coordinates of silent units do not move at all, so ties are common and a bare threshold would take too many
    tied = torch.nonzero(values == threshold).flatten()
    mask[tied[: count - int(mask.sum())]] = True
    return mask
