"""FjORD's local step: a prefix of the client's network, of a width drawn for every batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax, softmax

from app.errors import UserError
from app.federation.submodels import LocalWidths
from app.models.base import ScalableNet


class OrderedDropout:
    """Runs narrower prefixes inside one client's network; they share its parameters (FjORD, Horvath et al. 2021).

    Attributes:
        generator: where widths are drawn from; set before every local training.
        nets: the narrower networks, which run with the client's parameters.
    """

    def __init__(self, net: ScalableNet, capacity: float, prototype: ScalableNet, widths: LocalWidths) -> None:
        """Prepare the narrower networks.

        Args:
            net: the client's network.
            capacity: its width rate, in (0, 1].
            prototype: the server's network.
            widths: what is drawn, and the distillation.
        """
        self.generator: torch.Generator | None = None
        self._net, self._widths = net, widths
        self._levels = widths.affordable(capacity)
        like = next(net.parameters())
        self.nets = {level: prototype.scaled(level).to(like.device, like.dtype).train() for level in self._levels[1:]}
        self._whole = {**dict(net.named_parameters()), **dict(net.named_buffers())}

    @property
    def distils(self) -> bool:
        """Whether the widest network teaches the others."""
        return self._widths.distillation > 0

    def draw(self) -> float:
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
        """Loss of the drawn width: part labels, part the widest network's output, which is not moved by it.

        Args:
            drawn: logits of the drawn width.
            widest: logits of the client's whole network.
            supervised: loss of the drawn width on the labels.
        """
        weight, temperature = self._widths.distillation, self._widths.temperature
        target = softmax(widest.detach() / temperature, dim=1)
        distance = kl_div(log_softmax(drawn / temperature, dim=1), target, reduction="batchmean")
        return (1 - weight) * supervised + weight * temperature**2 * distance

    def _prefix(self, narrow: nn.Module) -> dict[str, Tensor]:
        """The first entries of every tensor: views, so that running statistics are shared too."""
        named = [*narrow.named_parameters(), *narrow.named_buffers()]
        return {name: self._whole[name][tuple(slice(length) for length in tensor.shape)] for name, tensor in named}
