"""Files of results: one JSON file per result with its arrays beside it, and dataclasses back from JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints
from zipfile import BadZipFile

import numpy as np

from app.errors import UserError
from app.files import json_text, npz_bytes, replace_all
from app.metrics.membership import NotAvailable

UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f]|^\.|^$')
"""What makes a name unfit for a file on some system, or hides the file."""

LONGEST = 100
"""Letters of a name that every system can hold, endings included."""


def fits_file(label: str) -> bool:
    """Whether a result of that name can be kept in a file."""
    return not UNSAFE.search(label) and len(label) <= LONGEST


def unchanged(value: Any) -> Any:
    """The value itself."""
    return value


def restored(kind: Any, value: Any, mend: Callable[[Any], Any] = unchanged) -> Any:
    """A value of the declared type from plain data; the way back from `asdict`, with null for numbers without a value.

    Fields that have a default may be absent: they are younger than the file.

    Args:
        kind: a dataclass, a tuple or dict of declared types, a union with NotAvailable or None, or a plain type.
        value: what JSON holds.
        mend: applied to every dataclass that was restored, where JSON cannot hold all of its values.
    """
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {name: restored(hint, value[name], mend) for name, hint in hints.items() if name in value}
        return mend(kind(**known))  # type: ignore[operator]
    options = get_args(kind)
    if get_origin(kind) is tuple:
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        return tuple(restored(option, item, mend) for option, item in zip(kinds, value, strict=False))
    if get_origin(kind) is dict:
        return {key: restored(options[1], item, mend) for key, item in value.items()}
    if isinstance(kind, UnionType):
        other = next(option for option in options if option is not NotAvailable)
        return None if value is None else restored(NotAvailable if set(value) == {"reason"} else other, value, mend)
    return float("nan" if value is None else value) if kind is float else value


def unreadable(path: Path, error: Exception) -> UserError:
    """The error of a result's file that cannot be read."""
    return UserError.of(
        f"{path} cannot be read: {type(error).__name__}: {error}",
        "the results of this run cannot be shown together",
        "delete that file, then repeat the attack",
    )


class ResultRecord(Protocol):
    """A result without its arrays: a dataclass with a label that is unique in its folder, and numbers by name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def label(self) -> str: ...

    @property
    def numbers(self) -> dict[str, float]: ...


Record = TypeVar("Record", bound=ResultRecord)


class ResultFiles(Generic[Record]):
    """Results of one kind in a folder; a later result of the same label takes the place of the earlier one.

    Attributes:
        kind: class of the records.
        prefix: first part of every name in summaries.
        arrays_name: what the arrays are called in messages.
        others: files of the folder that hold results of another kind.
    """

    kind: ClassVar[type]
    prefix: ClassVar[str]
    arrays_name: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, record: Record, arrays: Mapping[str, Any] | None) -> None:
        """Write `<label>.json`, and `<label>.npz` where there are arrays; other files of the label are outdated.

        Raises:
            UserError: where the label is unfit for a file name, or the files cannot be written.
        """
        text, packed, figure = (self.path(record.label, ending) for ending in ("json", "npz", "png"))
        contents = {} if arrays is None else {packed: npz_bytes(arrays)}
        contents[text] = json_text({"label": record.label, "numbers": record.numbers, **asdict(record)}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_all(contents)
            for path in {packed, figure} - set(contents):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError.of(
                f"cannot write {text}: {error.strerror or error}",
                "this result is lost; those that were written before are kept",
                "free some space, then repeat the attack",
            ) from error

    def arrays(self, label: str, names: Iterable[str]) -> dict[str, Any]:
        path = self.path(label, "npz")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in names}
        except FileNotFoundError as error:
            raise UserError.of(
                f"{self.folder} holds no {self.arrays_name} of {label}",
                "there is nothing to draw or to compare",
                f"run that attack on this run first; {label}.json says why, if it gave none",
            ) from error
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise unreadable(path, error) from error

    def records(self) -> list[Record]:
        """All results, by label."""
        return sorted(map(self.read, self.paths()), key=lambda record: record.label)

    def paths(self) -> list[Path]:
        """JSON files of all results, by name."""
        return sorted(path for path in self.folder.glob("*.json") if path.name not in self.others)

    def read(self, path: Path) -> Record:
        try:
            record: Record = restored(self.kind, json.loads(path.read_text()), self.mend)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(path, error) from error
        return record

    @staticmethod
    def mend(value: Any) -> Any:
        """Fill in what JSON cannot hold of a restored dataclass."""
        return value

    def summary(self) -> dict[str, float]:
        """All available numbers of all results under `<prefix>/<label>/<name>`."""
        return {
            f"{self.prefix}/{record.label}/{name}": number
            for record in self.records()
            for name, number in record.numbers.items()
        }

    def path(self, label: str, ending: str) -> Path:
        if not fits_file(label):
            raise UserError.of(
                f"a result is called {label!r}",
                "no file can have that name in every system, and it could land in another folder",
                "give attacks, targets and protocols short names without slashes, special signs and a dot in front",
            )
        return self.folder / f"{label}.{ending}"
