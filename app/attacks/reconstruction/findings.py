"""What a reconstruction found, under which conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from app.attacks.breakdown import explained
from app.attacks.reconstruction.images import Truth
from app.errors import UserError
from app.metrics.membership import NotAvailable
from app.metrics.reconstruction import Reconstruction

Adversary = Literal["malicious server", "curious server", "anybody outside"]


@dataclass(frozen=True)
class Conditions:
    """Who attacked what.

    Attributes:
        attack: name of the attack; `label` is what its files are called.
        label: unique within a run, fit for a file name.
        adversary: who attacks.
        sees: what that adversary reads, in words.
        round: round in which, or after which, it read it; counted from 1.
        clients: whose images are attacked, ascending.
        notes: what must be known to read the numbers: settings that differ from the published attack, warnings.
    """

    attack: str
    label: str
    adversary: Adversary
    sees: str
    round: int
    clients: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def adapted(self, how: str, note: str) -> Conditions:
        """The same attack by somebody who knows the defense and reads what was sent in another way."""
        return replace(self, label=f"{self.label}-{how}", notes=(*self.notes, note))


@dataclass(frozen=True, eq=False)
class Pictures:
    """What a picture of the result shows, side by side.

    Attributes:
        truth: images that were trained on.
        found: (n, channels, height, width) best match of each, on the pixel scale, cut to it; nan where there is none.
    """

    truth: Truth
    found: Tensor


@dataclass(frozen=True, eq=False)
class ReconstructionFinding:
    """One result.

    Attributes:
        conditions: who attacked what.
        result: the scores, or why there are none; never a number in place of a result that does not exist.
        pictures: originals and reconstructions, None where there is nothing to show.
        details: further numbers by name, such as how well the update was isolated.
        seconds: how long the attack took.
        failed: whether it broke down, which is not the same as finding nothing.
    """

    conditions: Conditions
    result: Reconstruction | NotAvailable
    pictures: Pictures | None = None
    details: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False


def attempted(conditions: Conditions, attempt: Callable[[], ReconstructionFinding]) -> ReconstructionFinding:
    """What an attempt finds, with the seconds it took; where it breaks down, a result that says so."""
    started = time.perf_counter()
    try:
        found = attempt()
    except Exception as error:  # the results of the other attacks must not be lost
        failed = not isinstance(error, UserError)
        found = ReconstructionFinding(conditions, NotAvailable(explained(error)), failed=failed)
    return replace(found, seconds=time.perf_counter() - started)
