"""The progress bar of long work on ciphertexts."""

from __future__ import annotations

from tqdm import tqdm


def progress_bar(what: str, total: int, shown: bool) -> tqdm:
    """Bar that appears after two seconds, on terminals only, and leaves nothing behind.

    Args:
        what: the work in one word.
        total: ciphertexts in all.
        shown: whether there is to be a bar at all.
    """
    disable = None if shown else True
    return tqdm(total=total, desc=what, unit=" ciphertexts", delay=2, leave=False, disable=disable)
