"""Tools of attacks that train a network: option checks, seeded fitting, balanced examples, a cache of results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim import Optimizer

from app.attacks.context import AttackContext
from app.attacks.models import AttackedModel, Ids, Responses, Shadow
from app.attacks.shadows.cache import turn
from app.attacks.verdicts import code_versions
from app.common.array_files import read_arrays
from app.common.errors import Problem, UserError
from app.common.files import npz_bytes, replace_all
from app.common.progress import track
from app.common.seeding import numpy_generator, torch_generator
from app.common.wording import counted
from app.federation.execution.distributed import one_thread
from app.federation.parameters import plain_array
from app.metrics.membership import Array
from app.models.layers import seed_dropout

Loss = Literal["bce", "mse"]
"""Binary cross-entropy, or the squared error of the probability (Nasr et al.'s code)."""

Objective = Loss | Literal["gaussian"]
"""Of a classifier, or the negative log-likelihood of a Gaussian whose mean and log deviation are the two outputs."""

CACHED_NUMBERS = 250_000_000
"""Numbers in the results that an attack keeps for reuse, about 1 GB."""

T = TypeVar("T")


def choice_problem(attack: str, option: str, value: str, choices: object) -> Iterator[Problem]:
    """An option of an attack that must be one of the choices of a Literal."""
    known = get_args(choices)
    if value not in known:
        cause = f"{option} of {attack} is {value!r}"
        yield Problem(cause, "the attack does not know it", f"choose one of {', '.join(known)}")


class Standardise(nn.Module):
    """Standardises features by mean and standard deviation of the training set.

    Features that are constant in training are only centred, since dividing would amplify rounding errors. Those whose
    deviation is below a millionth of their mean count as constant.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        exact = features.cpu().double()
        mean, scale = exact.mean(0), exact.std(0, correction=0)
        scale[scale <= 1e-6 * mean.abs()] = 1
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


def fit(
    build: Callable[[], nn.Module],
    features: Sequence[Tensor],
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    loss: Objective,
    seed: int,
    held_out: Tensor | None = None,
    patience: int | None = None,
    cache: Path | None = None,
) -> nn.Module:
    """A trained classifier or regression, the same for the same seed; the global random state is unchanged.

    Args:
        build: makes the network, which gives one logit per row from the rows of every feature tensor, or the two
            numbers of the objective `gaussian`. Its dropout must be `SeededDropout`.
        features: tensors with one row per example, finite.
        targets: (rows,) 1 or true for members, or the values of a regression, on the device of the features, which
            becomes that of the network.
        epochs: at most.
        seed: key of initial values, batches and dropout masks.
        held_out: (rows,) bool, examples that are not trained on; the epoch with the lowest error on them is kept.
            Without any, the last epoch is.
        patience: epochs without progress on the held-out examples after which training ends, None for never.
        cache: folder in which the network is kept, for runs that would train the same one; None for none.
    """
    _refuse_infinite(features)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPUs
        net = build().to(targets.device)
    batches = torch_generator(seed, "attack-net-batches")
    seed_dropout(net, torch_generator(seed, "attack-net-dropout", device=targets.device))
    excluded = torch.zeros_like(targets, dtype=torch.bool) if held_out is None else held_out.to(targets.device)
    trained, truth = (~excluded).nonzero().flatten(), targets.to(features[0].dtype)
    stepper, best, lowest, waited = optimizer(net.parameters()), dict[str, Any](), math.inf, 0
    inputs, settings = [*features, targets, excluded], (epochs, batch_size, repr(stepper), loss, seed, patience)
    # the threads of a small network would mostly wait for each other
    with kept(net, cache, inputs, settings) as found, one_thread() if parameters_of(net) < 5_000_000 else nullcontext():
        for _ in track(range(0 if found else epochs), "attack network", "epochs"):
            order = torch.randperm(len(trained), generator=batches).to(targets.device)
            net.train()
            for rows in trained[order].split(batch_size):
                stepper.zero_grad()
                _error(net(*(feature[rows] for feature in features)), truth[rows], loss).backward()
                stepper.step()
            net.eval()
            if not excluded.any():
                continue
            made = outputs(net, [feature[excluded] for feature in features]).double()
            error, waited = float(_error(made, truth[excluded].cpu().double(), loss)), waited + 1
            if error < lowest:
                best, lowest, waited = deepcopy(net.state_dict()), error, 0
            if patience is not None and waited >= patience:
                break
        if best:
            net.load_state_dict(best)
    return net.eval()


@contextmanager
def kept(net: nn.Module, folder: Path | None, inputs: Sequence[Tensor], settings: object) -> Iterator[bool]:
    """Whether the values of a network were found in a folder; else its values at the end of the context are kept there.

    They are found by a hash of all that they depend on: initial values, inputs and settings of the training, the code
    of attacks, and the versions of libraries. Of processes that train the same network, one does and the others wait.
    """
    if folder is None:
        yield False
        return
    digest = hashlib.blake2b(json.dumps([str(net), repr(settings), code_versions()]).encode(), digest_size=16)
    for tensor in (*net.state_dict().values(), *inputs):
        digest.update(repr((tensor.shape, tensor.dtype)).encode() + plain_array(tensor).tobytes())
    file = folder / f"network-{digest.hexdigest()}.npz"
    with turn(folder, [file.name], "an attack network"):
        if _restored(net, file):
            yield True
            return
        yield False
        values = {name: plain_array(value) for name, value in net.state_dict().items()}
        with suppress(OSError):  # where the disk is full, the next run trains it again
            replace_all({file: npz_bytes(values)})


def _restored(net: nn.Module, file: Path) -> bool:
    """Give a network the values in a file; False where the file is missing or broken, such as cut short by a crash."""
    try:
        arrays, own = read_arrays(file), net.state_dict()
        values = {name: torch.from_numpy(arrays[name]).to(value) for name, value in own.items()}
    except (OSError, ValueError, KeyError, EOFError, TypeError, UserError, BadZipFile):
        return False
    if any(values[name].shape != value.shape for name, value in own.items()):
        return False  # before any value of the network is changed
    net.load_state_dict(values)
    return True


def _error(made: Tensor, targets: Tensor, loss: Objective) -> Tensor:
    if loss == "gaussian":
        mean, log_deviation = made.unbind(1)
        return (log_deviation + ((targets - mean) * (-log_deviation).exp()).square() / 2).mean()
    logits = made.flatten()
    return mse_loss(logits.sigmoid(), targets) if loss == "mse" else binary_cross_entropy_with_logits(logits, targets)


def _refuse_infinite(features: Sequence[Tensor]) -> None:
    bad = sum(int((~feature.isfinite()).any(1).sum()) for feature in features)
    if bad:
        raise UserError.of(
            f"not finite in the attack network's training set: {counted(bad, 'row')}",
            "a shadow model or a student has diverged, and the attack network would learn nothing",
            "lower the learning rate of what diverged, or leave out this attack",
        )


def predict(net: nn.Module, features: Sequence[Tensor]) -> Array:
    """(rows,) float64 logit of the member class; its probability would round to 1 for many samples and tie them."""
    return outputs(net, features).flatten().double().numpy()


@torch.no_grad()
def outputs(layers: Callable[..., Tensor], features: Sequence[Tensor], batch_size: int = 256) -> Tensor:
    """What layers of a network give for every row, batch by batch, on the CPU."""
    batches = zip(*(feature.split(batch_size) for feature in features), strict=True)
    return torch.cat([layers(*rows) for rows in batches]).cpu()


def log_losses(responses: Responses) -> Array:
    """(samples,) ln(e^loss - 1): about the loss where it is large, its logarithm where it is small.

    Monotone in the loss and finite for finite logits; it separates the losses near 0 of a model that fits its members.
    """
    return -responses.margins


def known_shadows(context: AttackContext) -> list[Shadow]:
    """Shadows on the attacker's own data, at least one; refused where the only one is attacked itself."""
    shadows = context.shadows("out")
    if not shadows:
        raise UserError.of(
            "there is no shadow model to learn from", "an attack network cannot be trained", "train 2 shadows or more"
        )
    return shadows


def train_on(
    examples: Sequence[Shadow],
    observe: Callable[[AttackedModel, Ids], list[Tensor]],
    build: Callable[[list[Tensor]], nn.Module],
    most: int,
    patience: int | None,
    seed: int,
    **settings: Any,
) -> nn.Module:
    """A network trained on as many members as non-members of every model, `most` together; refused where it has none.

    `observe` gives its inputs, `build` makes it from those of all models, further settings are those of `fit`. Without
    patience, no example is held out.
    """
    drawn = [balanced(one, most, seed, number) for number, one in enumerate(examples)]
    rows = [observe(one.model, samples) for one, samples in zip(examples, drawn, strict=True)]
    features = [torch.cat(parts) for parts in zip(*rows, strict=True)]
    sizes = [len(samples) for samples in drawn]
    truth = torch.cat([torch.arange(size) < size // 2 for size in sizes]).to(features[0])
    held_out = None if patience is None else hold_out(sizes, seed)
    return fit(lambda: build(features), features, truth, seed=seed, held_out=held_out, patience=patience, **settings)


def balanced(known: Shadow, most: int, seed: int, number: int) -> Ids:
    """A random sample of as many members as non-members, `most` together, members first.

    The draw depends on the seed and on the number of the model.
    """
    count = min(len(known.members), len(known.nonmembers), most // 2)
    if count == 0:
        raise UserError.of(
            f"there are {counted(len(known.members), 'member')} and {counted(len(known.nonmembers), 'non-member')} to "
            "learn from",
            "an attack network cannot be trained",
            "keep more samples out of training with --data.holdout.shadow",
        )
    generator = numpy_generator(seed, "balanced-examples", number)
    return np.concatenate([generator.permutation(ids)[:count] for ids in (known.members, known.nonmembers)])


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
