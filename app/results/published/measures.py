"""Measures that published numbers are compared with: keys, and the unit that papers print them in."""

from __future__ import annotations

import difflib

UNITS: dict[str, str] = {
    "server_accuracy": "%",
    "train_accuracy": "%",
    "clients_accuracy": "%",
    "everyone_accuracy": "%",
    "everyone_majority": "%",
    "everyone_minority": "%",
    "everyone_gap": "%",
    "everyone_variance": "squared points",
    "seconds_ratio": "x",
    "train_seconds": "s",
    "recovered_share": "%",
}
"""Unit of every measure that goes by a plain name."""

ALL_UNITS = ("%", "x", "s", "dB", "images", "squared points", "")
"""Units that a published number may have; the last one is that of pure numbers."""

AUC, PAPER, RECONSTRUCTION = "auc:", "paper:", "reconstruction:"
"""Beginnings of measures with a name of their own: `auc:<attack>.<target>`; `paper:<result>/<figure>` for a number as
the followed paper reports it, as in `paper:mapp-fl.yeom.uploads/Adv %`; `reconstruction:<number>`, as in
`reconstruction:psnr_best`."""


def is_measure(key: str) -> bool:
    """Whether published numbers can be compared with it."""
    if key.startswith(PAPER):
        result, _, figure = key.removeprefix(PAPER).partition("/")
        return bool(result and figure)
    return key in UNITS or any(key.startswith(front) and key != front for front in (AUC, RECONSTRUCTION))


def nearest_measures(key: str) -> list[str]:
    """Measures that may have been meant, the nearest first; at most two."""
    return difflib.get_close_matches(key, [*UNITS, AUC, PAPER, RECONSTRUCTION], n=2)


def scale_to(unit: str, own_unit: str) -> float | None:
    """What a value in one unit is multiplied with to get it in another; None where they do not go together.

    Args:
        unit: unit that is asked for.
        own_unit: unit of the value.
    """
    if unit == own_unit:
        return 1.0
    return {("%", ""): 100.0, ("", "%"): 0.01}.get((unit, own_unit))
