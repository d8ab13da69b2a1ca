"""Results of attacks and recorders: what they measured, and how it is kept, summed up, tabulated and drawn."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_origin, get_type_hints
from zipfile import BadZipFile

from app.common.array_files import read_arrays
from app.common.errors import UserError
from app.common.files import json_text, npz_bytes, private_folder, replace_all
from app.common.reading import read_json
from app.metrics.membership import NotAvailable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f]|^\.|^$')
"""What makes a name unfit for a file on some system, or hides the file."""

LONGEST = 100
"""Letters of a name that every system can hold, endings included."""

Cell = str | int | float | None
"""A plain value of a table."""

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Points of lines, by the line's name."""

IN_MEMORY: dict[str, Any] = {"in_memory": True}
"""Metadata of a field that is no part of the JSON file."""


@dataclass(frozen=True)
class PlainTable:
    """A table of plain values, one row per result or client; None where there is no value."""

    columns: tuple[str, ...]
    rows: list[list[Cell]]


class Result(ABC):
    """A result with a label; a dataclass. A later result of the same kind and label takes the place of an earlier one.

    Attributes:
        kind: what results of this class are about, in words; heading of their table.
        folder: their folder within the run's; `.` for the run's folder itself.
        part: their part of `summary.json`.
        shows_data: whether its figures show training data, which are not uploaded unless that is asked for.
        compressed: whether its arrays are.
        redrawn: whether the report draws figures of these results, so that the run need not.
    """

    kind: ClassVar[str]
    folder: ClassVar[str]
    part: ClassVar[str]
    shows_data: ClassVar[bool] = False
    compressed: ClassVar[bool] = False
    redrawn: ClassVar[bool] = False
    failed: bool = False

    if TYPE_CHECKING:  # a field or a property

        @property
        def label(self) -> str:
            """Name of the result, unique among those of its kind in a run."""

    @property
    @abstractmethod
    def numbers(self) -> Mapping[str, float]:
        """Every number that is available, by name."""

    def arrays(self) -> Mapping[str, Any] | None:
        """What is kept in `<label>.npz`; None for nothing."""
        return None

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        """Figures of this result by name of the file within the folder of its kind."""
        yield from ()

    def closing_rows(self) -> Sequence[tuple[str, str, str]]:
        """Label, number and explanation for the table at the end of a run on the terminal."""
        return ()

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in list(self.numbers.items())[:4])
        return f"{type(self).__name__}({self.label}{': ' if numbers else ''}{numbers})"

    # ---- all results of one kind in a run ----------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def text(cls, results: Sequence[Self]) -> str:
        """The results as a table for the terminal."""

    @classmethod
    @abstractmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        """The results as plain values."""

    @classmethod
    def summary(cls, results: Sequence[Self]) -> dict[str, Any]:
        """Their part of `summary.json`: every number under `<folder>/<label>/<name>`."""
        return {f"{cls.folder}/{one.label}/{name}": value for one in results for name, value in one.numbers.items()}

    @classmethod
    def curves(cls, results: Sequence[Self]) -> Curves:
        """Lines for trackers, such as ROC curves, by label."""
        return {}

    @classmethod
    def files(cls, results: Sequence[Self]) -> Iterator[tuple[str, str]]:
        """Tables (CSV) of all results together, by name of the file within the run's folder."""
        yield from ()

    @classmethod
    def overview(cls, results: Sequence[Self], title: str) -> Iterator[tuple[str, Figure]]:
        """Figures of all results together, by name of the file within the run's folder."""
        yield from ()

    # ---- files -------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Content of the JSON file; empty for a result that is arrays alone."""
        return {"label": self.label, "numbers": self.numbers, **_plain_fields(self)}

    def save(self, run: Path) -> None:
        """Write `<label>.json`, and `<label>.npz` where there are arrays; other files of the label are outdated.

        Raises:
            UserError: where the label is unfit for a file name, or the files cannot be written.
        """
        text, packed, figure = (self.path(run, self.label, ending) for ending in ("json", "npz", "png"))
        arrays = self.arrays()
        contents = {} if arrays is None else {packed: npz_bytes(arrays, self.compressed)}
        if record := self.record():
            contents[text] = json_text(record).encode()
        try:
            private_folder(text.parent)
            replace_all(contents)
            for path in {packed, figure} - set(contents):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError.of(
                f"cannot write {text}: {error.strerror or error}",
                "this result is lost; those that were written before are kept",
                "free some space, then repeat the attack",
            ) from error

    @classmethod
    def paths(cls, run: Path) -> list[Path]:
        """JSON files of all results of this kind in a run's folder, by name."""
        return sorted((run / cls.folder).glob("*.json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """The result of a JSON file; arrays are read when they are asked for.

        Raises:
            UserError: where the file cannot be read.
        """
        try:
            result = cls.restore(read_json(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(path, error) from error
        object.__setattr__(result, "source", path)
        return result

    @classmethod
    def restore(cls, plain: Any) -> Self:
        """The result from the content of its JSON file."""
        result: Self = restored(cls, plain, cls.mend)
        return result

    @classmethod
    def load_all(cls, run: Path) -> list[Self]:
        """All results of this kind in a run's folder, by label."""
        return sorted(map(cls.load, cls.paths(run)), key=lambda result: result.label)

    @classmethod
    def mend(cls, value: Any) -> Any:
        """Fill in what JSON cannot hold of a restored dataclass."""
        return value

    @classmethod
    def path(cls, run: Path, label: str, ending: str) -> Path:
        """A file of the result with that label."""
        if not fits_file(label):
            raise UserError.of(
                f"a result is called {label!r}",
                "no file can have that name in every system, and it could land in another folder",
                "give attacks, targets and protocols short names without slashes, special signs and a dot in front",
            )
        return run / cls.folder / f"{label}.{ending}"

    def stored_arrays(self, names: Sequence[str]) -> dict[str, Any]:
        """Arrays of a result that was loaded from its file.

        Raises:
            UserError: where there are none, or they cannot be read.
        """
        path = Path(getattr(self, "source", "")).with_suffix(".npz")
        try:
            return read_arrays(path, names)
        except FileNotFoundError as error:
            raise UserError.of(
                f"{path.parent} holds no arrays of {self.label}",
                "there is nothing to draw or to compare",
                f"run that attack on this run first; {self.label}.json says why, if it gave none",
            ) from error
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise unreadable(path, error) from error


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Result):
    """A result of any kind, for attacks and recorders of your own.

    Attributes:
        label: name of the result and its files.
        values: numbers by name.
        columns: names of the columns of `rows`.
        rows: a table, such as one row per client.
        notes: remarks for readers.
        figure: a figure, kept as `<label>.png`.
    """

    kind = "measurements"
    folder = "results"
    part = "results"

    label: str
    values: dict[str, float] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()
    figure: Any = field(default=None, metadata=IN_MEMORY)

    @property
    def numbers(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.values.items() if math.isfinite(value)}

    def draw(self, title: str) -> Iterator[tuple[str, Figure]]:
        if self.figure is not None:
            yield f"{self.label}.png", self.figure

    @classmethod
    def text(cls, results: Sequence[Self]) -> str:
        lines = []
        for one in results:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in one.numbers.items())
            lines.append(f"{one.label}: {'; '.join([*([numbers] if numbers else []), *one.notes])}")
        return "\n".join(lines)

    @classmethod
    def table(cls, results: Sequence[Self]) -> PlainTable:
        rows: list[list[Cell]] = [[one.label, name, value] for one in results for name, value in one.numbers.items()]
        return PlainTable(("label", "number", "value"), rows)


def fits_file(label: str) -> bool:
    """Whether a result of that name can be kept in a file."""
    return not UNSAFE.search(label) and len(label) <= LONGEST


def unreadable(path: Path, error: Exception) -> UserError:
    """The error of a result's file that cannot be read."""
    return UserError.of(
        f"{path} cannot be read: {type(error).__name__}: {error}",
        "the results of this run cannot be shown together",
        "delete that file, then repeat the attack",
    )


def restored(kind: Any, value: Any, mend: Callable[[Any], Any] = lambda value: value) -> Any:
    """A value of the declared type from plain data; the way back from `asdict`, with null for numbers without a value.

    Fields that have a default may be absent: they are younger than the file.

    Args:
        kind: a dataclass, a tuple or dict of declared types, a union with NotAvailable or None, or a plain type.
        value: what JSON holds.
        mend: applied to every dataclass that was restored, where JSON cannot hold all of its values.
    """
    if is_dataclass(kind):
        hints = _field_types(kind)  # type: ignore[arg-type]
        names = [one.name for one in fields(kind) if one.name in value and "in_memory" not in one.metadata]
        return mend(kind(**{name: restored(hints[name], value[name], mend) for name in names}))  # type: ignore[operator]
    options = get_args(kind)
    if get_origin(kind) is tuple:
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        return tuple(restored(option, item, mend) for option, item in zip(kinds, value, strict=False))
    if get_origin(kind) is dict:
        return {key: restored(options[1], item, mend) for key, item in value.items()}
    if isinstance(kind, UnionType) and isinstance(value, (Mapping, list)):
        other = next(option for option in options if option is not NotAvailable)
        return restored(NotAvailable if set(value) == {"reason"} else other, value, mend)
    if kind is float:
        return math.nan if value is None else float(value)
    return str(value) if kind is str else value


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _plain_fields(value: Any) -> Any:
    """A dataclass as plain data, without the fields that are marked as not plain."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = [one.name for one in fields(value) if "in_memory" not in one.metadata]
        return {name: _plain_fields(getattr(value, name)) for name in kept}
    if isinstance(value, Mapping):
        return {key: _plain_fields(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_fields(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value  # of NumPy and PyTorch
