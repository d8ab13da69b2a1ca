"""What attacks that train a network share: seeded fitting, logits as scores, balanced examples, reuse of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim import Optimizer

from app.attacks.lab import progress
from app.attacks.responses import Ids, Responses
from app.errors import Problem, UserError
from app.metrics.membership import Array
from app.models.layers import seed_dropout
from app.seeding import numpy_generator, torch_generator

Loss = Literal["bce", "mse"]
"""Cross-entropy of the predicted membership, or the squared error of its probability (Nasr et al.'s code)."""

CONSTANT = 1e-6
"""A feature that varies by less than this share of its mean counts as constant."""

FITTED = 1e-3
"""Mean error of an epoch at which training ends: it would only blow up the logits, with gradients too small for Adam."""

T = TypeVar("T")


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
        exact = features.double().cpu()  # sums in double precision; Apple's GPUs have none
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
) -> None:
    """Train a binary classifier; the same seed gives the same network, and no global random state is touched.

    Args:
        net: gives one logit per row, called with the rows of every feature tensor; in evaluation mode afterwards. Its
            dropout must be `SeededDropout`.
        features: tensors with one row per example, on the device of the network.
        targets: (rows,) 1 for members, 0 for non-members.
        epochs: most passes over the examples; fewer where they are told apart perfectly before.
        batch_size: examples per step.
        optimizer: makes the optimiser.
        loss: what is minimised.
        seed: key of the batches and of the dropout masks.

    Raises:
        UserError: where a feature is not finite.
    """
    _refuse_infinite(features)
    batches = torch_generator(seed, "attack-net-batches")
    seed_dropout(net, torch_generator(seed, "attack-net-dropout", device=targets.device))
    steps = optimizer(net.parameters())
    wanted = targets.to(features[0].dtype)
    net.train()
    for _ in progress(range(epochs), "attack network"):
        errors = []
        for batch in torch.randperm(len(targets), generator=batches).to(targets.device).split(batch_size):
            steps.zero_grad()
            error = _error(net(*(feature[batch] for feature in features)), wanted[batch], loss)
            error.backward()
            steps.step()
            errors.append(error.detach())
        if float(torch.stack(errors).mean()) < FITTED:
            break
    net.eval()


def _error(logits: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    if loss == "mse":
        return mse_loss(logits.flatten().sigmoid(), targets)
    return binary_cross_entropy_with_logits(logits.flatten(), targets)


def _refuse_infinite(features: Sequence[Tensor]) -> None:
    bad = sum(int((~feature.isfinite()).flatten(1).any(1).sum()) for feature in features)
    if bad:
        raise UserError.of(
            f"{bad} rows of the attack network's training set are not finite",
            "a shadow model or a student has diverged, and the attack network would learn nothing",
            "lower the learning rate of what diverged, or leave out this attack",
        )


@torch.no_grad()
def predict(net: nn.Module, features: Sequence[Tensor], batch_size: int = 1024) -> Array:
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


def balanced(members: Ids, nonmembers: Ids, most: int, seed: int, number: int = 0) -> tuple[Ids, Ids]:
    """As many members as non-members, drawn at random, ascending.

    Args:
        members: ids to draw members from.
        nonmembers: ids to draw non-members from.
        most: members and non-members together, at least 2.
        seed: key of the draw.
        number: tells draws of one seed apart.

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
    drawn = [np.sort(generator.permutation(ids)[:count]) for ids in (members, nonmembers)]
    return drawn[0], drawn[1]


def option_problems(attack: str, counts: dict[str, int], amounts: dict[str, float]) -> Iterator[Problem]:
    """Options out of range: counts are at least 1, amounts are finite and positive."""
    for option, count in counts.items():
        if count < 1:
            yield Problem(f"{option} of {attack} is {count}", "there would be nothing to train", "give 1 or more")
    for option, amount in amounts.items():
        if not (math.isfinite(amount) and amount > 0):
            yield Problem(f"{option} of {attack} is {amount}", "training would go nowhere", "give a positive number")


def choice_problem(attack: str, option: str, value: str, choices: object) -> Iterator[Problem]:
    """A value that is not among the choices of a Literal."""
    known = get_args(choices)
    if value not in known:
        cause = f"{option} of {attack} is {value!r}"
        yield Problem(cause, "the attack does not know it", f"choose one of {', '.join(known)}")


class Kept(Generic[T]):
    """Results by key, the latest used ones, as many as fit into a number of cells.

    Args:
        most: cells (numbers) kept together; the latest result is kept however large it is.
        cells: size of a result.
    """

    def __init__(self, most: int, cells: Callable[[T], int]) -> None:
        self._most, self._cells = most, cells
        self._results: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key, made where it is not there."""
        result = self._results.pop(key) if key in self._results else make()
        self._results[key] = result
        while len(self._results) > 1 and sum(map(self._cells, self._results.values())) > self._most:
            self._results.pop(next(iter(self._results)))
        return result
