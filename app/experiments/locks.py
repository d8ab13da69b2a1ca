"""Who works on a comparison's folder: one process, or several shards of it, on one machine or on many.

The system frees a process's locks when it ends, however it does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from app.common.errors import UserError
from app.common.files import hold_lock
from app.experiments.shards import Shard


@contextlib.contextmanager
def at_work(folder: Path, shard: Shard | None = None) -> Iterator[None]:
    """Keep other processes from working on the same runs; refused where one is at work.

    A shard works beside other shards, but each of them only once, and all with the same number of shards.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(_lock(folder / ".lock", folder, "another `rampart compare`", shared=shard is not None))
        if shard is not None:
            with turn(folder):
                _refuse_other_counts(folder, shard)
                who = f"another `rampart compare --shard {shard}`"
                held.enter_context(_lock(_place(folder, shard), folder, who))
        yield


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process is within this context of the same folder."""
    with hold_lock(folder / ".logs" / "turn.lock", wait=True):
        yield


def others_at_work(folder: Path, shard: Shard | None = None) -> list[Shard]:
    """Other shards that processes work on; to be called within a `turn`."""
    return [other for other in _known(folder) if other != shard and _is_held(_place(folder, other))]


def _lock(path: Path, folder: Path, who: str, shared: bool = False) -> IO[str]:
    try:
        return hold_lock(path, shared)
    except BlockingIOError as error:
        number = error.strerror if str(error.strerror).isdigit() else "one of a --shard"
        raise UserError.of(
            f"{who} (process {number}) works on {folder}",
            "every run would be made twice, in one folder",
            "wait for it or stop it, or choose another --name",
        ) from error


def _refuse_other_counts(folder: Path, shard: Shard) -> None:
    others = [other for other in others_at_work(folder, shard) if other.count != shard.count]
    if others:
        raise UserError.of(
            f"shard {others[0]} is at work on {folder}, and this is shard {shard}",
            "parts of different divisions overlap, so runs would be made twice",
            f"divide by {others[0].count} too, or wait until those shards have ended",
        )


def _place(folder: Path, shard: Shard) -> Path:
    return folder / ".logs" / f"shard-{shard.number}-of-{shard.count}.lock"


def _known(folder: Path) -> Iterator[Shard]:
    for path in sorted((folder / ".logs").glob("shard-*-of-*.lock")):
        if written := re.fullmatch(r"shard-(\d+)-of-(\d+)\.lock", path.name):
            yield Shard(int(written[1]), int(written[2]))


def _is_held(path: Path) -> bool:
    try:
        hold_lock(path).close()
    except BlockingIOError:
        return True
    return False
