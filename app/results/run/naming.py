"""Names of runs: each stands for one folder below the root of all runs, and never for another place."""

from __future__ import annotations

import os
from pathlib import Path

from app.common.errors import UserError

LONGEST_NAME = 200
"""Bytes of one part of a run's name; file systems take 255, and some files' names are longer than their run's."""

LONGEST_PATH = 3500
"""Bytes of a run folder's whole path; systems take 4096 for that of a file in it."""

NAMES = "use letters, digits, dots, hyphens and underscores, with a slash between folders, such as mine or exp/mine"


def named_folder(root: str | Path, name: str, root_option: str = "--run.root", name_option: str = "--run.name") -> Path:
    """The folder of the run or comparison of that name.

    Args:
        root: folder of all of them.
        name: one or more names of folders with slashes between them, each of up to `LONGEST_NAME` bytes.
        root_option: option that says the root.
        name_option: option that says the name.

    Raises:
        UserError: where the name could stand for a folder outside the root, or is reserved or too long.
    """
    if unprintable(str(root)):
        raise UserError.of(f"{root_option} is {shortened(root)}", "no folder can have that name", "name another folder")
    for part in name.split("/"):
        if reason := _unfit(part):
            raise UserError.of(f"{name_option} is {shortened(name)}: {reason}", "nothing is made", NAMES)
    path, whole = Path(root) / name, Path(root).resolve()
    place = path.resolve()
    if whole not in place.parents:
        raise UserError.of(
            f"{name_option} is {shortened(name)}, which is a link out of {root} to {place}",
            "files there could be overwritten or deleted",
            f"choose another {name_option}, or keep it there with {root_option} {place.parent}",
        )
    if len(os.fsencode(place)) > LONGEST_PATH:
        cause = f"the path of its folder has {len(os.fsencode(place)):,} bytes: {shortened(path)}"
        raise UserError.of(cause, "file systems refuse it", f"shorten {root_option} or {name_option}")
    return path


def _unfit(part: str) -> str:
    """Why one part of a name cannot name a run's folder; empty where it can."""
    if not part:
        return "it is empty, or has an empty part, as absolute paths do"
    if part.startswith("."):
        return f"{shortened(part)} leads out of its folder or is hidden, as `.cache` and other folders of the program"
    if unprintable(part):
        return "it holds signs that cannot be shown"
    if (length := len(os.fsencode(part))) > LONGEST_NAME:
        return f"a part of it has {length:,} bytes, and {LONGEST_NAME} are allowed"
    return ""


def unprintable(text: str) -> bool:
    """Whether a text holds control characters, line ends among them."""
    return any(not sign.isprintable() and not 0xDC80 <= ord(sign) <= 0xDCFF for sign in text)


def shortened(text: object, longest: int = 60) -> str:
    """A text in quotes, cut where it is long."""
    whole = str(text)
    return repr(whole if len(whole) <= longest else f"{whole[:longest]}...")
