"""A server that sends clients different models, and reads the sum: masks that are bound to the model leave it noise."""

import pytest
import torch
from channel_kit import ENCRYPTED, MASKED, MIXED, NET, SIZES, trained
from federation_kit import Blobs, Recorder, initial, small_federation

from app.federation.channels.integer_code import IntegerCode
from app.federation.hooks import FederatedCallback

COHORT = tuple(client for client, rate in enumerate(MIXED) if rate == 0.5)


class TwoModels(FederatedCallback):
    """One cohort gets another model than the rest, off by a constant in one of its coordinates."""

    kind = "attack"

    def __init__(self, cohort=COHORT, by=0.01):
        self.cohort, self.by = cohort, by

    def on_broadcast(self, trainer, federation, client, vector):
        """The first coordinate is one that every client holds."""
        if client in self.cohort:
            vector[0] += self.by


class Indices(FederatedCallback):
    """Keeps which coordinates every client trains in the first round."""

    kind = "recorder"

    def on_round_start(self, trainer, federation, plan):
        """The public plan."""
        self.coordinates = {client: set(plan.index(client).tolist()) for client in plan.participants}


def sums(*callbacks):
    """Means of the round, per coordinate, and the coordinates of every client."""
    recorder, indices = Recorder(), Indices()
    trained(*callbacks, recorder, indices)
    return recorder.aggregates[0][0], indices.coordinates


@pytest.fixture
def reads_on(monkeypatch):
    """A malicious server reads sums that an honest one would take for impossible."""
    monkeypatch.setattr(IntegerCode, "impossible", lambda *_: 0)


def test_impossible_sums_end_the_round():
    """The noise that bound masks leave is larger than updates can be: an honest run goes on with its model."""
    with pytest.warns(UserWarning, match="given up: .* sums are larger than their contributors' values can be"):
        garbled, _ = sums(TwoModels(), MASKED())
    assert torch.equal(garbled, initial(small_federation(net=NET, capacities=MIXED), Blobs(SIZES)))


@pytest.mark.usefixtures("reads_on")
def test_bound_masks_leave_noise_where_cohorts_overlap():
    """Every weight of the cohort is also held by somebody else; whoever got the same model still adds up exactly."""
    garbled, coordinates = sums(TwoModels(), MASKED())
    honest, _ = sums(TwoModels(), MASKED(model_bound=False))
    inside = set().union(*(coordinates[client] for client in COHORT))
    outside = set().union(*(own for client, own in coordinates.items() if client not in COHORT))
    shared = torch.tensor(sorted(inside & outside))
    apart = torch.tensor(sorted(outside - inside))
    assert shared.numel() > 20
    assert apart.numel() > 20
    wrong = (garbled - honest).abs()
    assert (wrong[shared] > 0.01).float().mean() > 0.9, "masks that do not cancel are uniform over hundreds"
    assert wrong[shared].median() > 10
    assert wrong[apart].max() == 0


def test_ordinary_masks_hand_the_sum_over():
    """The same attack without binding: the sum of what clients really sent, as over the plain channel."""
    masked, _ = sums(TwoModels(), MASKED(model_bound=False))
    start = initial(small_federation(net=NET, capacities=MIXED), Blobs(SIZES))
    recorder = Recorder()
    trained(TwoModels(), recorder)
    plain = recorder.aggregates[0][0]
    moved = sum(client in COHORT for client in range(len(SIZES))) / len(SIZES) * 0.01
    # changes are sent, so what was added to the broadcast is not in the masked sum
    assert (masked - plain)[1:].abs().max() <= 2.0**-22
    assert float((plain - masked)[0]) == pytest.approx(moved, abs=1e-6)
    assert not torch.equal(masked, start)


@pytest.mark.usefixtures("reads_on")
@pytest.mark.parametrize("apart", [0, 6])
def test_one_client_apart_is_one_client_lost(apart):
    """The least that a server could try: a model of its own for the first or the last client with a submodel."""
    garbled, coordinates = sums(TwoModels([apart]), MASKED())
    honest, _ = sums(MASKED())
    others = set().union(*(own for client, own in coordinates.items() if client != apart))
    shared = torch.tensor(sorted(coordinates[apart] & others))
    assert ((garbled - honest)[shared].abs() > 0.01).float().mean() > 0.9


@pytest.mark.parametrize("make", [MASKED, ENCRYPTED])
def test_an_honest_broadcast_is_not_disturbed(make):
    """A callback that could change it, and does not."""
    assert torch.equal(trained(TwoModels([], 0.0), make()), trained(make()))
