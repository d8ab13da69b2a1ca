"""Verdicts of controls on attacks, kept in files: an attack is judged again only where it or its code has changed."""

from __future__ import annotations

import hashlib
import inspect
import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import scipy
import sklearn
import torch

import app
from app.attacks.membership.base import MembershipAttack
from app.common.described import arguments
from app.common.errors import UserError
from app.common.files import private_folder, write_json
from app.common.reading import read_json


def verdict_key(attack: MembershipAttack, *settings: object) -> str | None:
    """Hash of an attack's class, its arguments, its source code, the versions of libraries, and further settings.

    None for a class without a source file, such as one of a notebook: whether it has changed cannot be known.
    """
    try:
        own = {Path(inspect.getfile(kind)) for kind in type(attack).__mro__[:-1]}
        sources = [*code_versions(), *(file.read_bytes().hex() for file in sorted(own))]
    except (OSError, TypeError):
        return None
    # Arguments that do not print their values print their address, so that no verdict is found for them.
    made = [f"{type(attack).__module__}.{type(attack).__qualname__}", repr(arguments(attack)), repr(settings)]
    return hashlib.blake2b(json.dumps([made, sources]).encode(), digest_size=16).hexdigest()


@cache
def code_versions() -> tuple[str, ...]:
    """Versions of the program and of the libraries it computes with, and a hash of the source of all attacks."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return (*(str(module.__version__) for module in (app, torch, np, scipy, sklearn)), digest.hexdigest())


def read_verdict(folder: Path | None, key: str) -> list[str] | None:
    """Failed controls of an attack, in sentences; None where they are not kept, or their file is damaged."""
    if folder is None or not (path := _path(folder, key)).is_file():
        return None
    try:
        failures = read_json(path)["failures"]
    except (OSError, UserError, KeyError, TypeError, ValueError):
        return None
    return failures if isinstance(failures, list) and all(isinstance(one, str) for one in failures) else None


def write_verdict(folder: Path | None, key: str, failures: list[str]) -> None:
    """Keep a verdict; its file appears complete or not at all. Where it cannot, the next run judges again."""
    if folder is not None:
        with suppress(OSError):
            private_folder(folder)
            write_json(_path(folder, key), {"failures": failures})


def _path(folder: Path, key: str) -> Path:
    return folder / f"control-{key}.json"
