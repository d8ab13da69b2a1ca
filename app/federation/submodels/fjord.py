"""FjORD: ordered dropout, a client trains prefixes of its network whose width is drawn per batch or per round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax, softmax

from app.common.errors import Problem, UserError
from app.common.ranges import Fraction, Positive, Share
from app.common.seeding import torch_generator
from app.federation.parameters import ParameterSpace
from app.federation.submodels.base import ClientRound, LocalWidths
from app.federation.submodels.prefix import Prefix
from app.models.base import ScalableNet


class FjORD(Prefix):
    """Ordered dropout (Horvath et al. 2021): prefixes of a width drawn up to what the client can afford.

    A client's capacity is its largest width. With `draw: batch` it receives and returns the prefix of that width and
    draws a new width for every local step, which trains the narrower prefix inside it. With `draw: round` it receives,
    trains and returns a prefix whose width is drawn once for the round.
    """

    def __init__(
        self,
        levels: list[Share] | None = None,
        draw: Literal["batch", "round"] = "batch",
        distillation: Fraction = 0.0,
        temperature: Positive = 1.0,
    ) -> None:
        """Choose the widths.

        Args:
            levels: width rates in (0, 1] to draw from with equal chances; a client leaves out those above its capacity
                and adds its capacity. Without any: 0.2, 0.4, 0.6, 0.8, 1.
            draw: a new width for every batch, or one per client and round.
            distillation: self-distillation: weight in [0, 1] of the widest network's output as the narrower one's
                target, 0 = off. Needs `draw: batch`; costs a second pass per step.
            temperature: of the self-distillation, above 0.
        """
        self.levels = tuple(levels) if levels else (0.2, 0.4, 0.6, 0.8, 1.0)
        self.draw = draw
        self.distillation, self.temperature = distillation, temperature

    @property
    def local_widths(self) -> LocalWidths | None:
        return self._widths if self.draw == "batch" else None

    def rate(self, client_round: ClientRound) -> float:
        if self.draw == "batch":
            return client_round.capacity
        choices = self._widths.affordable(client_round.capacity)
        generator = torch_generator(client_round.seed, "width", client_round.round, client_round.client)
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def rates(self, capacities: Iterable[float]) -> tuple[float, ...]:
        levels = {level for capacity in capacities for level in self._widths.affordable(capacity)}
        return tuple(sorted(levels, reverse=True))

    def problems(self, space: ParameterSpace, capacities: Iterable[float], clients: int) -> Iterator[Problem]:
        if self.distillation and self.draw == "round":
            yield Problem(
                "FjORD's self-distillation needs a wider network than the one drawn",
                "with `draw: round` a client holds only the drawn width, so there would be no teacher",
                "set --model.method.draw batch, or --model.method.distillation 0",
            )

    @property
    def _widths(self) -> LocalWidths:
        return LocalWidths(self.levels, self.distillation, self.temperature)


class OrderedDropout:
    """Runs narrower prefixes of one client's network, which share its parameters (FjORD, Horvath et al. 2021).

    Attributes:
        generator: generator of the sampled widths; set before every local training.
        nets: the narrower networks, which run with the client's parameters.
    """

    def __init__(self, net: ScalableNet, capacity: float, prototype: ScalableNet, widths: LocalWidths) -> None:
        self.generator: torch.Generator | None = None
        self._net, self._widths = net, widths
        self._levels = widths.affordable(capacity)
        like = next(net.parameters())
        self.nets = {level: prototype.scaled(level).to(like.device, like.dtype).train() for level in self._levels[1:]}
        self._whole = {**dict(net.named_parameters()), **dict(net.named_buffers())}

    @property
    def distils(self) -> bool:
        return self._widths.distillation > 0

    def sample_width(self) -> float:
        """The width of the next step, all levels equally likely."""
        return self._levels[int(torch.randint(len(self._levels), (), generator=self.generator))]

    def logits(self, net: nn.Module, rate: float, images: Tensor) -> Tensor:
        """Logits of the prefix of one width; gradients reach the client's own parameters."""
        if net is not self._net:
            raise UserError.of(
                "a defense has replaced the client's network, and FjORD trains parts of it",
                "the parts would be trained without the defense",
                "set --model.method.draw round, or leave the defense out",
            )
        if rate == self._levels[0]:
            return net(images)
        narrow = self.nets[rate]
        return functional_call(narrow, self._prefix(narrow), (images,))

    def distilled(self, drawn: Tensor, widest: Tensor, supervised: Tensor) -> Tensor:
        """Loss of the sampled width: part `supervised`, part the output of the `widest` network as a fixed target."""
        weight, temperature = self._widths.distillation, self._widths.temperature
        target = softmax(widest.detach() / temperature, dim=1)
        distance = kl_div(log_softmax(drawn / temperature, dim=1), target, reduction="batchmean")
        return (1 - weight) * supervised + weight * temperature**2 * distance

    def _prefix(self, narrow: nn.Module) -> dict[str, Tensor]:
        """The first entries of every tensor: views, so that running statistics are shared too."""
        named = [*narrow.named_parameters(), *narrow.named_buffers()]
        return {name: self._whole[name][tuple(slice(length) for length in tensor.shape)] for name, tensor in named}
