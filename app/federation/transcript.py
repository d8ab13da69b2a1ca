"""What each kind of adversary could observe during a run.

A transcript is a folder with one file of arrays per round. Attacks never get the folder: they get the view of the
adversary they declare, and a view has no way to reach what that adversary does not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from app.common.array_files import ArrayWriter, read_arrays
from app.common.errors import UserError
from app.common.files import PART, cannot_write, npz_bytes, private_folder, replace_all
from app.common.ranges import Count, Whole
from app.federation.channels.base import Form, Message
from app.federation.kept_round import (
    CLIENT,
    OWN,
    SEALED,
    SUM,
    SUM_WEIGHT,
    WHOLE,
    KeptRound,
    Upload,
    message_name,
    missing,
    weight_name,
)
from app.federation.parameters import plain_array


@dataclass(frozen=True)
class TranscriptSettings:
    """Which rounds are kept for attacks after the run.

    Attributes:
        last: keep the last so many rounds; 0 keeps none of them.
        rounds: further rounds to keep, counted from 1, such as [40, 60, 80].
        colluding: keep also what so many participants, drawn at random, can tell an adversary that they join; needed
            where the channel hides uploads.
    """

    last: Whole = 2
    rounds: list[Count] = field(default_factory=list)
    colluding: Whole = 0

    def wanted(self, round_: int, rounds: int) -> bool:
        """Whether a round (counted from 1, of `rounds`) is kept."""
        return round_ > rounds - self.last or round_ in self.rounds


class Transcript:
    """Records the messages of a run in a folder, and hands out the views of the adversaries.

    What is recorded of a round is in a temporary file until the round is finished.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, ArrayWriter] = {}

    @property
    def rounds(self) -> list[int]:
        """Rounds that were kept, counted from 1."""
        return sorted({int(path.stem.removeprefix("round-")) for path in self._folder.glob("round-*")})

    def coordinates(self, round_: int) -> dict[int, Tensor | None]:
        """Coordinates of every upload of a round, by client, as in the public plan; None for the whole network.

        Clients with equal coordinates share one tensor.
        """
        return {upload.client: upload.index for upload in KeptRound(self._folder, round_).uploads()}

    def opened(self, round_: int) -> bool:
        """Whether a client decrypted the uploads of a round (counted from 1) for the server."""
        kept = KeptRound(self._folder, round_).uploads() if round_ in self.rounds else []
        return any(upload.form == "opened" for upload in kept)

    def record_broadcast(self, round_: int, theta: Tensor, form: Form = "plain") -> None:
        """Record the server's vector at the start of a round (from 1); under encryption, the server cannot read it."""
        self._add(round_, "broadcast", plain_array(theta))
        if form == "ciphertext":
            self._add(round_, SEALED, np.empty(0))

    def record_aggregate(self, round_: int, theta: Tensor) -> None:
        """Record the server's vector at the end of a round (counted from 1)."""
        self._add(round_, "aggregate", plain_array(theta))

    def record_message(self, message: Message, coordinates: int) -> None:
        """Record what the server saw of one update; `coordinates` is the size of the server's vector."""
        self._record_upload(message, message.form, message.payload, coordinates, CLIENT)

    def record_own(self, message: Message, form: Form, values: Tensor, weight: float, coordinates: int) -> None:
        """Record what participants know of an update whose values the server did not see."""
        self._record_upload(message, form, values, coordinates, OWN)
        self._add(message.round + 1, weight_name(message.client), np.array([weight]))

    def record_sum(self, round_: int, change: Tensor, weight: Tensor) -> None:
        """Record the sum of weight x change over the clients of a round (from 1), and of their weights."""
        self._add(round_, SUM, plain_array(change))
        self._add(round_, SUM_WEIGHT, plain_array(weight))

    def _record_upload(self, message: Message, form: Form, values: Tensor | None, coordinates: int, kind: str) -> None:
        round_, about = message.round + 1, WHOLE
        if message.index.numel() != coordinates:
            index = plain_array(message.index.to(torch.int32 if coordinates < 2**31 else torch.int64))
            about = f"index-{blake2b(index.tobytes(), digest_size=16).hexdigest()}"
            self._add(round_, about, index)
        payload = np.empty(0) if values is None else plain_array(values)
        self._add(round_, message_name(message.client, form, about, kind), payload)

    def finish(self, round_: int, parts: Iterable[Path] = ()) -> None:
        """Put what was recorded of a round in its place, with the parts that other processes have handed over."""
        path = self._round(round_)
        try:
            for part in parts:
                self._writer(round_).add_all(part)
            self._writer(round_).finish(path)
        except OSError as error:
            self.discard()
            raise cannot_write(path, error) from error
        del self._writers[round_]

    def hand_over(self, round_: int) -> Path | None:
        """Close what this process has recorded of a round, for the first process to add; None where it is nothing."""
        writer = self._writers.pop(round_, None)
        if writer is None:
            return None
        writer.close()
        return writer.part

    def discard(self) -> None:
        """Delete what was recorded of rounds that are not finished."""
        for writer in self._writers.values():
            writer.discard()
        self._writers = {}

    def record_released(self, theta: Tensor) -> None:
        path = self._folder / "released.npz"
        try:
            private_folder(self._folder)
            replace_all({path: npz_bytes({"theta": plain_array(theta)})})
        except OSError as error:
            raise cannot_write(path, error) from error

    def forget(self, round_: int) -> None:
        """Delete what was recorded of a round; further files in the folder that version 0.6 has made of it are kept.

        Raises:
            UserError: where that is not possible.
        """
        folder = self._round(round_).with_suffix("")
        try:
            self._round(round_).unlink(missing_ok=True)
            names = ("broadcast.npz", "aggregate.npz", "client-?????*.*.npz", f".*{PART}", SEALED)
            for path in [path for name in names for path in folder.glob(name)]:
                path.unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            raise cannot_write(folder, error) from error

    def forget_unfinished(self) -> None:
        """Delete what a run that was killed has recorded of the round it was in."""
        for path in self._folder.glob(f".*{PART}"):
            path.unlink(missing_ok=True)

    def server_view(self) -> ServerView:
        return ServerView(self._folder)

    def client_view(self) -> ClientView:
        return ClientView(self._folder)

    def external_view(self) -> ExternalView:
        return ExternalView(self._folder)

    def _round(self, round_: int) -> Path:
        return self._folder / f"round-{round_:05d}.npz"

    def _writer(self, round_: int) -> ArrayWriter:
        if round_ not in self._writers:
            private_folder(self._folder)
            self._writers[round_] = ArrayWriter(self._folder)
        return self._writers[round_]

    def _add(self, round_: int, name: str, array: np.ndarray) -> None:
        try:
            self._writer(round_).add(name, array)
        except OSError as error:
            self.discard()
            raise cannot_write(self._round(round_), error) from error


class ExternalView:
    """An adversary outside the federation observes the released model only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def released(self) -> Tensor:
        path = self._folder / "released.npz"
        if not path.is_file():
            raise missing(path.name, self._folder.name)
        return torch.from_numpy(read_arrays(path)["theta"])


class ClientView(ExternalView):
    """A participant also observes the server's model at the start and end of the kept rounds, but no uploads."""

    @property
    def rounds(self) -> list[int]:
        return Transcript(self._folder).rounds

    def broadcast(self, round_: int) -> Tensor:
        """The server's flat vector at the start of a round."""
        return KeptRound(self._folder, round_).model("broadcast")

    def aggregate(self, round_: int) -> Tensor:
        """The server's flat vector at the end of a round: what the next one starts from."""
        return KeptRound(self._folder, round_).model("aggregate")


class ServerView(ClientView):
    """The honest-but-curious server also observes every upload as it arrived; models only where they are in clear."""

    def readable(self, round_: int) -> bool:
        """Whether the server holds the models of a round in clear."""
        return round_ not in self.rounds or not KeptRound(self._folder, round_).sealed

    def broadcast(self, round_: int) -> Tensor:
        self._refuse_ciphertext(round_)
        return super().broadcast(round_)

    def aggregate(self, round_: int) -> Tensor:
        self._refuse_ciphertext(round_)
        return super().aggregate(round_)

    def _refuse_ciphertext(self, round_: int) -> None:
        if not self.readable(round_):
            raise UserError.of(
                f"the server sees ciphertext only in round {round_}",
                "it holds no model that could be attacked before the final one is released",
                "attack as a client or from outside",
            )

    def uploads(self, round_: int) -> list[Upload]:
        """All uploads of a round, by client; the values of one are read when they are asked for."""
        return KeptRound(self._folder, round_).uploads()
