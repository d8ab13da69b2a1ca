"""What attacks that train a network share: seeded fitting, logits as scores, balanced examples, reuse of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim import Optimizer

from app.attacks.context import AttackContext, progress
from app.attacks.models import Shadow
from app.attacks.responses import Ids, Responses
from app.errors import Problem, UserError
from app.federation.execution.distributed import one_thread
from app.metrics.membership import Array
from app.models.layers import seed_dropout
from app.seeding import numpy_generator, torch_generator

Loss = Literal["bce", "mse"]
"""Cross-entropy of the predicted membership, or the squared error of its probability (Nasr et al.'s code)."""

CONSTANT = 1e-6
"""A feature that varies by less than this share of its mean counts as constant."""

KEPT_CELLS = 250_000_000
"""Numbers that an attack keeps for reuse, about 1 GB."""

SMALL = 5_000_000
"""Parameters of a network that is not worth several threads."""

T = TypeVar("T")


def option_problems(attack: str, counts: Mapping[str, int], amounts: Mapping[str, float]) -> Iterator[Problem]:
    """Options of an attack that are out of range: counts are at least 1, amounts are finite and positive."""
    for option, count in counts.items():
        if count < 1:
            yield Problem(f"{option} of {attack} is {count}", "there would be nothing to train", "give 1 or more")
    for option, amount in amounts.items():
        if not 0 < amount < math.inf:
            yield Problem(f"{option} of {attack} is {amount}", "training would go nowhere", "give a positive number")


def share_problems(attack: str, **shares: float) -> Iterator[Problem]:
    """Options of an attack that must be in [0, 1), such as momentum, weight decay and dropout."""
    for option, share in shares.items():
        if not 0 <= share < 1:
            yield Problem(f"{option} of {attack} is {share}", "training would diverge", "give 0 or more, below 1")


def choice_problem(attack: str, option: str, value: str, choices: object) -> Iterator[Problem]:
    """An option of an attack that must be one of the choices of a Literal."""
    known = get_args(choices)
    if value not in known:
        cause = f"{option} of {attack} is {value!r}"
        yield Problem(cause, "the attack does not know it", f"choose one of {', '.join(known)}")


class Standardise(nn.Module):
    """Subtracts the mean and divides by the standard deviation that the features have in training.

    Features that are constant in training are only centred: dividing would blow up rounding errors.

    Args:
        features: (rows, features) of the training set.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        exact = features.cpu().double()
        mean, scale = exact.mean(0), exact.std(0, correction=0)
        scale[scale <= CONSTANT * mean.abs()] = 1
        self.register_buffer("mean", mean.to(features))
        self.register_buffer("scale", scale.to(features))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, features) in units of the training set's standard deviation."""
        return (features - self.mean) / self.scale


def dense(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, inputs first, with ReLU between them but not behind the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def seeded(build: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    """The network that `build` makes, with initial values that depend on the seed only; nothing else is disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPUs
        return build().to(device)


def fit(
    net: nn.Module,
    features: Sequence[Tensor],
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    loss: Loss,
    seed: int,
    held_out: Tensor | None = None,
    patience: int | None = None,
) -> None:
    """Train a binary classifier; the same seed gives the same network, and no global random state is touched.

    Args:
        net: gives one logit per row, called with the rows of every feature tensor; in evaluation mode afterwards. Its
            dropout must be `SeededDropout`.
        features: tensors with one row per example, on the device of the network.
        targets: (rows,) 1 or true for members, on the same device.
        epochs: most passes over the examples.
        batch_size: examples per step.
        optimizer: makes the optimiser.
        loss: what is minimised.
        seed: key of the batches and of the dropout masks.
        held_out: (rows,) bool, examples that are not trained on: the epoch with the lowest error on them counts.
            Without any, the last epoch counts.
        patience: epochs without progress on the held-out examples after which training ends, None for never.

    Raises:
        UserError: where a feature is not finite.
    """
    _refuse_infinite(features)
    batches = torch_generator(seed, "attack-net-batches")
    seed_dropout(net, torch_generator(seed, "attack-net-dropout", device=targets.device))
    spared = torch.zeros_like(targets, dtype=torch.bool) if held_out is None else held_out.to(targets.device)
    trained, wanted = (~spared).nonzero().flatten(), targets.to(features[0].dtype)
    stepper, best = optimizer(net.parameters()), _Best(patience)
    with _threads_for(net):
        for _ in progress(range(epochs), "attack network"):
            order = torch.randperm(len(trained), generator=batches).to(targets.device)
            net.train()
            for rows in trained[order].split(batch_size):
                _step(net, stepper, [feature[rows] for feature in features], wanted[rows], loss)
            net.eval()
            if spared.any() and best.stalls(net, _error_on(net, features, wanted, spared, loss)):
                break
    best.restore(net)


def _threads_for(net: nn.Module) -> AbstractContextManager[None]:
    """One thread for a small network, whose threads would mostly wait for each other, above all on a busy machine."""
    return one_thread() if parameters_of(net) < SMALL else nullcontext()


def _step(net: nn.Module, optimizer: Optimizer, features: Sequence[Tensor], targets: Tensor, loss: Loss) -> None:
    optimizer.zero_grad()
    _error(net(*features).flatten(), targets, loss).backward()
    optimizer.step()


def _error(logits: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    return mse_loss(logits.sigmoid(), targets) if loss == "mse" else binary_cross_entropy_with_logits(logits, targets)


def _error_on(net: nn.Module, features: Sequence[Tensor], targets: Tensor, rows: Tensor, loss: Loss) -> float:
    logits = torch.from_numpy(predict(net, [feature[rows] for feature in features]))
    return float(_error(logits, targets[rows].cpu().double(), loss))


class _Best:
    """The epoch with the lowest held-out error."""

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._error, self._waited = math.inf, 0
        self._state: dict[str, Any] = {}

    def stalls(self, net: nn.Module, error: float) -> bool:
        """Whether too many epochs have passed without progress."""
        self._waited += 1
        if error < self._error:
            self._error, self._waited = error, 0
            self._state = deepcopy(net.state_dict())
        return self._patience is not None and self._waited >= self._patience

    def restore(self, net: nn.Module) -> None:
        """Go back to the best epoch, where there is one."""
        if self._state:
            net.load_state_dict(self._state)


def _refuse_infinite(features: Sequence[Tensor]) -> None:
    bad = sum(int((~feature.isfinite()).any(1).sum()) for feature in features)
    if bad:
        raise UserError.of(
            f"{bad} rows of the attack network's training set are not finite",
            "a shadow model or a student has diverged, and the attack network would learn nothing",
            "lower the learning rate of what diverged, or leave out this attack",
        )


@torch.no_grad()
def predict(net: nn.Module, features: Sequence[Tensor], batch_size: int = 256) -> Array:
    """(rows,) float64 logit of the member class, any sign.

    Not its probability, which rounds to 1 for many samples and so makes ties where there are none.
    """
    logits = [net(*rows).flatten() for rows in zip(*(feature.split(batch_size) for feature in features), strict=True)]
    return torch.cat(logits).cpu().double().numpy()


def log_losses(responses: Responses) -> Array:
    """(samples,) ln(e^loss - 1), any sign: about the loss where it is large, its logarithm where it is small.

    It rises with the loss, is finite for every finite logit, and tells apart the losses near 0 of a model that fits its
    members, which in units of the loss are all the same.
    """
    return -responses.margins


@dataclass(frozen=True, eq=False)
class BalancedSample:
    """Samples of one model, half of them members.

    Attributes:
        samples: ids, the members first.
        truth: (samples,) float64, 1 for members, 0 for others.
    """

    samples: Ids
    truth: Array


def known_shadows(context: AttackContext) -> list[Shadow]:
    """Shadows on the attacker's own data, at least one.

    Raises:
        UserError: where none is left, because the only one plays the target.
    """
    shadows = context.shadows("out")
    if not shadows:
        raise UserError.of(
            "there is no shadow model to learn from", "an attack network cannot be trained", "train 2 shadows or more"
        )
    return shadows


def balanced(members: Ids, nonmembers: Ids, most: int, seed: int, number: int) -> BalancedSample:
    """As many members as non-members, drawn at random.

    Args:
        members: ids to draw members from.
        nonmembers: ids to draw non-members from.
        most: members and non-members together, at least 2.
        seed: key of the draw.
        number: of the model, tells the draws of one seed apart.

    Raises:
        UserError: where either side is empty.
    """
    count = min(len(members), len(nonmembers), most // 2)
    if count == 0:
        raise UserError.of(
            f"there are {len(members)} members and {len(nonmembers)} non-members to learn from",
            "an attack network cannot be trained",
            "keep more samples out of training with --data.holdout.shadow",
        )
    generator = numpy_generator(seed, "balanced-examples", number)
    drawn = [generator.permutation(ids)[:count] for ids in (members, nonmembers)]
    return BalancedSample(np.concatenate(drawn), np.repeat([1.0, 0.0], count))


def hold_out(sizes: Sequence[int], seed: int) -> Tensor:
    """(rows,) bool, examples to hold out: those of the last of three or more models, else a random fifth.

    A whole model is better, since the attacked model is another one too.

    Args:
        sizes: examples of every model, in the order of the rows.
        seed: key of the draw.
    """
    rows = torch.arange(sum(sizes))
    if len(sizes) > 2:
        return rows >= len(rows) - sizes[-1]
    order = torch.randperm(len(rows), generator=torch_generator(seed, "held-out-examples"))
    return order < len(rows) // 5


class ResultCache(Generic[T]):
    """Results by key, the latest used ones, as many as fit into a number of coordinates.

    Args:
        coordinates: size of a result in numbers; the latest result is kept however large it is.
        most: numbers kept together.
    """

    def __init__(self, coordinates: Callable[[T], int], most: int = KEPT_CELLS) -> None:
        self._coordinates, self._most = coordinates, most
        self._results: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key, made where it is not there."""
        result = self._results.pop(key) if key in self._results else make()
        self._results[key] = result
        while len(self._results) > 1 and sum(map(self._coordinates, self._results.values())) > self._most:
            self._results.pop(next(iter(self._results)))
        return result


def parameters_of(net: nn.Module) -> int:
    """Number of parameters of a network."""
    return sum(parameter.numel() for parameter in net.parameters())
