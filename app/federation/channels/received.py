"""What clients received, and digests of it: masks are bound to them, and repeated models are recognised by them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.crypto.commitment import BlockDigests
from app.crypto.contributors import Contributors
from app.crypto.trained_models import model_digests
from app.federation.channels.base import Update
from app.federation.parameters import ParameterSpace, plain_array


@dataclass(frozen=True, eq=False)
class Received:
    """The values of a submodel, as some client received them; digests are worked out when they are first asked for."""

    contributors: Contributors  # the blocks of the round
    space: ParameterSpace  # names the tensors
    index: np.ndarray  # the coordinates (int64, ascending)
    values: np.ndarray  # their values, which nobody changes afterwards

    @cached_property
    def blocks(self) -> BlockDigests:
        return BlockDigests(self.contributors, self.index, self.values)

    @cached_property
    def tensors(self) -> dict[str, bytes]:
        """Digest of every parameter tensor that can be judged, and under the empty name, of all of them."""
        return model_digests([(name, self.values[place]) for name, place in self.places.items() if name])

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where the values of every parameter tensor are, and under the empty name, those of all of them."""
        blocks = [block for block in self.space.blocks if block.start < self.space.trainable]
        ends = np.searchsorted(self.index, [*(block.start for block in blocks), self.space.trainable]).tolist()
        spans = zip(blocks, ends, ends[1:], strict=False)
        return {"": slice(0, ends[-1])} | {block.name: slice(start, end) for block, start, end in spans if end > start}


class ReceivedModels:
    """What the clients of one round received: those that received the same values, bit for bit, share the digests.

    Keeps one copy of the values for each submodel that several clients have.
    """

    def __init__(self, contributors: Contributors, space: ParameterSpace) -> None:
        self._contributors, self._space = contributors, space
        self._clients = Counter(contributors.submodel_of.values())
        self._last: dict[int, tuple[bytes, Received]] = {}

    def of(self, update: Update) -> Received:
        """What a client received; its update must have the planned coordinates."""
        submodel, values = self._contributors.submodel_of[update.client], plain_array(update.received)
        text = values.tobytes()
        last = self._last.get(submodel)
        if last is not None and last[0] == text:
            return last[1]
        kept = np.frombuffer(text, values.dtype)
        received = Received(self._contributors, self._space, self._contributors.submodels[submodel], kept)
        if self._clients[submodel] > 1:
            self._last[submodel] = text, received
        return received
