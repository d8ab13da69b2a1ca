"""Traits: effects of a part of a run on privacy, which compatibility rules and adaptive attackers look up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Trait = Literal[
    # what defenses promise
    "sample-dp",  # differential privacy of a client's samples
    "client-dp",  # differential privacy of whole clients, by a trusted server
    "sampled-client-dp",  # the same, where epsilon counts that participants are drawn by coins
    "sum-dp",  # differential privacy of whole clients, by noise that they share and that only sums show
    "upload-dp",  # differential privacy of whatever a client uploads
    "nominal-dp",  # noise with an epsilon whose proof needs assumptions that do not hold here
    # what defenses do
    "own-noise",  # adds noise of its own to what a client sends
    "partial-noise",  # the same, but not to every coordinate
    "server-noise",  # adds noise to the aggregate
    "pruned-uploads",  # sets coordinates of an upload to zero, chosen by looking at the data
    "kept-cells",  # resets coordinates of an upload to what was received, chosen by looking at the data
    "chosen-cells",  # sends only some coordinates, chosen by looking at the data
    "trains-differently",  # changes local training, so that shadows must be trained that way, too
    "mixes-samples",  # one gradient depends on several samples
    "local-adversary",  # trains an attack on the client's private outputs
    "stops-early",  # ends the run by looking at private data
    "refuses-by-data",  # clients stay out of a round by looking at private data
    "sample-canaries",  # inserts samples into the clients' data, to measure epsilon
    "client-canaries",  # inserts clients, to measure epsilon
    "channel",  # replaces the way in which updates reach the server
    "unreadable-mean",  # the server cannot read the mean of the updates either
    # what the federation does
    "batch-norm",  # samples of a batch influence each other
    "running-statistics",  # clients send statistics of their data
    "label-masks",
    "loss-weights",  # clients count by their loss
    "fixed-participation",  # always equally many clients take part
    "ordered-dropout",  # clients draw narrower networks step by step
    "nothing-sent",  # every weight stays on its client
    "control-variates",  # clients correct their steps by what earlier uploads of all clients add up to (SCAFFOLD)
    "own-models",  # every client trains a model of its own beside the one whose update it sends (Ditto)
    "hidden-choice",  # the network has parameters that clients never send, such as which factors they use
]


@dataclass(frozen=True)
class Component:
    """A defense, attack or setting with its traits; `place` is its position among the callbacks, None for settings."""

    name: str
    traits: frozenset[Trait]
    place: int | None = None
