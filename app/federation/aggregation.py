"""Server optimisers: how the mean of the clients becomes the server's next model.

They are torch optimisers over the server's network, so Lightning counts their steps (one per round) and keeps their
state in the checkpoint. A new one overrides `move`, and `weigh` where clients do not count by the base weight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

from app.common.ranges import Decay, NonNegative, Positive, ServerRate
from app.federation.channels.base import Aggregate, Update
from app.federation.execution.distributed import precise


class ServerOptimizer(torch.optim.Optimizer):
    """Base of the server optimisers: torch optimisers over the server's network that step once per round."""

    needs_received_loss: ClassVar[bool] = False
    """Whether clients must report the loss of the received model on their training set."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        super().__init__(parameters, {})

    def weigh(self, update: Update) -> None:
        """Adjust the weight of one update before it is uploaded."""

    @abstractmethod
    def move(self, theta: Tensor, aggregate: Aggregate, memory: dict[str, Tensor]) -> Tensor:
        """Next parameters from the current ones and the aggregate, as flat vectors in double precision.

        `memory` persists between rounds; what is not in it yet starts at zero.
        """

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, *, theta: Tensor, aggregate: Aggregate, trainable: int
    ) -> Tensor:
        """The next flat vector: `move` on the parameters, the plain mean on the buffers."""
        if closure is not None:
            closure()
        if aggregate.updates == 0:  # no update: momentum must not move the model, nor q-FFL divide by zero
            return aggregate.mean.to(theta.dtype)
        state = self.state[self.param_groups[0]["params"][0]]
        precise = {name: value.to(aggregate.mean.dtype) for name, value in state.items()}
        cut = Aggregate(
            aggregate.mean[:trainable],
            aggregate.weight[:trainable],
            aggregate.curvature[:trainable],
            aggregate.updates,
        )
        moved = self.move(theta[:trainable].to(aggregate.mean.dtype), cut, precise)
        # stored in the parameters' precision: loading an optimiser casts to it, and a resumed run must not differ
        state.update({name: value.to(theta.dtype) for name, value in precise.items()})
        return torch.cat([moved, aggregate.mean[trainable:]]).to(theta.dtype)


class FedAvg(ServerOptimizer):
    """The mean of the clients (McMahan et al. 2017), or a step of size `lr` towards it."""

    def __init__(self, parameters: Iterable[Parameter], lr: ServerRate = 1.0) -> None:
        """Plain averaging.

        Args:
            parameters: the server's parameters.
            lr: server learning rate; 1 takes the mean of the clients as it is.
        """
        super().__init__(parameters)
        self.lr = lr

    def move(self, theta: Tensor, aggregate: Aggregate, memory: dict[str, Tensor]) -> Tensor:
        return aggregate.mean if self.lr == 1.0 else theta + self.lr * (aggregate.mean - theta)


class FedAvgM(ServerOptimizer):
    """Averaging with server momentum (Hsu et al. 2019), without Nesterov or dampening."""

    def __init__(self, parameters: Iterable[Parameter], lr: ServerRate = 0.9, momentum: Decay = 0.3) -> None:
        """Momentum on the server; the defaults are those of the taxonomy's Table 6.

        Args:
            parameters: the server's parameters.
            lr: server learning rate (eta).
            momentum: share of the last step that is kept (beta), in [0, 1).
        """
        super().__init__(parameters)
        self.lr, self.momentum = lr, momentum

    def move(self, theta: Tensor, aggregate: Aggregate, memory: dict[str, Tensor]) -> Tensor:
        step = aggregate.mean - theta
        memory["momentum"] = self.momentum * memory.get("momentum", torch.zeros_like(step)) + step
        return theta + self.lr * memory["momentum"]


class FedAdam(ServerOptimizer):
    """Adaptive server steps (Reddi et al. 2021, FedAdam: no bias correction)."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: ServerRate = 0.01,
        betas: tuple[Decay, Decay] = (0.9, 0.99),
        tau: Positive = 1e-3,
    ) -> None:
        """Adam on the server.

        Args:
            parameters: the server's parameters.
            lr: server learning rate (eta).
            betas: decay of the first and second moment, in [0, 1).
            tau: adaptivity; added to the root of the second moment.
        """
        super().__init__(parameters)
        self.lr, self.betas, self.tau = lr, betas, tau

    def move(self, theta: Tensor, aggregate: Aggregate, memory: dict[str, Tensor]) -> Tensor:
        step = aggregate.mean - theta
        zero = torch.zeros_like(step)
        memory["first"] = self.betas[0] * memory.get("first", zero) + (1 - self.betas[0]) * step
        memory["second"] = self.betas[1] * memory.get("second", zero) + (1 - self.betas[1]) * step**2
        return theta + self.lr * memory["first"] / (memory["second"].sqrt() + self.tau)


class QFFL(ServerOptimizer):
    """q-fair federated learning, q-FedAvg (Li et al. 2020): clients with a high loss pull harder.

    With F_k the loss of the received model on client k's training set and d_k = (theta - theta_k) / lr:
    theta - sum_k F_k^q d_k / sum_k (q F_k^(q-1) |d_k|^2 + F_k^q / lr). For q = 0 this is the plain mean. Where clients
    train submodels, both sums of a coordinate run over the clients that uploaded it, and |d_k| is the norm over all
    parameters of client k's submodel.
    """

    needs_received_loss = True

    def __init__(self, parameters: Iterable[Parameter], q: NonNegative = 0.001) -> None:
        """Fair averaging.

        Args:
            parameters: the server's parameters.
            q: fairness, at least 0; 0 is the plain mean, larger values equalise the clients' losses.
        """
        super().__init__(parameters)
        self.q = q

    def weigh(self, update: Update) -> None:
        """Weight F^q, and the client's estimate of the Lipschitz constant in units of 1/lr."""
        loss = update.received_loss + 1e-10
        moved = update.received[: update.trainable] - update.vector[: update.trainable]
        squared = float(moved.to(precise(moved.device)).square().sum()) / update.lr**2
        update.curvature = update.lr * self.q * loss ** (self.q - 1) * squared + loss**self.q
        update.weight = loss**self.q

    def move(self, theta: Tensor, aggregate: Aggregate, memory: dict[str, Tensor]) -> Tensor:
        """theta - sum_k F_k^q (theta - theta_k) / (lr sum_k h_k); the learning rate cancels against `curvature`.

        Written from the mean, which is then exact for q = 0; coordinates that no client uploaded stay as filled in.
        """
        share = torch.where(aggregate.weight > 0, aggregate.weight / aggregate.curvature, 1.0)
        return aggregate.mean + (1 - share) * (theta - aggregate.mean)


ServerOptimizerFactory = Callable[[Iterable[Parameter]], ServerOptimizer]
