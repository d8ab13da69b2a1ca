"""Files written in one step: a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130
"""Resolution of figures, in dots per inch."""


def replace_all(contents: Mapping[Path, bytes | memoryview], ending: str = ".part") -> None:
    """Write several files, in their order; old ones are replaced only when all new ones are on the disk.

    Args:
        contents: what to write, by path; the folders exist.
        ending: of the temporary files; one of its own where other processes write the same files.

    Raises:
        OSError: where a file cannot be written; nothing is replaced, and temporary files are deleted.
    """
    temporary = {path: path.with_name(path.name + ending) for path in contents}
    try:
        for path, content in contents.items():
            with temporary[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, part in temporary.items():
            part.replace(path)
    except OSError:
        for part in temporary.values():
            part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, line ends as they are."""
    replace_all({path: text.encode()})


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file in one step; see `json_text`."""
    write_text(path, json_text(record))


def write_figure(path: Path, figure: Figure) -> None:
    """Write a PNG file in one step."""
    replace_all({path: png_bytes(figure)})


def json_text(record: Any) -> str:
    """The text of a JSON file; numbers that are not finite become null."""
    return json.dumps(finite(record), indent=2) + "\n"


def csv_text(rows: Iterable[Sequence[Any]], line_end: str = "\r\n") -> str:
    """The text of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_end).writerows(rows)
    return text.getvalue()


def npz_bytes(arrays: Mapping[str, Any], compressed: bool = False) -> bytes:
    """The content of an npz file."""
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, dpi=DPI, format="png")
    return file.getvalue()


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
