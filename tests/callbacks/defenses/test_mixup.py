"""Mixup: what is blended with what, by how much, and with which labels."""

import numpy as np
import pytest
import torch
from regulariser_kit import Losses, trained
from torch.nn.functional import cross_entropy

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from callbacks.defenses.mixup import MixedBatch, Mixup


def test_mixed_loss_and_images_in_closed_form():
    """Images and losses are blended with the same share and the same partners, each sample being a partner once."""
    plain, mixed = Losses(), Losses()
    trained(plain)
    trained(Mixup(1.0), mixed)
    assert [len(batch[1]) for batch, *_ in plain.seen] == [len(batch[1]) for batch, *_ in mixed.seen]
    moved = 0
    for ((images, labels), *_), (batch, logits, loss) in zip(plain.seen, mixed.seen, strict=True):
        assert torch.equal(batch[1], labels)
        share = batch.share
        others = (batch[0] - share * images) / (1 - share)
        distance = torch.cdist(others.flatten(1), images.flatten(1))
        partner = distance.argmin(1)
        assert distance.amin(1).max() < 1e-9
        assert sorted(partner.tolist()) == list(range(len(labels)))
        assert torch.equal(batch.others, labels[partner])
        moved += int((partner != torch.arange(len(labels))).sum())
        expected = share * cross_entropy(logits, labels) + (1 - share) * cross_entropy(logits, batch.others)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    assert moved > 20


def test_shares_follow_the_beta_distribution():
    """Mean 1/2 and variance 1/(4(2 alpha + 1)), uniform for alpha 1; keyed by round and client."""
    images, labels = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)
    for alpha in (0.2, 1.0, 8.0):
        batches = Mixup(alpha)._mixed([(images, labels)] * 4000, np.random.default_rng(0))
        shares = np.array([batch.share for batch in batches])
        assert shares.mean() == pytest.approx(0.5, abs=0.03)
        assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)
    seen = Losses()
    trained(Mixup(), seen)
    shares = [batch.share for batch, *_ in seen.seen]
    assert len(set(shares)) == len(shares)


def test_batches_that_lose_their_second_labels_are_refused():
    """Another defense that rebuilds the batches afterwards must act before."""

    class Rebuilt(FederatedCallback):
        def on_client_start(self, trainer, federation, client):
            """Plain pairs."""
            client.batches = [(images, labels) for images, labels in client.batches]

    with pytest.raises(UserError, match="--defense_order"):
        trained(Mixup(), Rebuilt())
    trained(Rebuilt(), Mixup())


def test_a_mixed_batch_unpacks_like_any_other():
    """Images and labels, nothing else."""
    images, labels = MixedBatch(torch.ones(2), torch.zeros(2), torch.ones(2), 0.5)
    assert images.sum() == 2
    assert labels.sum() == 0


def test_what_mixup_does_to_privacy():
    """One gradient depends on two samples, which sample-level differential privacy must know."""
    assert Mixup().traits() == {"trains-differently", "mixes-samples"}
