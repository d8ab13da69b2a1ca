"""One client: a LightningModule around its submodel, with the local objective and the local training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from app.federation.execution.distributed import precise
from app.federation.local_training import LocalTraining
from app.federation.submodels.fjord import OrderedDropout
from app.models.base import ScalableNet

Batch = tuple[Tensor, Tensor]
LossHook = Callable[["ClientModule", Batch, Tensor, Tensor], Tensor]
PenaltyHook = Callable[["ClientModule"], Tensor]


class ClientModule(LightningModule):
    """The local objective of one client at a time: cross-entropy, the proximal term, and terms of callbacks.

    One module is reused for all clients of one width on one worker. It is an ordinary LightningModule: a Trainer can
    train a single client, unless its network draws noise or clamps parameters between steps.

    Example::

        Trainer(max_epochs=1, gradient_clip_val=local.clip_norm).fit(ClientModule(net, local), loader)

    Attributes:
        net: the client's submodel; callbacks may wrap it for the duration of one local training.
        loss_hooks: called in order on every loss (`FederatedCallback.client_loss`).
        penalty_hooks: terms that do not depend on data (`FederatedCallback.client_penalty`).
        ordered_dropout: samples a narrower prefix of the net for every step (FjORD); None for one width.
        client: id of the current client.
        round: 0-based round.
        samples: number of the client's training samples.
        received: the flat vector of its submodel, as received from the server.
        index: coordinates of the server's vector that `received` holds (int64, ascending); None outside a federation.
        refusal: why the client does not train in this round; callbacks may set it in `on_client_start`.
        optimizer: steps the net; callbacks may replace it in `on_client_start`.
        batches: images and labels of the local steps; callbacks may replace it in `on_client_start`.
        load_samples: loads (augmented) images and labels of given positions of the client's training set.
        take_step: moves the net by one batch and returns the loss (an empty tensor for a batch without samples);
            callbacks may replace it in `on_client_start`.
        noise: generator of the net's noise; None for a net without any.
        owned: whether the client has samples of each class (bool, classes); only where logits are masked.
        share: weight of one sample, 1 / samples, by which a step weighs the net's own penalty.
    """

    owned: Tensor
    share: Tensor

    def __init__(
        self,
        net: ScalableNet,
        local: LocalTraining,
        loss_hooks: Iterable[LossHook] = (),
        penalty_hooks: Iterable[PenaltyHook] = (),
        ordered_dropout: OrderedDropout | None = None,
        classes: int = 0,
    ) -> None:
        super().__init__()
        self.net: nn.Module = net
        self._bare = (net,)  # callbacks may wrap `net`; a tuple hides the second name from torch
        self._trained = tuple(parameter for parameter in net.parameters() if parameter.requires_grad)
        self.local = local
        self.loss_hooks, self.penalty_hooks = tuple(loss_hooks), tuple(penalty_hooks)
        self.ordered_dropout = ordered_dropout
        self.client = -1
        self.round = 0
        self.samples = 0
        self.received: Tensor | None = None
        self.index: Tensor | None = None
        self.refusal = ""
        self.lr = local.learning_rates(1)[0]
        self.optimizer: Optimizer | None = None
        self.batches: Iterable[Batch] = ()
        self.load_samples: Callable[[Tensor], Batch] | None = None
        self.take_step: Callable[[Batch], Tensor] = self.plain_step
        self.noise: torch.Generator | None = None
        self.register_buffer("share", torch.ones(()), persistent=False)
        if local.mask_labels:
            self.register_buffer("owned", torch.ones(classes, dtype=torch.bool), persistent=False)
        for name in local.kept_vectors:
            for position, parameter in enumerate(net.parameters()):
                value = parameter.detach().clone() if name == "anchor" else torch.zeros_like(parameter)
                self.register_buffer(f"{name}_{position}", value, persistent=False)

    @property
    def bare(self) -> ScalableNet:
        """The submodel itself, without what callbacks have wrapped around it."""
        return self._bare[0]

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        loss, penalty = self.data_loss(batch), self.penalty()
        return loss if penalty is None else loss + penalty

    def data_loss(self, batch: Batch) -> Tensor:
        """The part of the objective that depends on the batch: a mean over its samples."""
        logits, loss = self._supervised(*batch)
        for hook in self.loss_hooks:
            loss = hook(self, batch, logits, loss)
        return loss

    def penalty(self) -> Tensor | None:
        """The part of the objective that does not depend on data."""
        terms = [hook(self) for hook in self.penalty_hooks]
        if self.local.proximal:
            terms.append(self.local.proximal / 2 * self._squared_distance())
        if self.local.scaffold:
            terms.append(self._correction())
        if (own := self.bare.penalty()) is not None:
            terms.append(self.share * own)
        return torch.stack(terms).sum() if terms else None

    def _supervised(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.ordered_dropout is None:
            logits = self(images)
            return logits, self.label_loss(logits, labels)
        return self._ordered(self.ordered_dropout, images, labels)

    def _ordered(self, dropout: OrderedDropout, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a sampled width; with distillation, the widest network learns in the same step."""
        rate = dropout.sample_width()
        logits = dropout.logits(self.net, rate, images)
        loss = self.label_loss(logits, labels)
        if not dropout.distils or rate not in dropout.nets:
            return logits, loss
        widest = self(images)
        return logits, self.label_loss(widest, labels) + dropout.distilled(logits, widest, loss)

    def label_loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of the labels, or of labels that are smoothed by a fraction in [0, 1]."""
        known = torch.where(self.owned, logits, 0) if self.local.mask_labels else logits
        return cross_entropy(known, labels, label_smoothing=smoothing)

    def configure_optimizers(self) -> Optimizer:
        return self.local.build_optimizer(self._trained, self.lr)

    def assign(self, **attributes: Any) -> None:
        """Set plain attributes; one by one, torch would look for each among parameters, buffers and modules."""
        self.__dict__.update(attributes)

    @torch.no_grad()
    def keep(self, name: str) -> None:
        """Keep the current parameters as one of the vectors that the objective needs (`LocalTraining.kept_vectors`)."""
        for position, parameter in enumerate(self.net.parameters()):
            getattr(self, f"{name}_{position}").copy_(parameter)

    def fit(self) -> float:
        """Run the local steps; returns the mean loss over those with data (0 if none had any, NaN without a step)."""
        if not self.net.training:
            self.net.train()
        settle = self._settling()
        losses = []
        for batch in self.batches:
            settle()
            losses.append(self.take_step(batch).reshape(-1))
        settle()
        if not losses:
            return float("nan")
        seen = torch.cat(losses).to(precise(losses[0].device))
        return float(seen.mean()) if len(seen) else 0.0

    def _settling(self) -> Callable[[], None]:
        """A function to call between steps: new noise for the network, and clamped parameters back in their ranges."""
        net, noise = self.bare, self.noise
        bounds = [(net.get_parameter(name), *limits) for name, limits in net.clamp_ranges().items()]

        @torch.no_grad()
        def settle() -> None:
            if noise is not None:
                self.redraw(noise)
            for parameter, low, high in bounds:
                parameter.clamp_(low, high)

        return settle

    def redraw(self, generator: torch.Generator) -> None:
        """Write new noise into the network's buffers."""
        for name, value in self.bare.sample_noise(generator).items():
            self.bare.get_buffer(name).copy_(value)

    def plain_step(self, batch: Batch) -> Tensor:
        """One step of the optimiser; returns the loss, detached."""
        assert self.optimizer is not None
        loss = self.training_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.local.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.local.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def _squared_distance(self) -> Tensor:
        parts: list[Any] = [
            (parameter - getattr(self, f"anchor_{position}")).square().sum()
            for position, parameter in enumerate(self.net.parameters())
        ]
        return torch.stack(parts).sum()

    def _correction(self) -> Tensor:
        """A term of value 0 whose gradient is the correction of SCAFFOLD, so that losses stay those of the data."""
        parts: list[Any] = [
            (getattr(self, f"correction_{position}") * (parameter - parameter.detach())).sum()
            for position, parameter in enumerate(self.net.parameters())
        ]
        return torch.stack(parts).sum()
