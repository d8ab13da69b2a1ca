"""What attackers who know the defense make of uploads, against answers that can be computed by hand."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from app.attacks.adaptive.averaging import Averaging
from app.attacks.adaptive.base import ReadingStrategy
from app.attacks.adaptive.catalogue import ADAPTATIONS, called_for, marks_models, unmatched
from app.attacks.adaptive.refill import Refill
from app.attacks.protocols.target_selection import adaptation_notes, resolved
from app.attacks.targets import aggregated_models, uploaded_models
from app.federation.channels.base import Message
from app.federation.parameters import ParameterSpace
from app.federation.plan import ClientPool, Plan
from app.federation.submodels import FedRolex, Prefix
from app.federation.transcript import Transcript
from app.metrics.membership import NO_CLIENT, NotAvailable
from app.models import CNN, DataShape
from app.privacy.traits import Component

NET = CNN(DataShape(1, 8, 8, 3), u=4, statistics="running")
SPACE = ParameterSpace(NET)
METHODS = (Prefix(), FedRolex())
SHARE = 0.7
"""Of the parameters that are zeroed."""


def known(method):
    """Public knowledge of two clients, the second of half the width."""
    client_pool = ClientPool((30, 20), (1.0, 0.5), 1.0, 0)
    plan = partial(Plan, client_pool=client_pool, method=method, space=SPACE)
    sizes = client_pool.sizes
    return SimpleNamespace(prototype=NET, plan=plan, sizes=sizes, took_part=frozenset(range(len(sizes))))


def noise(*size, seed=0):
    """Standard normal numbers."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


class Played:
    """A transcript written by hand.

    Attributes:
        knowledge: what everybody knows.
        local: what each client had before it sent anything, by client and round, in the coordinates of `index`.
        index: coordinates by client and round.
    """

    def __init__(self, folder, method=METHODS[0]):
        self.knowledge, self.local, self.index = known(method), {}, {}
        self.transcript = Transcript(folder)
        self.theta = {}

    def round(self, number, send, theta=None):
        """Broadcast, then let `send` (client, local model, received) say what each client sends: weights and values."""
        theta = noise(SPACE.size, seed=number) if theta is None else theta
        theta[::7] = 0
        self.theta[number] = theta
        self.transcript.record_broadcast(number, theta)
        self.transcript.record_aggregate(number, theta + 1)
        plan = self.knowledge.plan(number - 1)
        for client in (0, 1):
            index = self.index[client, number] = plan.index(client)
            local = self.local[client, number] = theta[index] + 0.1 * noise(len(index), seed=100 * number + client)
            chosen, values = send(client, number, local.clone(), theta[index])
            message = Message(client, number - 1, index[chosen], values, "plain", 0)
            self.transcript.record_message(message, SPACE.size)
        self.transcript.finish(number)

    def models(self, adaptations, rounds, last=False, drawn=None):
        """What the server makes of it."""
        reading = ReadingStrategy(adaptations, drawn or rounds) if adaptations else None
        return uploaded_models(self.transcript.server_view(), self.knowledge, rounds, "test", last, reading)

    def trainable(self, client, number):
        """Parameters among a client's coordinates."""
        return int((self.index[client, number] < SPACE.trainable).sum())


def everything(values):
    """All coordinates are sent."""
    return torch.ones(len(values), dtype=torch.bool), values


@pytest.fixture(params=METHODS, ids=lambda method: type(method).__name__)
def zeroed(request, tmp_path):
    """Three rounds in which clients zero the parameters that moved least; some buffers are truly zero."""
    played = Played(tmp_path, request.param)

    def send(client, number, local, received):
        parameters = played.trainable(client, number)
        moves = (local - received)[:parameters].abs()
        local[moves.argsort()[: int(SHARE * parameters)]] = 0
        local[parameters::2] = 0
        played.local[client, number][parameters::2] = 0
        return everything(local)

    for number in (1, 2, 3):
        played.round(number, send)
    return played


def test_refilled_coordinates_are_as_close_as_they_have_moved(zeroed):
    """Kept weights are exact, zeroed ones off by no more than the quantile of the moves, buffers as they were sent."""
    for client, model in zeroed.models((Refill(),), (1, 2, 3)).items():
        assert model.rounds == (1, 2, 3)
        assert model.last.rate == (1.0, 0.5)[client]
        for snapshot in model.snapshots:
            place = (client, snapshot.round)
            local, received = zeroed.local[place], zeroed.theta[snapshot.round][zeroed.index[place]]
            parameters = zeroed.trainable(*place)
            moves = (local - received)[:parameters].abs()
            zeroed_coordinates = moves.argsort()[: int(SHARE * parameters)]
            error = (snapshot.vector - local).abs()
            assert error[:parameters].max() <= moves.sort().values[len(zeroed_coordinates)]
            assert torch.equal(error[zeroed_coordinates], moves[zeroed_coordinates])
            error[zeroed_coordinates] = 0
            assert not error.any(), "kept weights and buffers are those of the client"
            assert torch.equal(snapshot.vector[zeroed_coordinates], received[zeroed_coordinates])
            assert (received[zeroed_coordinates] == 0).any(), "a weight that is zero in the broadcast stays zero"
            assert (received[parameters::2] != 0).any(), "buffers would show"


def test_without_adaptation_uploads_are_what_was_sent(zeroed):
    """Zeros included; models read in different ways have different keys."""
    plain, refilled = (zeroed.models(adaptations, (2, 3)) for adaptations in ((), (Refill(),)))
    for client in (0, 1):
        sent = zeroed.local[client, 3].clone()
        parameters = zeroed.trainable(client, 3)
        assert int((plain[client].last.vector[:parameters] == 0).sum()) >= int(SHARE * parameters)
        kept = plain[client].last.vector != 0
        assert torch.equal(plain[client].last.vector[kept], sent[kept])
        assert plain[client].reading is None
        assert plain[client].key != refilled[client].key


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_averages_are_means_over_the_rounds_of_a_coordinate(method, tmp_path):
    """Each coordinate over the rounds in which it arrived, cut to each round's; never sent: the broadcast."""
    played, sent = Played(tmp_path, method), {}

    def send(client, number, local, received):
        chosen = torch.rand(len(local), generator=torch.Generator().manual_seed(number)) < 0.7
        chosen[:3] = False
        sent[client, number] = chosen
        return chosen, local[chosen]

    for number in (1, 2, 4):
        played.round(number, send)
    models = played.models((Averaging(),), (1, 2, 4))
    for client, model in models.items():
        seen = {}
        for snapshot in model.snapshots:
            place = (client, snapshot.round)
            index, local = played.index[place].tolist(), played.local[place]
            for coordinate, value, arrived in zip(index, local.tolist(), sent[place].tolist(), strict=True):
                if arrived:
                    seen.setdefault(coordinate, []).append(value)
            received = played.theta[snapshot.round].tolist()
            expected = [
                sum(seen[coordinate]) / len(seen[coordinate]) if coordinate in seen else received[coordinate]
                for coordinate in index
            ]
            assert torch.equal(snapshot.vector, torch.tensor(expected, dtype=torch.float64).float())
            assert any(coordinate not in seen for coordinate in index)
    last = played.models((Averaging(),), (4,), last=True, drawn=(1, 2, 4))
    for client in (0, 1):
        assert torch.equal(last[client].last.vector, models[client].last.vector)
        assert last[client].rounds == (4,)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_averaging_divides_the_noise(method, tmp_path):
    """Over 8 rounds of the same truth, the squared error falls by 8 where a coordinate was always sent."""
    played, rounds = Played(tmp_path, method), tuple(range(1, 9))
    truth = noise(SPACE.size, seed=99)

    def send(client, number, local, received):
        index = played.index[client, number]
        return everything(truth[index] + noise(len(index), seed=1000 * number + client))

    for number in rounds:
        played.round(number, send)
    for client in (0, 1) if isinstance(method, Prefix) else (0,):
        model = played.models((Averaging(),), rounds)[client]
        errors = [(one.vector - truth[played.index[client, one.round]]).square().mean() for one in model.snapshots]
        assert errors[0] == pytest.approx(1, rel=0.15)
        assert errors[7] / errors[0] == pytest.approx(1 / 8, rel=0.15)


def test_what_is_averaged_has_been_refilled(zeroed):
    """Both at once: the mean of the refilled models, not of models with holes."""
    refilled = zeroed.models((Refill(),), (1, 2, 3))[0]
    both = zeroed.models((Refill(), Averaging()), (1, 2, 3))[0]
    mean = torch.stack([snapshot.vector for snapshot in refilled.snapshots]).double().mean(0)
    assert torch.allclose(both.last.vector.double(), mean, atol=1e-6)
    assert both.reading.name == "refilled+averaged"


def test_global_model_is_averaged(zeroed):
    """The server's model after the rounds, as participants see it."""
    view, reading = zeroed.transcript.client_view(), ReadingStrategy((Averaging(),), (1, 2, 3))
    model = aggregated_models(view, zeroed.knowledge, (3,), "test", reading)
    mean = torch.stack([zeroed.theta[number] + 1 for number in (1, 2, 3)]).double().mean(0)
    assert torch.equal(model.last.vector, mean.float())
    assert (model.client, model.rounds) == (NO_CLIENT, (3,))
    assert model.key != aggregated_models(view, zeroed.knowledge, (3,), "test").key


def test_one_round_cannot_be_averaged(zeroed):
    """The reason names the option; a client that was heard once beside others is attacked as it is, with a remark."""
    models = resolved(zeroed.models((Averaging(),), (3,)))
    assert all("--transcript.last" in model.reason for model in models.values())
    several = zeroed.models((Averaging(),), (2, 3))
    mixed = {0: several[0], 1: zeroed.models((Averaging(),), (3,))[1]}
    assert resolved(mixed) is mixed
    assert adaptation_notes(several) == [Averaging.what]
    assert "1 of 2 clients uploaded in one of the kept rounds only" in adaptation_notes(mixed)[1]
    assert not adaptation_notes({0: NotAvailable("no")})


def test_sealed_messages_are_not_averaged_away(zeroed):
    """Where the asked round is sealed there is no model; where an earlier one is, the rest is averaged."""
    sealed = {(3, 0), (1, 1)}
    for number in (1, 3):
        sent = zeroed.transcript.server_view().uploads(number)
        for one in sent:
            index = torch.arange(SPACE.size) if one.index is None else one.index
            message = Message(one.client, number - 1, index, one.payload, "plain", 0)
            hidden = replace(message, payload=None, form="masked")
            zeroed.transcript.record_message(hidden if (number, one.client) in sealed else message, SPACE.size)
        zeroed.transcript.record_broadcast(number, zeroed.theta[number])
        zeroed.transcript.finish(number)
    models = zeroed.models((Averaging(),), (3,), last=True, drawn=(1, 2, 3))
    assert "masked sums only" in models[0].reason
    assert models[1].reading.rounds == (2, 3)


def test_defenses_call_for_adaptations():
    """By what they do, on the targets where it helps; the second attacker applies the first adaptation, too."""
    names = {
        (trait, kind): ["+".join(one.name for one in each) for each in called_for({trait}, kind)]
        for trait in ("pruned-uploads", "own-noise", "sample-dp", "server-noise", "trains-differently", "kept-cells")
        for kind in ("uploads", "global")
    }
    assert {key: found for key, found in names.items() if found} == {
        ("pruned-uploads", "uploads"): ["refilled"],
        ("own-noise", "uploads"): ["averaged"],
        ("sample-dp", "uploads"): ["averaged"],
        ("server-noise", "global"): ["averaged"],
    }
    stacked = called_for({"own-noise", "pruned-uploads"}, "uploads")
    assert [[one.name for one in each] for each in stacked] == [["refilled"], ["refilled", "averaged"]]
    assert called_for((), "uploads") == []


def test_defenses_that_nobody_adapts_to():
    """Each is matched by its own adaptation only; what leaves no mark on a model needs none."""
    pruned, dropout = (
        Component("Pruned", frozenset({"pruned-uploads"})),
        Component("Dropout", frozenset({"trains-differently"})),
    )
    sealed, kept = Component("Sealed", frozenset({"channel"})), Component("Kept", frozenset({"kept-cells"}))
    run = [pruned, dropout, sealed, kept, dropout]
    assert unmatched(run, [], "uploads") == ["Pruned", "Dropout"]
    assert unmatched(run, ADAPTATIONS, "uploads") == ["Dropout"]
    assert unmatched(run, [Averaging()], "uploads") == ["Pruned", "Dropout"]
    assert unmatched(run, ADAPTATIONS, "global") == ["Pruned", "Dropout", "Kept"]
    assert [marks_models(part) for part in run[:4]] == [True, True, False, True]
