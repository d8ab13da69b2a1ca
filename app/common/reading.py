"""Files that anyone may have made: read without following links, and within limits on what they may take."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from app.common.errors import UserError

LARGEST_TEXT = 2**28
"""Bytes of a table or JSON file that is read."""

LARGEST_SETTINGS = 2**22
"""Bytes of a YAML file that is read."""

MOST_SETTINGS = 200_000
"""Values of a YAML file, aliases counted as often as they are named."""

UNOPENED = "wandb"
"""Folder in which Weights & Biases makes links of its own; nothing here opens them."""


PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")
"""Kinds of YAML values that are read; dates stay text, and everything else is refused."""


class OversizedError(yaml.YAMLError, ValueError):
    """A YAML text whose aliases or depth would take more memory than its size tells."""


class RepeatedKeyError(yaml.YAMLError):
    """A YAML mapping with a key more than once, of which all but the last would be lost."""


class PlainLoader(yaml.SafeLoader):
    """Reads mappings, lists, text, numbers, true, false and null."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in PLAIN_TAGS
    }


def open_own(path: Path, largest: int) -> IO[bytes]:
    """A regular file, opened to be read.

    Raises:
        OSError: where it is missing, or a link, a pipe or a device.
        ValueError: where it has more than `largest` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", str(path)) from error
        raise
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if status.st_size > largest:
        file.close()
        raise ValueError(f"{path.name} has {status.st_size:,} bytes; at most {largest:,} are read")
    return file


def read_text(path: Path, largest: int = LARGEST_TEXT) -> str:
    """The text of a file (UTF-8), line ends as they are; see `open_own`."""
    with open_own(path, largest) as file:
        return file.read().decode()


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: see `open_own`.
        ValueError: where it is no JSON, or too large or too deep.
    """
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of plain data; raises OSError, UnicodeDecodeError or yaml.YAMLError."""
    try:
        return load_yaml(read_text(path, LARGEST_SETTINGS))
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise OversizedError(str(error)) from error


def load_yaml(text: str) -> Any:
    """Plain data from YAML.

    Raises:
        yaml.YAMLError: where it is no YAML; an `OversizedError` where it would grow too large, a `RepeatedKeyError`
            where a mapping has a key twice.
    """
    loader = PlainLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if (values := _values(node, {})) > MOST_SETTINGS:
            many = f"its aliases stand for more than {MOST_SETTINGS:,} values"
            raise OversizedError("it holds itself" if values == math.inf else many)
        return loader.construct_document(node)
    except RecursionError as error:
        raise OversizedError("it is nested too deeply, or holds itself") from error
    except yaml.YAMLError:
        raise
    except (ValueError, KeyError, OverflowError) as error:  # such as `!!int text`, or a number of 5000 digits
        raise yaml.YAMLError(f"it holds a value that is none of its kind: {error}") from error
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Values of a node, with those of aliases; infinitely many where it holds itself. Refuses keys that repeat."""
    if id(node) not in known:
        known[id(node)] = math.inf
        inner: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated(node)
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(_values(part, known) for part in inner)
    return known[id(node)]


def _refuse_repeated(mapping: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if name in lines:
            raise RepeatedKeyError(f"the key {key.value!r} is there twice, in lines {lines[name]} and {line}")
        lines[name] = line


def refuse_links(folder: Path, itself: bool = False) -> None:
    """Refuse a folder that holds symbolic links, which could lead reading and writing to other places.

    Args:
        folder: where to look, and in all folders below.
        itself: whether the folder must not be a link either, since the user has not named it.

    Raises:
        UserError: where there is a link.
    """
    if (link := str(folder) if itself and folder.is_symlink() else next(_links(folder), None)) is not None:
        raise UserError.of(
            f"{link} is a link to {Path(link).readlink()}",
            "files outside its folder could be read or overwritten",
            "delete the link, or put a copy of what it leads to in its place",
        )


def _links(folder: Path) -> Iterator[str]:
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.name != UNOPENED and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
