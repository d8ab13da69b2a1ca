"""More plans that the guard must tell apart."""

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
from federation_kit import FOUR_PIXELS, Blobs, make_trainer, small_federation
from test_guard import NET, prepared

from app.common.ranges import range_problems
from app.crypto.fixed_point import FixedPoint
from app.federation.aggregation import QFFL
from app.federation.channels.integer_code import largest_sum
from app.federation.local_training import LocalTraining
from app.federation.plan_audit.guard import examine, guard_problems
from app.federation.submodels import FedRolex
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation


def test_other_clients_with_the_same_submodel_are_a_change():
    """Seven of eight equal clients a round: one leaves, another one joins."""
    federation = prepared(rounds=6, capacities=[1.0], participation=0.875)
    sets = [set(federation.plan_of(round_).participants) for round_ in range(6)]
    swapped = [one ^ other for one, other in pairwise(sets) if one != other]
    assert swapped
    found = examine(federation, 3)
    assert {finding.kind for finding in found} == {"change"}
    assert sum(finding.coordinates for finding in found) == len(swapped) * federation.space.size
    assert set().union(*(finding.clients for finding in found)) == set().union(*swapped)
    assert examine(federation, 2) == []


def test_rows_of_a_class_that_one_client_has():
    """Label masks make sums over the owners of a class: who is the only one is named, for the classifier alone."""
    local = LocalTraining(batch_size=4, mask_labels=True)
    federation = small_federation(net=NET, local=local)
    trainer, data = make_trainer(2), Blobs((1, 1, 1, 1), FOUR_PIXELS)
    trainer.datamodule, federation.trainer = data, trainer
    data.setup("fit")
    federation.prepare()
    owners = {
        label: [client for client in range(4) if data.owned_classes(client)[label]]
        for label in range(FOUR_PIXELS.classes)
    }
    alone = {clients[0] for clients in owners.values() if len(clients) == 1}
    assert alone
    found = examine(federation, 2)
    assert {(finding.kind, finding.layer) for finding in found} == {("few", "layers.classifier")}
    assert set(found[0].clients) == alone


def test_what_an_unbound_channel_is_advised():
    """Where sums change by few, masks should be bound to the model; where they are, nothing more can be done."""
    federation = prepared(method=FedRolex(), capacities=[1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
    for bound in (True, False):
        [problem] = SecureAggregation(model_bound=bound).problems(federation)
        assert ("model_bound true" in problem.remedy) != bound
        notes = " ".join(SecureAggregation(model_bound=bound).channel_statement(federation).notes)
        assert ("not bound to the model" in notes) != bound


def test_sums_beyond_64_bits_are_refused_before_training():
    """Together with everything else that is wrong."""
    federation = prepared(server=QFFL, capacities=[1.0])
    [problem] = SecureAggregation(bits=32, max_weight=2.0**40).problems(federation)
    assert "64 bits" in problem.cause
    [problem] = range_problems(SecureAggregation(threshold=1.01), "defenses.sum")
    assert problem.cause == "--defenses.sum.threshold is 1.01"


def test_the_bound_is_that_of_the_heaviest_clients():
    """As many as take part in a round at most."""
    federation = prepared(weighting="samples", capacities=[1.0], participation=0.25)
    federation.client_pool = replace(federation.client_pool, sizes=(1, 2, 30, 4, 1, 1, 1, 1))
    assert largest_sum(federation, FixedPoint(8, 1.0), 16.0) == 127 * 34


def test_only_short_keys_are_warned_of():
    """2048 bits are 112 bits of security."""
    trainer = make_trainer(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Paillier(key_length=2048).on_fit_start(trainer, None)
    with pytest.warns(UserWarning, match="can be broken"):
        Paillier(key_length=1024).on_fit_start(trainer, None)


def test_losses_behind_sums_of_weights():
    """Three widths, one client less each: q-FFL's sums of weights, one per block, differ by a single client's."""
    settings = {"capacities": [1.0, 1.0, 0.5, *[0.25] * 5]}
    assert examine(prepared(**settings), 2) == []
    [finding] = examine(prepared(server=QFFL, **settings), 2)
    assert (finding.kind, finding.clients) == ("weights", (2,))
    assert str(finding) == "1 of 3 pairs of sums of weights differ by a single client: client 2"
    [problem] = guard_problems([finding], model_bound=True)
    assert "the loss, of client 2" in problem.consequence
    assert examine(prepared(server=QFFL, capacities=[1.0, 1.0, 0.5, 0.5, *[0.25] * 4]), 2) == []
