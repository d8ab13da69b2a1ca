"""`python -m app.benchmarks.phases FILE COMMAND ...`: run a command of `rampart`, and write what its phases take.

A phase is a function of the program. Its CPU seconds are its own, without those of phases within it; `rest` is
everything else. The file is JSON: the number of calls, for shadows that of models, and the seconds of every phase.
"""

from __future__ import annotations

import functools
import importlib
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = {
    "training": ("app.federation.module", "FederatedModule.training_step"),
    "shadows": ("app.attacks.shadows.shadow_store", "train_centrally"),
    "tracing": ("app.federation.execution.recorded_step", "make_fx"),
    "controls": ("app.attacks.controls", "AttackControls.failures"),
    "white-box": ("app.attacks.membership.nasr", "Nasr.scores"),
    "metrics": ("app.attacks.protocols.audit", "measured"),
    "figures": ("app.common.files", "png_bytes"),
}
"""Module and function of every phase."""


class PhaseTimer:
    """CPU seconds of nested phases, each without those within it."""

    def __init__(self) -> None:
        self.record = {phase: {"calls": 0, "seconds": 0.0} for phase in ("imports", "rest", *PHASES)}
        self._open, self._since = ["imports"], 0.0

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds count as those of the phase."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "controls" in self._open:  # which are one phase, with shadows and attacks of their own
                return function(*args, **kwargs)
            self.switch()
            self._open.append(phase)
            self.record[phase]["calls"] += len(args[1]) if phase == "shadows" else 1
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._open.pop()

        return call

    def switch(self, phase: str | None = None) -> None:
        """Count the time until now for the innermost phase; it goes on as another one where that is named."""
        now = time.process_time()
        self.record[self._open[-1]]["seconds"] += now - self._since
        self._since = now
        self._open[-1] = phase or self._open[-1]

    def watch(self) -> None:
        """Put timed functions in the place of those of all phases."""
        for phase, (module, name) in PHASES.items():
            *owners, attribute = name.split(".")
            place = functools.reduce(getattr, owners, importlib.import_module(module))
            function = getattr(place, attribute)
            if phase == "tracing":  # `make_fx` returns the function that traces
                setattr(place, attribute, lambda step, make=function: self.timed("tracing", make(step)))
            else:
                setattr(place, attribute, self.timed(phase, function))


def main(file: str, *command: str) -> None:
    """Run the command, and write the record of its phases in any case."""
    timer = PhaseTimer()
    timer.watch()
    timer.switch("rest")
    sys.argv[1:] = command
    try:
        runpy.run_module("app.cli", run_name="__main__")
    finally:
        timer.switch()
        Path(file).write_text(json.dumps(timer.record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
