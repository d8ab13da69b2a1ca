"""Secure aggregation on a neighbour graph, through the federation."""

from functools import partial

import pytest
import torch
from channel_kit import MASKED, Dying, over, trained

from app.common.errors import UserError

SIZES = (5,) * 24
MIXED = [1.0, 0.5] * 12
SPARSE = partial(MASKED, neighbours=14, dropouts=0.05, colluders=0.05)


def test_model_is_that_of_all_pairs_bit_for_bit():
    """Sums are integers: only masks differ. A client that drops out is recovered through its neighbours."""
    pairs, sparse = (over(Dying([5], "masked"), one) for one in (partial(MASKED, neighbours="all"), SPARSE))
    expected = trained(pairs, sizes=SIZES, capacities=MIXED)
    assert torch.equal(trained(sparse, sizes=SIZES, capacities=MIXED), expected)
    assert pairs.costs()["secagg/protocol_bytes"] > 1.2 * sparse.costs()["secagg/protocol_bytes"]
    trusted = sparse._trusted_clients(24)
    assert "at most 5% of a round's clients" in trusted
    assert "14 neighbours per client" in trusted


def test_too_few_neighbours_are_refused():
    """The message says how many withstand what the settings name."""
    with pytest.raises(UserError, match=r"4 neighbours among 24 clients are fewer than the \d+ that withstand 5%"):
        trained(SPARSE(neighbours=4), sizes=SIZES, capacities=MIXED)
