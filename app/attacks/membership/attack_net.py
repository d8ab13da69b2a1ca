"""Tools of attacks that train a network: option checks, seeded fitting, balanced examples, a cache of results."""

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
from app.attacks.models import Ids, Responses, Shadow
from app.errors import Problem, UserError
from app.federation.execution.distributed import one_thread
from app.metrics.membership import Array
from app.models.layers import seed_dropout
from app.seeding import numpy_generator, torch_generator

Loss = Literal["bce", "mse"]
"""Binary cross-entropy, or the squared error of the probability (Nasr et al.'s code)."""

CONSTANT = 1e-6
"""A feature whose standard deviation is below this fraction of its mean counts as constant."""

CACHED_NUMBERS = 250_000_000
"""Numbers in the results that an attack keeps for reuse, about 1 GB."""

SMALL = 5_000_000
"""Parameters below which a network trains on one thread."""

T = TypeVar("T")


def option_problems(attack: str, counts: Mapping[str, int], amounts: Mapping[str, float]) -> Iterator[Problem]:
    """Options of an attack that are out of range: counts below 1, amounts that are not finite and positive."""
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
    """Standardises features by mean and standard deviation of the training set.

    Features that are constant in training are only centred, since dividing would amplify rounding errors.
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
        return (features - self.mean) / self.scale


def dense(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, inputs first, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def seeded(build: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    """The network that `build` makes, with initial values from the seed; the global random state is unchanged."""
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
    """Train a binary classifier; the same seed gives the same network, and the global random state is unchanged.

    Args:
        net: gives one logit per row from the rows of every feature tensor; in evaluation mode afterwards. Its dropout
            must be `SeededDropout`.
        features: tensors with one row per example, on the device of the network.
        targets: (rows,) 1 or true for members, on the same device.
        epochs: at most.
        batch_size: examples per step.
        optimizer: makes the optimiser.
        loss: to minimise.
        seed: key of batches and dropout masks.
        held_out: (rows,) bool, examples that are not trained on; the epoch with the lowest error on them is kept.
            Without any, the last epoch is.
        patience: epochs without progress on the held-out examples after which training ends, None for never.

    Raises:
        UserError: where a feature is not finite.
    """
    _refuse_infinite(features)
    batches = torch_generator(seed, "attack-net-batches")
    seed_dropout(net, torch_generator(seed, "attack-net-dropout", device=targets.device))
    excluded = torch.zeros_like(targets, dtype=torch.bool) if held_out is None else held_out.to(targets.device)
    trained, truth = (~excluded).nonzero().flatten(), targets.to(features[0].dtype)
    stepper, best = optimizer(net.parameters()), _BestEpoch(patience)
    with _threads_for(net):
        for _ in progress(range(epochs), "attack network"):
            order = torch.randperm(len(trained), generator=batches).to(targets.device)
            net.train()
            for rows in trained[order].split(batch_size):
                _step(net, stepper, [feature[rows] for feature in features], truth[rows], loss)
            net.eval()
            if excluded.any() and best.stalls(net, _error_on(net, features, truth, excluded, loss)):
                break
    best.restore(net)


def _threads_for(net: nn.Module) -> AbstractContextManager[None]:
    """One thread for a small network, whose threads would mostly wait for each other."""
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


class _BestEpoch:
    """Keeps the weights of the epoch with the lowest held-out error."""

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
    """(rows,) float64 logit of the member class; its probability would round to 1 for many samples and tie them."""
    logits = [net(*rows).flatten() for rows in zip(*(feature.split(batch_size) for feature in features), strict=True)]
    return torch.cat(logits).cpu().double().numpy()


def log_losses(responses: Responses) -> Array:
    """(samples,) ln(e^loss - 1): about the loss where it is large, its logarithm where it is small.

    Monotone in the loss and finite for finite logits; it separates the losses near 0 of a model that fits its members.
    """
    return -responses.margins


@dataclass(frozen=True, eq=False)
class BalancedSample:
    """Ids of as many members as non-members of one model, members first, and the truth: 1.0 or 0.0."""

    samples: Ids
    truth: Array


def known_shadows(context: AttackContext) -> list[Shadow]:
    """Shadows on the attacker's own data, at least one; refused where the only one is attacked itself."""
    shadows = context.shadows("out")
    if not shadows:
        raise UserError.of(
            "there is no shadow model to learn from", "an attack network cannot be trained", "train 2 shadows or more"
        )
    return shadows


def balanced(members: Ids, nonmembers: Ids, most: int, seed: int, number: int) -> BalancedSample:
    """A random sample of as many members as non-members, `most` together; refused where either side is empty.

    The draw depends on the seed and on the number of the model.
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

    A whole model is better, since the attacked model is another one too. Sizes are the numbers of examples per model.
    """
    rows = torch.arange(sum(sizes))
    if len(sizes) > 2:
        return rows >= len(rows) - sizes[-1]
    order = torch.randperm(len(rows), generator=torch_generator(seed, "held-out-examples"))
    return order < len(rows) // 5


class ResultCache(Generic[T]):
    """The most recently used results by key, `most` numbers together; the latest is kept however large it is."""

    def __init__(self, size: Callable[[T], int], most: int = CACHED_NUMBERS) -> None:
        self._size, self._most = size, most
        self._results: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        result = self._results.pop(key) if key in self._results else make()
        self._results[key] = result
        while len(self._results) > 1 and sum(map(self._size, self._results.values())) > self._most:
            self._results.pop(next(iter(self._results)))
        return result


def parameters_of(net: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in net.parameters())
