"""The end of the program: nothing is taken apart that ends with the process anyway.

With some thousand modules loaded, the interpreter's own end takes about a second of work. Import this before libraries,
so that what they have registered for the end is still done.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

_codes: list[int] = []


def leave(code: int) -> NoReturn:
    """Exit with a code: threads are waited for, functions registered with `atexit` called, and output is written."""
    _codes.append(code)
    raise SystemExit(code)


@atexit.register
def _leave() -> None:
    if _codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[-1])
