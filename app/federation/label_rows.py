"""Rows of the classifier by class, for clients that have not seen every class."""

from __future__ import annotations

import torch
from torch import Tensor

from app.federation.parameters import ParameterSpace


class LabelRows:
    """Which class a cell of the last layer belongs to (HeteroFL: a client averages only the rows of its classes)."""

    def __init__(self, space: ParameterSpace, classes: int) -> None:
        """Find the last layer.

        Args:
            space: layout of the server's vector.
            classes: number of classes.
        """
        uncut = [block for block in space.blocks if block.axes and block.axes[0] is None and block.shape[0] == classes]
        last = uncut[-1].name.rpartition(".")[0] if uncut else ""
        self._label = torch.full((space.size,), classes)  # one past the last class: belongs to none
        for block in uncut:
            if block.name.rpartition(".")[0] == last:
                self._label[block.cells] = torch.arange(classes).repeat_interleave(block.size // classes)

    def sent(self, index: Tensor, owned: Tensor) -> Tensor:
        """Mask over a submodel's cells: False on rows of classes the client does not have.

        Args:
            index: cells of the submodel.
            owned: (classes) bool, whether the client has samples of each class.
        """
        anyway = torch.cat([owned, owned.new_ones(1)]).to(index.device)
        return anyway[self._label.to(index.device)[index]]
