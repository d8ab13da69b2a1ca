"""What each kind of adversary could observe during a run.

A transcript is a folder of arrays. Attacks never get the folder: they get the view of the adversary they declare, and a
view has no way to reach what that adversary does not see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from app.common.errors import UserError
from app.common.files import PART, cannot_write, npz_bytes, private_folder, replace_all
from app.common.ranges import Count, Whole
from app.common.reading import read_arrays
from app.federation.channels.base import Form, Message
from app.federation.parameters import plain_array

SEALED = "sealed"
"""Marks a round whose models the server holds as ciphertext."""


@dataclass(frozen=True)
class TranscriptSettings:
    """Which rounds are kept for attacks after the run.

    Attributes:
        last: keep the last so many rounds; 0 keeps none of them.
        rounds: further rounds to keep, counted from 1, such as [40, 60, 80].
    """

    last: Whole = 2
    rounds: list[Count] = field(default_factory=list)

    def wanted(self, round_: int, rounds: int) -> bool:
        """Whether a round (counted from 1, of `rounds`) is kept."""
        return round_ > rounds - self.last or round_ in self.rounds


@dataclass(frozen=True)
class Upload:
    """One client's upload as the server saw it."""

    client: int  # sender
    index: Tensor | None  # coordinates the upload is about (int64), None for the whole network
    payload: Tensor | None  # the values, None where the server saw only masked values or ciphertext
    form: Form  # how the values travelled


class Transcript:
    """Records the messages of a run in a folder, and hands out the views of the adversaries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def rounds(self) -> list[int]:
        """Rounds that were kept, counted from 1."""
        return sorted(int(path.name.removeprefix("round-")) for path in self._folder.glob("round-*"))

    def coordinates(self, round_: int) -> dict[int, Tensor | None]:
        """Coordinates of every upload of a round, by client, as in the public plan; None for the whole network."""
        indices: dict[int, Tensor | None] = {}
        for path in sorted(self._round(round_).glob("client-*.npz")):
            try:
                index = torch.from_numpy(read_arrays(path, ["index"])["index"]).long()
            except KeyError:
                index = None
            indices[int(path.name.partition(".")[0].removeprefix("client-"))] = index
        return indices

    def opened(self, round_: int) -> bool:
        """Whether a client decrypted the uploads of a round (counted from 1) for the server."""
        return any(self._round(round_).glob("client-*.opened.npz"))

    def record_broadcast(self, round_: int, theta: Tensor, form: Form = "plain") -> None:
        """Record the server's vector at the start of a round (from 1); under encryption, the server cannot read it."""
        self._save(self._round(round_) / "broadcast.npz", theta=theta)
        if form == "ciphertext":
            self._save(self._round(round_) / SEALED)
        else:
            (self._round(round_) / SEALED).unlink(missing_ok=True)

    def record_aggregate(self, round_: int, theta: Tensor) -> None:
        """Record the server's vector at the end of a round (counted from 1)."""
        self._save(self._round(round_) / "aggregate.npz", theta=theta)

    def record_message(self, message: Message, coordinates: int) -> None:
        """Record what the server saw of one update; `coordinates` is the size of the server's vector."""
        arrays = {} if message.payload is None else {"payload": message.payload}
        if message.index.numel() != coordinates:
            arrays["index"] = message.index.to(torch.int32 if coordinates < 2**31 else torch.int64)
        self._save(self._round(message.round + 1) / f"client-{message.client:05d}.{message.form}.npz", **arrays)

    def record_released(self, theta: Tensor) -> None:
        self._save(self._folder / "released.npz", theta=theta)

    def forget(self, round_: int) -> None:
        """Delete what was recorded of a round; other files in its folder are kept.

        Raises:
            UserError: where that is not possible.
        """
        folder = self._round(round_)
        try:
            names = ("broadcast.npz", "aggregate.npz", "client-?????*.*.npz", f".*{PART}", SEALED)
            for path in [path for name in names for path in folder.glob(name)]:
                path.unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            raise cannot_write(folder, error) from error

    def server_view(self) -> ServerView:
        return ServerView(self._folder)

    def client_view(self) -> ClientView:
        return ClientView(self._folder)

    def external_view(self) -> ExternalView:
        return ExternalView(self._folder)

    def _round(self, round_: int) -> Path:
        return self._folder / f"round-{round_:05d}"

    def _save(self, path: Path, **tensors: Tensor) -> None:
        content = npz_bytes({name: plain_array(tensor) for name, tensor in tensors.items()})
        try:
            private_folder(self._folder)
            private_folder(path.parent)
            replace_all({path: content})
        except OSError as error:
            raise cannot_write(path, error) from error


class ExternalView:
    """An adversary outside the federation observes the released model only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def released(self) -> Tensor:
        return _load(self._folder / "released.npz")["theta"]


class ClientView(ExternalView):
    """A participant also observes the server's model at the start and end of the kept rounds, but no uploads."""

    @property
    def rounds(self) -> list[int]:
        return Transcript(self._folder).rounds

    def _round(self, round_: int) -> Path:
        return Transcript(self._folder)._round(round_)

    def broadcast(self, round_: int) -> Tensor:
        """The server's flat vector at the start of a round."""
        return _load(self._round(round_) / "broadcast.npz")["theta"]

    def aggregate(self, round_: int) -> Tensor:
        """The server's flat vector at the end of a round: what the next one starts from."""
        return _load(self._round(round_) / "aggregate.npz")["theta"]


class ServerView(ClientView):
    """The honest-but-curious server also observes every upload as it arrived; models only where they are in clear."""

    def readable(self, round_: int) -> bool:
        """Whether the server holds the models of a round in clear."""
        return not (self._round(round_) / SEALED).exists()

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
        folder = self._round(round_)
        if not folder.is_dir():
            raise _missing(folder)
        return [_upload(path) for path in sorted(folder.glob("client-*.npz"))]


def _upload(path: Path) -> Upload:
    name, form, _ = path.name.split(".")
    arrays = _load(path)
    index = arrays["index"].long() if "index" in arrays else None
    return Upload(int(name.removeprefix("client-")), index, arrays.get("payload"), cast(Form, form))


def _load(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise _missing(path)
    return {name: torch.from_numpy(array) for name, array in read_arrays(path).items()}


def _missing(path: Path) -> UserError:
    return UserError.of(
        f"the transcript holds no {path.name} of {path.parent.name}",
        "the attack has nothing to look at",
        "train again and keep that round: --transcript.last or --transcript.rounds, or a TranscriptRecorder()",
    )
