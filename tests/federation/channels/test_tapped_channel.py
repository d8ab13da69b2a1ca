"""A channel that somebody listens to carries what it would carry anyway."""

import torch
from federation_kit import TINY_MLP, Recorder, run, small_federation

from app.federation.channels.base import PlainChannel
from app.federation.channels.tapped import TappedChannel
from app.federation.hooks import FederatedCallback


class Tapping(FederatedCallback):
    """Listens, and scribbles on what it hears."""

    kind = "attack"

    def __init__(self):
        self.heard = []

    def setup(self, trainer, pl_module, stage):
        """In front of the channel that is there."""
        pl_module.channel = TappedChannel(pl_module.channel, self.hear)

    def hear(self, aggregate):
        """Its copy is its own."""
        self.heard.append((aggregate.mean.clone(), aggregate.weight.clone()))
        aggregate.mean.zero_()
        aggregate.weight.zero_()


def test_listening_changes_nothing():
    """The run ends where it ends without, and the listener heard every mean before the server's callbacks did."""
    settings = {"net": TINY_MLP, "capacities": [1.0, 0.5, 0.5]}
    tapping, recorder = Tapping(), Recorder()
    assert torch.equal(
        run(small_federation(**settings), callbacks=[tapping, recorder]), run(small_federation(**settings))
    )
    assert len(tapping.heard) == 2
    for (mean, weight), (given, counted, _) in zip(tapping.heard, recorder.aggregates, strict=True):
        assert torch.equal(mean, given)
        assert torch.equal(weight, counted)


def test_it_looks_like_the_channel_behind_it():
    """Form and content are those of the tapped one."""
    channel = PlainChannel()
    channel.form, channel.carries = "masked", "changes"
    tapped = TappedChannel(channel, lambda _: None)
    assert (tapped.form, tapped.carries) == ("masked", "changes")
    assert tapped.bytes_down(0, torch.zeros(3)) == 12
