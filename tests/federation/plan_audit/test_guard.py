"""The guard of secure aggregation: which plans would give single clients away."""

from functools import partial
from itertools import pairwise

import pytest
from federation_kit import FOUR_PIXELS, Blobs, make_trainer, small_federation

from app.common.errors import UserError
from app.federation.plan import Plan
from app.federation.plan_audit.guard import examine, guard_problems
from app.federation.submodels import PRESETS, ChannelSubset, FedRolex
from app.models import MLP
from callbacks.defenses.secure_aggregation import SecureAggregation

NET = partial(MLP, hidden=(8,))
MIXED = [1.0, 0.5, 0.5, 0.25, 0.5, 0.25, 1.0, 0.5]


def prepared(rounds=3, **settings):
    """A federation before its first round."""
    federation = small_federation(**{"net": NET, "capacities": MIXED, **settings})
    clients = len(federation.capacities.rates) if federation.capacities.rates else 1
    trainer = make_trainer(rounds)
    data = Blobs((4,) * max(clients, 8), FOUR_PIXELS)
    trainer.datamodule = data
    federation.trainer = trainer
    data.setup("fit")
    federation.prepare()
    return federation


def clients_of(plan: Plan, size):
    """Who trains each coordinate."""
    held = {client: set(plan.index(client).tolist()) for client in plan.participants}
    return [{client for client, own in held.items() if coordinate in own} for coordinate in range(size)]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("method", [*PRESETS, "FedRolex"])
def test_findings_are_the_small_sets(method, k):
    """Against the sets of clients, written out for every coordinate and round."""
    chosen = FedRolex() if method == "FedRolex" else ChannelSubset.preset(method)
    federation = prepared(method=chosen)
    sets = [clients_of(federation.plan_of(round_), federation.space.size) for round_ in range(3)]
    few = [clients for row in sets for clients in row if 0 < len(clients) < k]
    changes = [one ^ other for before, after in pairwise(sets) for one, other in zip(before, after, strict=True)]
    small = [clients for clients in changes if 0 < len(clients) < k]
    found = examine(federation, k)
    told = {kind: [finding for finding in found if finding.kind == kind] for kind in ("few", "change")}
    # rounds that repeat the one before are looked at once, and have the same small sets
    distinct = len({tuple(map(frozenset, row)) for row in sets})
    if distinct == 3:
        assert sum(finding.coordinates for finding in told["few"]) == len(few)
    assert bool(told["few"]) == bool(few)
    assert sum(finding.coordinates for finding in told["change"]) == len(small)
    assert set().union(*(finding.clients for finding in told["few"])) == set().union(*few)
    assert set().union(*(finding.clients for finding in told["change"])) == set().union(*small)


def test_one_wide_client_is_named():
    """Seven of eight clients train half the width: the rest of the network is one client's alone."""
    federation = prepared(capacities=[1.0, *[0.5] * 7])
    found = examine(federation, 2)
    hidden = next(finding for finding in found if finding.layer == "layers.hidden1")
    assert (hidden.clients, hidden.coordinates, hidden.of) == ((0,), 20, 40)
    assert str(hidden) == "20 of 40 sums of layer layers.hidden1 have a single contributor: client 0"
    [problem] = guard_problems(found, model_bound=True)
    assert "would reveal what client 0 sent" in problem.consequence
    assert "allow_singletons" in problem.remedy


def test_cohorts_of_k_pass():
    """Two wide clients pass for k = 2 and not for k = 3."""
    federation = prepared(capacities=[1.0, 1.0, *[0.5] * 6])
    assert examine(federation, 2) == []
    assert {finding.clients for finding in examine(federation, 3)} == {(0, 1)}


def test_rolling_window_of_three_alone():
    """FedRolex with three clients of different widths: sets change by one client from round to round."""
    federation = prepared(method=FedRolex(), capacities=[1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
    changes = [finding for finding in examine(federation, 2) if finding.kind == "change"]
    assert changes
    assert set().union(*(finding.clients for finding in changes)) <= {5, 6, 7}
    [problem] = guard_problems(changes, model_bound=False)
    assert "--defenses.NAME.model_bound true" in problem.remedy


def test_what_is_not_sent_gives_nobody_away():
    """A local head has no sums."""
    head = {"personal": ["layers.classifier.*"], "capacities": [1.0, *[0.5] * 7]}
    assert {finding.layer for finding in examine(prepared(**head), 2)} == {"layers.hidden1"}
    assert examine(prepared(personal=["*"]), 2) == []


def test_run_is_refused_before_training_and_may_be_insisted_on():
    """The override is part of what the run says about itself."""
    federation = small_federation(net=NET, capacities=[1.0, *[0.5] * 7])
    trainer = make_trainer(1, callbacks=[SecureAggregation()])
    with pytest.raises(UserError, match="single contributor: client 0") as error:
        trainer.fit(federation, datamodule=Blobs((4,) * 8))
    assert len(error.value.problems) == 1
    allowed = SecureAggregation(allow_singletons=True)
    federation = small_federation(net=NET, capacities=[1.0, *[0.5] * 7])
    make_trainer(1, callbacks=[allowed]).fit(federation, datamodule=Blobs((4,) * 8))
    told = allowed.channel_statement(federation)
    assert len(told.accepted) == 2
    assert "2 accepted leaks of the plan" in told.line()
