"""A stand-in for a Weights & Biases run, and waiting for files that it writes in the background."""

import time
from pathlib import Path


class Experiment:
    """Stands in for a W&B run and keeps what it is told."""

    def __init__(self):
        self.axes, self.logged, self.settings, self.results, self.ended = {}, [], {}, {}, None
        self.config = self.summary = self

    def define_metric(self, name, step_metric=None):
        """The x axis of a metric."""
        self.axes[name] = step_metric

    def update(self, values, allow_val_change=None):
        """Configuration (which may change on resume) or summary."""
        (self.results if allow_val_change is None else self.settings).update(values)

    def log(self, values):
        """One step."""
        self.logged.append(values)

    def finish(self, exit_code):
        """The end."""
        self.ended = exit_code


def soon_in(log: Path, text: bytes) -> bool:
    """Whether a log holds the text within 20 seconds: W&B's own process writes it out after the run has ended."""
    deadline = time.monotonic() + 20
    while text not in log.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.02)
    return text in log.read_bytes()
