"""Files of arrays: npz files that are written array by array and read one at a time, and limits for foreign ones."""

from __future__ import annotations

import io
import math
import os
import secrets
import struct
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from app.common.files import PART, list_made, open_new, put_in_place
from app.common.reading import open_own

SMALL_ARRAYS = 2**26
LARGEST_ARRAYS = 2**34
MOST_GROWTH = 100
"""Bytes that the arrays of an npz file may have whatever its size, may have at most, and per byte of the file."""

LOCAL_HEADER = struct.Struct("<26xHH")
"""Beginning of an array in a zip file; it ends with the lengths of the name and of a further field after it."""

LARGEST_HEAD = 2**16 + 10
"""Bytes of an array's head at most, which tells its shape and type."""


class ArrayWriter:
    """Adds arrays to a new file under a temporary name, which `finish` puts in its place in one step.

    Every array is on its way to the disk when it has been added: memory does not grow with their number.
    """

    def __init__(self, folder: Path) -> None:
        self.part = folder / f".{secrets.token_hex(8)}{PART}"
        self._file = open_new(self.part)
        self._archive = ZipFile(self._file, "w", ZIP_STORED)
        self._names: set[str] = set()

    def add(self, name: str, array: np.ndarray) -> None:
        """Add an array; one whose name is there already is left out, as equal names mean equal arrays."""
        if name not in self._names:
            self._names.add(name)
            with self._archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                npy.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)

    def add_all(self, part: Path) -> None:
        """Add the arrays of a file that another process has closed, and delete it."""
        arrays = ArrayFile(part)
        for name in arrays.names:
            self.add(name, arrays.read(name))
        part.unlink()

    def close(self) -> None:
        """Complete the file, under its temporary name."""
        self._archive.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def finish(self, path: Path) -> None:
        """Complete the file and put it in its place, where it replaces an older one."""
        self.close()
        list_made([path])
        put_in_place({path: self.part})

    def discard(self) -> None:
        """Delete the file, also where it cannot be completed since the disk is full."""
        for open_file in (self._archive, self._file):
            with suppress(OSError, ValueError):
                open_file.close()
        self.part.unlink(missing_ok=True)


class ArrayFile:
    """A file that an `ArrayWriter` has made; its arrays are read one at a time, however many there are.

    Raises:
        OSError: see `open_own`.
        BadZipFile: where it is no npz file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_own(path, sys.maxsize) as file, ZipFile(file) as archive:
            self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in the order in which they were written."""
        return tuple(self._members)

    def read(self, name: str) -> np.ndarray:
        """One array, read from the disk.

        Raises:
            OSError: see `open_own`.
            ValueError: where it is compressed, has objects in it, or is not what it was when it was written.
            KeyError: where it is missing.
        """
        member = self._members[name]
        content = self._content(member)
        head = io.BytesIO(content[:LARGEST_HEAD])
        shape, _, dtype = array_head(head)
        if dtype.hasobject:
            raise ValueError(f"{name} in {self._path.name} holds objects; they are not loaded (allow_pickle=False)")
        array = np.frombuffer(content, np.uint8, offset=head.tell())
        return array.view(dtype).reshape(shape)

    def _content(self, member: ZipInfo) -> bytearray:
        """The bytes of an array with its head."""
        with open_own(self._path, sys.maxsize) as file:
            size = os.fstat(file.fileno()).st_size
            if member.compress_type != ZIP_STORED or not member.compress_size == member.file_size <= size:
                raise ValueError(f"{member.filename} in {self._path.name} has another size than it says")
            file.seek(member.header_offset)
            lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            file.seek(sum(lengths), os.SEEK_CUR)
            content = bytearray(member.file_size)
            if file.readinto(content) != len(content) or zlib.crc32(content) != member.CRC:  # type: ignore[attr-defined]
                raise ValueError(f"{member.filename} in {self._path.name} has changed since it was written")
            return content


def opened(path: Path) -> ArrayFile:
    """The arrays of a file; the list of them is kept for the next time, as long as the file stays the same."""
    status = path.stat()
    return _opened(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _opened(path: Path, *_: int) -> ArrayFile:
    return ArrayFile(path)


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an npz file, those named or all of them.

    Raises:
        OSError: see `open_own`.
        ValueError: where they would take much more memory than the file has bytes, or have objects in them.
        KeyError: where an array is missing.
        BadZipFile: where it is no npz file.
    """
    with open_own(path, LARGEST_ARRAYS) as file:
        _refuse_growth(file, path.name)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in (arrays.files if names is None else names)}


def _refuse_growth(file: IO[bytes], name: str) -> None:
    with ZipFile(file) as archive:
        members = archive.infolist()
        allowed = min(LARGEST_ARRAYS, max(SMALL_ARRAYS, MOST_GROWTH * os.fstat(file.fileno()).st_size))
        if (size := sum(member.file_size for member in members)) > allowed:
            raise ValueError(
                f"{name} holds {size:,} bytes of arrays; at most {allowed:,} are read from a file so small"
            )
        for member in members:
            with archive.open(member) as stream:
                shape, _, dtype = array_head(stream)
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
                    raise ValueError(f"{member.filename} in {name} has another size than it says")
    file.seek(0)


def array_head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of an array in NumPy's format, which `stream` is then before."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
    shape, columns_first, dtype = read(stream)
    return shape, columns_first, dtype
