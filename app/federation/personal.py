"""Cells that stay on the client: all of them for the `local` baseline, the last layer for a local head."""

from __future__ import annotations

import torch
from torch import Tensor

from app.federation.processes import gather


class PersonalCells:
    """Each client's own values of the cells that are never sent. A client that has none yet takes the broadcast's."""

    def __init__(self, mask: Tensor) -> None:
        """Nothing stored yet.

        Args:
            mask: (cells of the server's vector) bool, True where a cell stays on the client.
        """
        self._mask = mask
        self._any = bool(mask.any())
        self._values: dict[int, Tensor] = {}
        self._fresh: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return self._any

    @property
    def everything(self) -> bool:
        """Whether no cell is shared, so that there is no federation and the server learns nothing."""
        return bool(self._mask.all())

    def shared(self, index: Tensor) -> Tensor:
        """Mask over a submodel's cells: True where they travel."""
        return ~self._mask.to(index.device)[index]

    def untouched(self, theta: Tensor, moved: Tensor) -> Tensor:
        """The server's next vector with its own copy of personal cells as it was: what newcomers start from."""
        return torch.where(self._mask.to(theta.device), theta, moved) if self else moved

    def restore(self, client: int, index: Tensor, vector: Tensor) -> None:
        """Put the client's own values into the vector it received (in place)."""
        if client in self._values:
            own = ~self.shared(index)
            vector[own] = self._values[client].to(vector.device)[index[own]]

    def keep(self, client: int, index: Tensor, vector: Tensor, broadcast: Tensor) -> None:
        """Remember the client's own values after local training.

        Args:
            client: client id.
            index: cells of its submodel.
            vector: their values.
            broadcast: the server's whole vector, for cells the client has never held.
        """
        values = self._values.get(client, broadcast).clone()
        own = ~self.shared(index)
        values[index[own].to(values.device)] = vector[own].to(values.device)
        self._fresh[client] = values.cpu()

    def synchronise(self) -> None:
        """End of a round: all processes learn what the others' clients kept."""
        for part in gather(self._fresh):
            self._values.update(part)
        self._fresh = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Values by client id, for the checkpoint."""
        return {str(client): values for client, values in self._values.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over the values of a checkpoint."""
        self._values = {int(client): torch.as_tensor(values) for client, values in state.items()}
