"""Cells that stay on the client: a network's own private part, the last layer (a local head), or everything."""

from __future__ import annotations

import torch
from torch import Tensor

from app.federation.processes import gather


class PersonalCells:
    """Each client's own values of the cells that are never sent. A client that has none yet starts from the initial.

    Attributes:
        mask: (cells of the server's vector) bool, True where a cell stays on the client.
    """

    def __init__(self, mask: Tensor, initial: Tensor) -> None:
        """Nothing stored yet.

        Args:
            mask: (cells of the server's vector) bool, True where a cell stays on the client.
            initial: (cells of the server's vector) what clients start from.
        """
        self.mask = mask.cpu()
        self._any = bool(mask.any())
        self._place = self.mask.cumsum(0) - 1
        self._initial = initial.detach().cpu()[self.mask]
        self._values: dict[int, Tensor] = {}
        self._fresh: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return self._any

    @property
    def everything(self) -> bool:
        """Whether no cell is shared, so that there is no federation and the server learns nothing."""
        return bool(self.mask.all())

    @property
    def cells(self) -> Tensor:
        """Cells of the server's vector that stay on clients (int64, ascending)."""
        return self.mask.nonzero().flatten()

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that have trained values of their own, ascending."""
        return tuple(sorted(self._values))

    @property
    def initial(self) -> Tensor:
        """What a client starts from, in the order of `cells`."""
        return self._initial

    def of(self, client: int) -> Tensor:
        """A client's values in the order of `cells`; the initial ones where it has none of its own yet."""
        return self._values.get(client, self._initial)

    def shared(self, index: Tensor) -> Tensor:
        """Mask over a submodel's cells: True where they travel."""
        return ~self.mask.to(index.device)[index]

    def untouched(self, theta: Tensor, moved: Tensor) -> Tensor:
        """The server's next vector with its own copy of personal cells as it was."""
        return torch.where(self.mask.to(theta.device), theta, moved) if self else moved

    def restore(self, client: int, index: Tensor, vector: Tensor) -> None:
        """Put the client's own values, or else the initial ones, into the vector it received (in place)."""
        self.put(self.of(client), index, vector)

    def put(self, values: Tensor, index: Tensor, vector: Tensor) -> None:
        """Put values of all personal cells, in the order of `cells`, into a submodel's vector (in place)."""
        if self:
            own = ~self.shared(index)
            vector[own] = values[self._place[index[own].cpu()]].to(vector)

    def keep(self, client: int, index: Tensor, vector: Tensor) -> None:
        """Remember the client's own values after local training.

        Args:
            client: client id.
            index: cells of its submodel; personal cells outside it keep their values.
            vector: their values.
        """
        values, own = self.of(client).clone(), ~self.shared(index)
        values[self._place[index[own].cpu()]] = vector[own].to(values)
        self._fresh[client] = values

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
