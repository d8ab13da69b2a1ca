"""A defense that holds a run up, so that it can be killed or looked at where a test wants it."""

import os
import time
from pathlib import Path

from app.federation.hooks import FederatedCallback

HELD = ("--defenses.holdup", "holdup.HoldUp")


class HoldUp(FederatedCallback):
    """Does to a run what environment variables say, and nothing without them.

    `SECONDS_PER_CLIENT`: waits after every client. `HOLD`, a round and a file: makes the file after the second client
    of that round and waits until somebody deletes it; a run that finds the file there goes on. `FAILING_RUN`: a run
    with this in its folder's name fails.
    """

    def on_round_start(self, trainer, federation, plan):
        """Nobody was heard yet."""
        self.heard = 0

    def on_client_update(self, trainer, federation, update):
        """Between the clients of a round."""
        self.heard += 1
        time.sleep(float(os.environ.get("SECONDS_PER_CLIENT", "0")))
        round_, _, name = os.environ.get("HOLD", "").partition(" ")
        if (str(update.round + 1), self.heard) == (round_, 2) and not (file := Path(name)).exists():
            file.touch()
            while file.exists():
                time.sleep(0.01)
        failing = os.environ.get("FAILING_RUN")
        if failing and failing in trainer.default_root_dir:
            raise ValueError("this run was told to fail")
