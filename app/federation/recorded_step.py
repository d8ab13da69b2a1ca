"""Losses and gradients of a stack of clients: computed under vmap at first, then replayed from a recording.

For small networks most of a step goes into finding out what to compute: vmap, autograd and the swapping of parameters
take several times as long as the products. A recording holds the very same tensor operations without all that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from app.federation.stacked_linear import StackedLinear

Objective = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
"""One client's loss, given its parameters and constants by name, its images and its labels."""

WORTHWHILE = 16
"""Steps of one shape after which it is recorded: recording costs as much as some hundred replayed steps save."""

_Recording = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor], tuple[Tensor, Sequence[Tensor | None]]]


class RecordedStep:
    """Evaluates one objective for stacks of clients."""

    def __init__(self, objective: Objective, record: bool) -> None:
        """Nothing recorded yet.

        Args:
            objective: of one client; may depend on nothing but its arguments if it is recorded.
            record: whether to replay shapes that come up often.
        """
        self._objective, self._record = objective, record
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._recordings: dict[tuple[object, ...], _Recording] = {}

    def __call__(
        self, values: Mapping[str, Tensor], constants: Mapping[str, Tensor], images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Loss of every client, and its gradient with respect to the client's own values (None for those not used).

        Args:
            values: (clients, ...) parameters by name.
            constants: (clients, ...) what else the objective reads, by name.
            images: (clients, batch, ...).
            labels: (clients, batch).
        """
        given = (list(values.values()), list(constants.values()), images, labels)
        step = self._step(tuple(values), tuple(constants))
        shape = (images.shape, images.dtype, tuple(values), tuple(constants))
        self._seen[shape] += 1
        if not self._record or self._seen[shape] < WORTHWHILE:
            return step(*given)
        if shape not in self._recordings:
            recording = make_fx(step)(*given)
            recording.graph.eliminate_dead_code()
            recording.recompile()
            self._recordings[shape] = recording
        with torch.no_grad():
            return self._recordings[shape](*given)

    def _step(self, names: tuple[str, ...], constant_names: tuple[str, ...]) -> _Recording:
        def step(
            values: Sequence[Tensor], constants: Sequence[Tensor], images: Tensor, labels: Tensor
        ) -> tuple[Tensor, Sequence[Tensor | None]]:
            leaves = [value.detach().requires_grad_() for value in values]
            named = dict(zip((*names, *constant_names), (*leaves, *constants), strict=True))
            with StackedLinear(), torch.enable_grad():
                losses = vmap(self._objective)(named, images, labels)
                gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
            return losses.detach(), gradients

        return step
