"""Clients whose losses are quadratics with optima and curvatures of their own, so that every step has a closed form."""

from collections.abc import Sequence

import pytest
import torch
from federation_kit import Blobs
from torch import Tensor, nn

from app.federation.client import ClientModule
from app.models.base import LayerAxes, ScalableNet
from datamodules import RawData

PER_CLIENT = 6


class Slope(ScalableNet):
    """Logits are the brightness of the image times one slope per class."""

    def __init__(self, shape, rate=1.0):
        super().__init__()
        self.save_hyperparameters()
        self.line = nn.Linear(1, shape.classes, bias=False)

    def layer_axes(self):
        """Nothing is cut."""
        return {"line": LayerAxes()}

    def forward(self, images):
        """Logits."""
        return self.line(images[:, 0, :1, 0])


class Levels(Blobs):
    """Client k's pictures are all of brightness `levels[k]` (after normalisation, in [-1, 1]), with random labels."""

    def __init__(self, levels: Sequence[float], **settings) -> None:
        super().__init__([PER_CLIENT] * len(levels), **settings)
        self.levels = levels

    def load(self) -> RawData:
        """On the 0..1 scale."""
        raw = super().load()
        brightness = (torch.tensor(self.levels).repeat_interleave(PER_CLIENT) + 1) / 2
        images = torch.ones_like(raw.images) * brightness[:, None, None, None]
        return RawData(images, raw.labels, raw.test_images, raw.test_labels, raw.class_names, raw.mean, raw.std)

    def optimum(self, client: int, classes: int = 3) -> Tensor:
        """Slopes of least squared error of a client: mean one-hot label over brightness."""
        labels = self.store.labels[self.train_indices(client)]
        shares = torch.stack([(labels == label).double().mean() for label in range(classes)])
        return shares / self.levels[client]


def square_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local losses become half the squared error: curvature levels[k]^2 around the client's optimum."""

    def squared(client, logits, labels, smoothing=0.0):
        wanted = labels[:, None] == torch.arange(logits.shape[1])
        return 0.5 * (logits - wanted.to(logits)).square().sum(dim=1).mean()

    monkeypatch.setattr(ClientModule, "label_loss", squared)
