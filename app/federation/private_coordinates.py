"""Coordinates that stay on the client, and what of a submodel is therefore uploaded."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from app.federation.execution.distributed import gather
from app.federation.parameters import ParameterSpace
from app.federation.plan import Plan

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


class LabelRows:
    """The class that each weight of the last layer belongs to.

    With HeteroFL's label masks, a client uploads only the rows of classes it has samples of.
    """

    def __init__(self, space: ParameterSpace, classes: int) -> None:
        uncut = [block for block in space.blocks if block.axes and block.axes[0] is None and block.shape[0] == classes]
        last = uncut[-1].name.rpartition(".")[0] if uncut else ""
        self._label = torch.full((space.size,), classes)  # one past the last class: belongs to none
        for block in uncut:
            if block.name.rpartition(".")[0] == last:
                self._label[block.coordinates] = torch.arange(classes).repeat_interleave(block.size // classes)

    def uploaded(self, index: Tensor, owned: Tensor) -> Tensor:
        """Mask over a submodel's coordinates (`index`): False on rows of classes the client does not have.

        `owned` (bool, classes) says which classes the client has samples of.
        """
        anyway = torch.cat([owned, owned.new_ones(1)]).to(index.device)
        return anyway[self._label.to(index.device)[index]]


class PersonalCoordinates:
    """Each client's values of the private coordinates, which are never uploaded; at first the initial ones.

    Attributes:
        mask: (coordinates of the server's vector) bool, True where a coordinate is private.
        initial: values that clients start from, in the order of `coordinates`.
        unused: values that a client's first training leaves outside its submodel; by default the initial ones.
    """

    def __init__(self, mask: Tensor, initial: Tensor, unused: Tensor | None = None) -> None:
        self.mask = mask.cpu()
        self._any = bool(mask.any())
        self._place = self.mask.cumsum(0) - 1
        self.initial, self.unused = (
            values.detach().cpu()[self.mask] for values in (initial, initial if unused is None else unused)
        )
        self._values: dict[int, Tensor] = {}
        self._fresh: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return self._any

    @property
    def everything(self) -> bool:
        """Whether every coordinate is private: clients train alone, and the server learns nothing."""
        return bool(self.mask.all())

    @property
    def coordinates(self) -> Tensor:
        """The private coordinates of the server's vector (int64, ascending)."""
        return self.mask.nonzero().flatten()

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that have trained private values, ascending."""
        return tuple(sorted(self._values))

    def of(self, client: int) -> Tensor:
        """A client's private values in the order of `coordinates`; the initial ones before its first training."""
        return self._values.get(client, self.initial)

    def shared(self, index: Tensor) -> Tensor:
        """Mask over a submodel's coordinates: True where they are not private."""
        return ~self.mask.to(index.device)[index]

    def untouched(self, theta: Tensor, moved: Tensor) -> Tensor:
        """The server's next vector with its own copy of the private coordinates unchanged."""
        return torch.where(self.mask.to(theta.device), theta, moved) if self else moved

    def restore(self, client: int, index: Tensor, vector: Tensor) -> None:
        """Put the client's private values into the vector it received (in place)."""
        self.put(self.of(client), index, vector)

    def put(self, values: Tensor, index: Tensor, vector: Tensor) -> None:
        """Put values of all private coordinates, in the order of `coordinates`, into a submodel's vector (in place)."""
        if self:
            own = ~self.shared(index)
            vector[own] = values[self._place[index[own].cpu()]].to(vector)

    def keep(self, client: int, index: Tensor, vector: Tensor) -> None:
        """Store a client's private values after local training; those outside its submodel keep their values.

        Where they have none yet they become unused: a client that has chosen from a dictionary before it grew does not
        use the factors that are added.
        """
        values, own = self._values.get(client, self.unused).clone(), ~self.shared(index)
        values[self._place[index[own].cpu()]] = vector[own].to(values)
        self._fresh[client] = values

    def synchronise(self) -> None:
        """Exchange the private values of the round between processes."""
        for part in gather(self._fresh):
            self._values.update(part)
        self._fresh = {}

    def forget(self) -> None:
        """Drop the private values of the round."""
        self._fresh = {}

    def state_dict(self) -> dict[str, Tensor]:
        return {str(client): values for client, values in self._values.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._values = {int(client): torch.as_tensor(values) for client, values in state.items()}


class UploadedRound:
    """A round of the plan with the coordinates that clients upload.

    Where `rows` is set, a client leaves out the rows of classes that it does not have (`owned`, one mask per client).
    """

    def __init__(self, plan: Plan, rows: LabelRows | None = None, owned: Sequence[Tensor] = ()) -> None:
        self.plan, self.round, self.participants = plan, plan.round, plan.participants
        self._rows, self._owned = rows, owned

    def rate(self, client: int) -> float:
        return self.plan.rate(client)

    def index(self, client: int) -> Tensor:
        """Coordinates of the submodel that the client may upload (int64, ascending), private ones included."""
        index = self.plan.index(client)
        if self._rows is None:
            return index
        uploaded = self._rows.uploaded(index, self._owned[client])
        return index if uploaded.all() else index[uploaded]  # clients that upload all of a submodel share one object


def uploaded_rounds(federation: FederatedModule, rounds: Iterable[int]) -> Iterator[UploadedRound]:
    """Rounds (0-based) of a prepared federation, one after the other."""
    for round_ in rounds:
        yield uploaded_round(federation, federation.plan_of(round_))


def uploaded_round(federation: FederatedModule, plan: Plan) -> UploadedRound:
    """A round of a prepared federation."""
    if not federation.local.mask_labels:
        return UploadedRound(plan)
    owned = [federation.data.owned_classes(client) for client in range(federation.data.clients)]
    return UploadedRound(plan, federation.label_rows, owned)


def uploaded_keys(federation: FederatedModule, plan: Plan) -> dict[int, Hashable]:
    """For every participant, a key of the coordinates it uploads: equal in all rounds where they are the same."""
    masked = federation.local.mask_labels
    # clients with the same submodel and the same classes upload the same rows
    return {
        client: (plan.key(client), tuple(federation.data.owned_classes(client).tolist()) if masked else ())
        for client in plan.participants
    }


def uploaded_indices(federation: FederatedModule, plan: Plan) -> dict[int, np.ndarray]:
    """Coordinates that every participant uploads (int64, ascending); equal submodels share one array."""
    uploaded = uploaded_round(federation, plan)
    arrays: dict[Hashable, np.ndarray] = {}
    indices: dict[int, np.ndarray] = {}
    for client, key in uploaded_keys(federation, plan).items():
        if key not in arrays:
            index = uploaded.index(client)
            arrays[key] = (index[federation.personal.shared(index)] if federation.personal else index).cpu().numpy()
        indices[client] = arrays[key]
    return indices


def received_coordinates(federation: FederatedModule, plan: Plan, client: int) -> np.ndarray:
    """Coordinates that a client receives (int64, ascending): its submodel without the private ones."""
    index = plan.index(client)
    return index[federation.personal.shared(index)].cpu().numpy()


def uploaded_coordinates(federation: FederatedModule) -> Tensor:
    """(coordinates of the server's vector) bool: False for private coordinates, which are never uploaded."""
    return federation.personal.shared(torch.arange(federation.space.size))
