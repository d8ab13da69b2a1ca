"""An adversary that is joined by participants: which ones, and what its view gains by what they give it.

Participants give the server their data, the models they received and uploaded, and the secrets they hold. Under secure
aggregation their own uploads come off the sum; under Paillier, the private key opens every upload.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from app.common.errors import UserError
from app.common.seeding import numpy_generator
from app.common.wording import counted
from app.federation.kept_round import OWN, KeptRound, Upload
from app.federation.transcript import ServerView, Transcript


def drawn_colluders(seed: int, clients: int, count: int) -> tuple[int, ...]:
    """Ids of the participants that collude, ascending, drawn at random; more of them include fewer."""
    return tuple(sorted(numpy_generator(seed, "colluders").permutation(clients)[:count].tolist()))


class JoinedTranscript(Transcript):
    """A transcript whose server is joined by some participants.

    Args:
        transcript: of the run.
        colluders: ids of these participants.
    """

    def __init__(self, transcript: Transcript, colluders: Collection[int]) -> None:
        super().__init__(transcript._folder)
        self._colluders = frozenset(colluders)

    def server_view(self) -> CollusionView:
        return CollusionView(self._folder, self._colluders)


class CollusionView(ServerView):
    """The server's view, with what some participants know; they hold every model of the server's in clear."""

    def __init__(self, folder: Path, colluders: frozenset[int]) -> None:
        super().__init__(folder)
        self._colluders = colluders

    def readable(self, round_: int) -> bool:
        return True

    def uploads(self, round_: int) -> list[Upload]:
        """All uploads of a round, by client, in clear where what the participants know reveals them."""
        kept = KeptRound(self._folder, round_)
        own = {upload.client: upload for upload in kept.uploads(OWN)}
        known = {client: one for client, one in own.items() if one.form == "opened" or client in self._colluders}
        seen = [known.get(upload.client, upload) for upload in kept.uploads()]
        for upload in seen:
            lacking = upload.form == "ciphertext" or (upload.form == "masked" and upload.client in self._colluders)
            if lacking and self._colluders:
                raise _not_recorded(round_)
        helping = [upload for upload in seen if upload.client in self._colluders]
        if all(upload.form != "masked" for upload in seen):
            return seen
        rest = Remainder(kept, self.broadcast(round_), helping, [one for one in seen if one.form == "masked"])
        return [rest.of(upload) if upload.form == "masked" else upload for upload in seen]


def _not_recorded(round_: int) -> UserError:
    return UserError.of(
        f"the transcript of round {round_} does not hold what these participants know",
        "they have nothing to tell the adversary",
        "train again with as many colluders: --transcript.colluding",
    )


@dataclass(frozen=True, eq=False)
class Remainder:
    """The sum of a round less the uploads of colluders: what is left of the others."""

    kept: KeptRound
    sent: Tensor  # the server's vector at the start of the round
    helping: list[Upload]  # the colluders' own uploads, in clear
    honest: list[Upload]  # masked uploads of the others

    @cached_property
    def change(self) -> tuple[Tensor, Tensor]:
        """Sum of weight x change over the others, and of their weights, by coordinate (float64)."""
        change, weight = self.kept.sums()
        for upload in self.helping:
            index, payload, own = upload.index, upload.payload, self.kept.weight(upload.client)
            assert payload is not None
            index = torch.arange(len(self.sent)) if index is None else index
            change.index_add_(0, index, payload.double() - self.sent[index].double(), alpha=-own)
            weight.index_add_(0, index, torch.ones(len(index), dtype=weight.dtype), alpha=-own)
        return change, weight

    @cached_property
    def holders(self) -> Tensor:
        """How many of the others contribute to every coordinate (int64)."""
        count = torch.zeros(len(self.sent), dtype=torch.long)
        for upload in self.honest:
            count[slice(None) if upload.index is None else upload.index] += 1
        return count

    def of(self, upload: Upload) -> Upload:
        """The upload in clear where its client is the only one left in the sum, else why it is hidden."""
        index = slice(None) if upload.index is None else upload.index
        alone = self.holders[index] == 1
        if bool(alone.all()) and float(self.change[1][index].min()) > 0:
            return replace(upload, form="opened", read_payload=lambda: self._values(index))
        reason = f"the sum of {counted(len(self.honest), 'honest client')} is visible, no single upload"
        share = float(alone.double().mean())
        partly = f" ({share:.0%} of its weights are its own alone)" if share else ""
        return replace(upload, hidden=reason + partly)

    def _values(self, index: slice | Tensor) -> Tensor:
        change, weight = self.change
        return (self.sent[index].double() + change[index] / weight[index]).to(self.sent.dtype)
