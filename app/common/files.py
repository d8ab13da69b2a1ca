"""Files written in one step: a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from app.common.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

DPI = 130
"""Resolution of figures, in dots per inch."""

PART = ".part"
"""Ending of temporary files, whose names are random."""

LIST = ".files"
"""File in a run's folder that lists what the program has made in it: a path within the folder per line, as JSON."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Signs that begin a formula in a spreadsheet."""


def replace_all(contents: Mapping[Path, bytes | memoryview], private: bool = True) -> None:
    """Write several files, in their order; old ones are replaced only when all new ones are on the disk.

    A link in the place of a file is replaced, never followed.

    Args:
        contents: what to write, by path; the folders exist.
        private: only the user may read them, and they are listed as files of the run around them; otherwise they are
            what the user asked for by name, and may be read by those whom the umask lets.

    Raises:
        OSError: where a file cannot be written; nothing is replaced, and temporary files are deleted.
    """
    temporary = {path: path.with_name(f".{secrets.token_hex(8)}{PART}") for path in contents}
    if private:
        list_made(contents)
    try:
        for path, content in contents.items():
            with open_new(temporary[path], private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        put_in_place(temporary)
    except BaseException:
        for part in temporary.values():
            part.unlink(missing_ok=True)
        raise


def put_in_place(parts: Mapping[Path, Path]) -> None:
    """Give files, by the path they are for, that path instead of their temporary one."""
    for path, part in parts.items():
        part.replace(path)
    for folder in {path.parent for path in parts}:
        _sync(folder)


def open_new(path: Path, private: bool = True) -> IO[bytes]:
    """A file that did not exist, opened to be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600 if private else 0o666)
    if private:
        os.fchmod(descriptor, 0o600)  # whatever the umask takes away
    return os.fdopen(descriptor, "wb")


def _sync(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_made(paths: Iterable[Path]) -> None:
    """List files that are about to be made in the folder of a run; others, and files that exist, are passed over."""
    for path in paths:
        if not os.path.lexists(path) and (folder := listing_folder(path)) is not None and path.name != LIST:
            name = (path.parent.resolve() / path.name).relative_to(folder).as_posix()
            _append(folder / LIST, json.dumps(name) + "\n")


def listing_folder(path: Path) -> Path | None:
    """The nearest folder around a file that keeps a list; None where there is none, or in a hidden one, as a cache."""
    place = path.parent.resolve()
    for folder in (place, *place.parents):
        if (folder / LIST).is_file():
            return folder
        if folder.name.startswith("."):
            return None
    return None


def append_text(path: Path, text: str, sync: bool = False) -> None:
    """Add to the end of a private file, which is made where it is missing; a link is refused as an OSError.

    With `sync`, the text is on the disk when the function returns, and not only in the memory of the system.
    """
    list_made([path])
    _append(path, text, sync)


def _append(path: Path, text: str, sync: bool = False) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", newline="") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync:
        _sync(path.parent)


def private_folder(path: Path) -> None:
    """Make a folder that only the user may enter; one that exists stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def hold_lock(path: Path, shared: bool = False, wait: bool = False) -> IO[str]:
    """The lock file of a folder, locked until it is closed or this process ends, however it does.

    Args:
        path: the file, which is made where it is missing.
        shared: together with other processes that share it, but with no other.
        wait: until it is free.

    Raises:
        BlockingIOError: where another process holds it, with that process's number as `strerror`.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        with file:
            raise BlockingIOError(error.errno, file.read(20).strip() or "unknown") from error
    file.truncate(0)
    if not shared:
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def write_text(path: Path, text: str, private: bool = True) -> None:
    """Write a text file in one step, line ends as they are; see `replace_all`."""
    replace_all({path: text.encode()}, private)


def write_json(path: Path, record: Any, private: bool = True) -> None:
    """Write a JSON file in one step; see `json_text`."""
    write_text(path, json_text(record), private)


def write_figure(path: Path, figure: Figure, private: bool = True) -> None:
    """Write a PNG file in one step; see `replace_all`."""
    replace_all({path: png_bytes(figure)}, private)


def json_text(record: Any) -> str:
    """The text of a JSON file; numbers that are not finite become null."""
    return json.dumps(finite(record), indent=2) + "\n"


def csv_text(rows: Iterable[Sequence[Any]], line_end: str = "\r\n") -> str:
    """The text of a CSV file; spreadsheets take no cell of it for a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_end).writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def _inert(cell: Any) -> Any:
    """A cell; a text that begins like a formula, also after apostrophes, and is no number gets one more in front."""
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def cell_text(cell: str) -> str:
    """The text that was written to a cell of a CSV file."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def npz_bytes(arrays: Mapping[str, Any], compressed: bool = False) -> bytes:
    """The content of an npz file."""
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    spell_missing_glyphs(figure)
    figure.savefig(file, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})  # the usual 6 takes longer
    return file.getvalue()


def spell_missing_glyphs(figure: Figure) -> None:
    """Replace characters that no font of a text has by their code: `U+732B` for a Chinese character, say."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = axis.get_ticklabels()
            spelled = [_spelled(label) for label in labels]
            if spelled != [label.get_text() for label in labels]:
                axis.set_ticks(axis.get_majorticklocs(), spelled)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(_spelled(text))


def _spelled(text: Text) -> str:
    """A text without characters that its fonts lack."""
    if text.get_text().isascii():
        return text.get_text()
    from matplotlib.font_manager import findfont, get_font

    fonts = text.get_fontproperties()
    known: set[int] = {ord("\n")}
    for family in fonts.get_family():
        single = fonts.copy()
        single.set_family(family)
        known |= get_font(findfont(single)).get_charmap().keys()
    return "".join(sign if ord(sign) in known else f"U+{ord(sign):04X}" for sign in text.get_text())


@contextmanager
def plain_names() -> Iterator[None]:
    """Texts of figures that are made in this context show a dollar sign as it is, instead of reading it as TeX."""
    import matplotlib as mpl  # which takes a second, and few need

    with mpl.rc_context({"text.parse_math": False}):
        yield


def finite(value: Any) -> Any:
    """The same data with NaN and infinities as null, which JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error of a run whose files cannot be written."""
    return UserError.of(
        f"cannot write {path}: {error.strerror or error}",
        "the run stops here; what was written before is kept, and the run resumes from its last checkpoint",
        "free some space or choose another --run.root, then repeat the command",
    )
