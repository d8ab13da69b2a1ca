"""What the table says about channels."""

import pytest

from app.privacy.compatibility import clashes
from app.privacy.traits import Component

FOUND = {
    "channel": ("two-channels", "error"),
    "chosen-cells": ("channel-chosen-cells", "error"),
    "label-masks": ("channel-label-masks", "warning"),
    "client-dp": ("channel-client-dp", "warning"),
    "own-noise": ("channel-own-noise", "note"),
    "pruned-uploads": ("channel-pruned-uploads", "note"),
}


@pytest.mark.parametrize("trait", FOUND)
def test_rules_of_channels(trait):
    """One rule each, whichever of the two comes first."""
    channel, other = Component("A", frozenset({"channel"}), 0), Component("B", frozenset({trait}), 1)
    for parts in ([channel, other], [other, channel]):
        assert [(clash.rule.code, clash.rule.severity) for clash in clashes(parts)] == [FOUND[trait]]


@pytest.mark.parametrize(
    "trait", ["sample-dp", "sum-dp", "nominal-dp", "batch-norm", "running-statistics", "stops-early"]
)
def test_nothing_to_say(trait):
    """A channel does not care."""
    assert not list(clashes([Component("A", frozenset({"channel"})), Component("B", frozenset({trait}))]))
