"""One round of a transcript on the disk: its models, and the uploads, each of which is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from app.common.array_files import opened, read_arrays
from app.common.errors import UserError
from app.common.reading import open_own
from app.federation.channels.base import Form

SEALED = "sealed"
"""Marks a round whose models the server holds as ciphertext."""

WHOLE = "whole"
"""In place of the name of an index: the upload is about the whole network."""

CLIENT, OWN = "client-", "own-"
"""Beginnings of the names of uploads as the server saw them, and as participants who may collude know them."""

SUM, SUM_WEIGHT = "sum", "sum-weight"
"""Names of the sum of weight x change over all clients, and of their weights, by coordinate."""

HIDDEN: tuple[Form, ...] = ("masked", "ciphertext")
"""Forms of which the server sees no values."""

KEPT_INDICES = 64
"""Distinct coordinates that are held in memory while uploads are read: one per submodel, where clients share them."""


@dataclass(frozen=True)
class Upload:
    """One client's upload as the server saw it; `index` and `payload` are read from the disk at every access."""

    client: int  # sender
    form: Form  # how the values travelled
    read_index: Callable[[], Tensor | None]
    read_payload: Callable[[], Tensor]
    hidden: str = ""  # why the values are hidden, where the form alone does not tell

    @property
    def index(self) -> Tensor | None:
        """Coordinates the upload is about (int64), None for the whole network."""
        return self.read_index()

    @property
    def payload(self) -> Tensor | None:
        """The values, None where the server saw only masked values or ciphertext."""
        return None if self.form in HIDDEN else self.read_payload()


class Arrays(Protocol):
    """Arrays by name, read one at a time."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str) -> np.ndarray: ...


class KeptRound:
    """A round (counted from 1) of the transcript in a folder.

    Raises:
        UserError: where it was not kept.
    """

    def __init__(self, folder: Path, round_: int) -> None:
        self._name = f"round-{round_:05d}"
        path, old = folder / f"{self._name}.npz", folder / self._name
        if not path.is_file() and not old.is_dir():
            raise missing("messages", self._name)
        self._arrays: Arrays = opened(path) if path.is_file() else _ClientFiles(old)

    @property
    def sealed(self) -> bool:
        """Whether the server holds the models as ciphertext."""
        return SEALED in self._arrays.names

    def model(self, name: str) -> Tensor:
        """The server's vector at the start (`broadcast`) or end (`aggregate`) of the round."""
        if name not in self._arrays.names:
            raise missing(name, self._name)
        return torch.from_numpy(self._arrays.read(name))

    def sums(self) -> tuple[Tensor, Tensor]:
        """Sum of weight x change over all clients, and of their weights, by coordinate (float64)."""
        change, weight = (torch.from_numpy(self._arrays.read(name)).double() for name in (SUM, SUM_WEIGHT))
        return change, weight

    def weight(self, client: int) -> float:
        """Weight of a participant whose own upload is kept."""
        return float(self._arrays.read(weight_name(client))[0])

    def uploads(self, kind: str = CLIENT) -> list[Upload]:
        """All uploads, by client: as the server saw them, or those that participants may know (OWN)."""

        @lru_cache(KEPT_INDICES)
        def index(name: str) -> Tensor | None:
            return None if name == WHOLE else torch.from_numpy(self._arrays.read(name)).long()

        def upload(name: str) -> Upload:
            client, form, about = name.removeprefix(kind).split(".")
            return Upload(
                int(client),
                cast(Form, form),
                lambda: index(about),
                lambda: torch.from_numpy(self._arrays.read(name)),
            )

        found = [upload(name) for name in self._arrays.names if name.startswith(kind)]
        return sorted(found, key=lambda one: one.client)


class _ClientFiles:
    """The same arrays in the files of version 0.6, which had one per client."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, str]] = {}  # file, and name in it, of every array
        for path in folder.glob("*.npz"):
            if path.name.startswith("client-"):
                self._add_client(path)
            else:
                self._places[path.stem] = path, "theta"
        if (folder / SEALED).exists():
            self._places[SEALED] = folder / SEALED, SEALED

    def _add_client(self, path: Path) -> None:
        client, form, _ = path.name.split(".")
        with open_own(path, 2**40) as file, ZipFile(file) as archive:
            indexed = "index.npy" in archive.namelist()
        about = f"index-{client}" if indexed else WHOLE
        self._places[f"{client}.{form}.{about}"] = path, "payload"
        if indexed:
            self._places[about] = path, "index"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._places)

    def read(self, name: str) -> np.ndarray:
        path, own = self._places[name]
        return read_arrays(path, [own])[own]


def message_name(client: int, form: Form, about: str, kind: str = CLIENT) -> str:
    """Name of an upload's values; `about` names the array of its coordinates."""
    return f"{kind}{client:05d}.{form}.{about}"


def weight_name(client: int) -> str:
    """Name of a participant's weight."""
    return f"weight-{client:05d}"


def missing(what: str, where: str) -> UserError:
    """The error where a transcript does not hold what is asked for."""
    return UserError.of(
        f"the transcript holds no {what} of {where}",
        "the attack has nothing to look at",
        "train again and keep that round: --transcript.last or --transcript.rounds, or a TranscriptRecorder()",
    )
