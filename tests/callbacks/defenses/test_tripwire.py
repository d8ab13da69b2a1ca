"""Clients notice manipulated broadcasts, each by the check that was made for it, and refuse to train on them."""

import io
import re
from functools import partial

import pytest
import torch
from channel_kit import ENCRYPTED, MASKED, MIXED, SIMULATED, SIZES, Dying, over
from federation_kit import PICTURES, Blobs, run, sgd
from tripwire_kit import (
    OFF,
    Copying,
    Filling,
    Freezing,
    Moved,
    Moving,
    Outcome,
    Silencing,
    Singling,
    federation_of,
)

from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset, FedRolex, Prefix
from app.models import CNN
from app.privacy.model_checks import REASONS
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.tripwire import Tripwire

CLIENTS = (1, 4)

ATTACKS = {
    "repeated": (Freezing, {"repeated": 1.0}),
    "plan": (Moving, {"plan": True}),
    "constant_fill": (Filling, {"variation": 0.3}),
    "rows": (Filling, {"distinct_rows": 0.9}),
    "noise": (lambda clients: Filling(clients, noise=0.3), {"variation": 0.3}),
    "copies": (Copying, {"distinct_rows": 0.9}),
    "gradient_suppression": (Silencing, {"gradient_suppression": 1e-5}),
    "commitment": (Singling, {"commitment": True}),
}
CHECK = {"rows": "constant_fill", "noise": "constant_fill", "copies": "constant_fill"}


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("attack", ATTACKS)
def test_each_check_alone_finds_its_manipulation(attack):
    """The clients that were lied to, in the rounds in which they were, and nobody else."""
    make, setting = ATTACKS[attack]
    check = CHECK.get(attack, attack)
    outcome = Outcome(make(CLIENTS), **{**OFF, **setting})
    lied_to = (0, 1, 2) if attack == "plan" else (1, 2)
    for round_ in range(3):
        expected = CLIENTS if round_ in lied_to else ()
        assert outcome.refusing(round_) == expected
        assert outcome.measurements[round_] == {"alarms": len(expected), check: len(expected)}
        sent = [message.client for message in outcome.recorder.messages if message.round == round_]
        assert sorted(sent) == [client for client in range(len(SIZES)) if client not in expected]
    assert {client.refusal for client in outcome.reports[2].clients} == {"", REASONS[check]}


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("attack", ATTACKS)
def test_all_other_checks_miss_what_they_are_not_for(attack):
    """With the check that is meant switched off and the commitment aside, which sees any difference."""
    make, _ = ATTACKS[attack]
    meant = {"repeated": ["repeated"], "plan": ["plan"], "copies": ["distinct_rows"], "noise": ["variation"]}
    off = meant.get(attack, ["distinct_rows", "variation", "gradient_suppression"])
    silent = Outcome(make(CLIENTS), rounds=2, commitment=False, **{name: OFF[name] for name in off})
    assert sum(measurements["alarms"] for measurements in silent.measurements) == 0


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("method", [FedRolex(), ChannelSubset.preset("fdropout"), ChannelSubset.preset("mapp-fl")])
def test_a_frozen_model_is_found_though_submodels_move(method):
    """Coordinates are compared by their place at the server; every other check is off."""
    outcome = Outcome(Freezing(CLIENTS), method=method, **{**OFF, "repeated": 1.0})
    assert [outcome.refusing(round_) for round_ in range(3)] == [(), CLIENTS, CLIENTS]


@pytest.mark.filterwarnings("ignore:round")
def test_a_client_compares_with_the_last_round_it_was_heard_in():
    """Four of eight clients take part; the frozen model is found at the second turn, however long ago the first."""
    everyone = tuple(range(8))
    outcome = Outcome(Freezing(everyone, range(1, 9)), rounds=9, participation=0.5, **{**OFF, "repeated": 1.0})
    senders = set()
    for round_, report in enumerate(outcome.reports):
        present = {client.client for client in report.clients}
        assert set(outcome.refusing(round_)) == present & senders
        senders |= present
    assert senders == set(everyone)


@pytest.mark.filterwarnings("ignore:round")
def test_a_part_of_the_model_that_repeats_is_a_matter_of_the_threshold():
    """One coordinate that moves is enough for the strictest setting to keep quiet, not for a looser one."""

    class AlmostFreezing(Freezing):
        """All coordinates but one."""

        def edit(self, federation, client, vector):
            """The first coordinate keeps what the server has."""
            moved = vector[0].clone()
            super().edit(federation, client, vector)
            vector[0] = moved

    quiet = Outcome(AlmostFreezing(CLIENTS), **{**OFF, "repeated": 1.0})
    strict = Outcome(AlmostFreezing(CLIENTS), **{**OFF, "repeated": 0.98})
    assert [measurements["repeated"] for measurements in quiet.measurements] == [0, 0, 0]
    assert [measurements["repeated"] for measurements in strict.measurements] == [0, 2, 2]


def test_one_manipulated_model_for_all_is_not_found():
    """What the server commits to and changes from round to round is beyond clients: the limit that the texts tell."""

    class Bending(FederatedCallback):
        """Moves the model itself."""

        def on_server_update(self, trainer, federation, aggregate):
            """Before it becomes the next model."""
            aggregate.mean += 0.05

    assert sum(measurements["alarms"] for measurements in Outcome(Bending()).measurements) == 0


def test_refusals_are_told_in_one_line():
    """All reasons of the same clients together, in the order of the checks."""
    with pytest.warns(UserWarning, match=r"^round 2: clients 1, 4 refuse") as caught:
        Outcome(Filling(CLIENTS, (1,)), rounds=2)
    text = next(str(warning.message) for warning in caught if "round 2" in str(warning.message))
    reasons = [REASONS[name] for name in ("constant_fill", "gradient_suppression", "commitment")]
    assert text == "round 2: clients 1, 4 refuse to train: " + "; ".join(reasons)


def test_warning_only_changes_nothing_else():
    """The clients train on what they were sent, bit for bit as without a tripwire."""
    with pytest.warns(UserWarning, match=re.escape(f"round 2: alarm of clients 1, 4: {REASONS['constant_fill']}")):
        warned = Outcome(Filling(CLIENTS), action="warn")
    plain = run(federation_of(), Blobs(SIZES), 3, [Filling(CLIENTS)])
    assert torch.equal(warned.end, plain)
    assert [measurements["alarms"] for measurements in warned.measurements] == [0, 2, 2]
    assert all(not client.dropped for report in warned.reports for client in report.clients)


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("channel", [MASKED, ENCRYPTED, SIMULATED], ids=["masked", "paillier", "simulated"])
def test_under_a_channel_who_refuses_has_dropped_out(channel):
    """The sum of the others is right, which it is not where the client trains on the model made for it alone."""
    hidden = Outcome(Singling((0,), (1,)), rounds=2, extra=[channel()])
    plain = Outcome(Singling((0,), (1,)), rounds=2)
    assert hidden.refusing(1) == plain.refusing(1) == (0,)
    mean, weight, updates = hidden.recorder.aggregates[1]
    expected, _, _ = plain.recorder.aggregates[1]
    assert updates == len(SIZES) - 1
    assert weight.max() == len(SIZES) - 1
    assert (mean - expected).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:round")
def test_when_all_refuse_the_honest_model_is_taken_again():
    """A round that came to nothing leaves the model as it was, and nobody may take that for a repetition."""
    outcome = Outcome(Filling(range(8), (1,)), rounds=3)
    assert [measurements["alarms"] for measurements in outcome.measurements] == [0, 8, 0]
    assert torch.equal(outcome.recorder.started[1], outcome.recorder.started[2])
    assert not torch.equal(outcome.recorder.started[2], outcome.end)


@pytest.mark.filterwarnings("ignore:round")
def test_a_round_that_the_channel_gave_up_is_no_repetition():
    """Masked updates had arrived when too many clients fell away: clients know that, and expect the same model."""
    dying = over(Dying(range(6), "reveal", round_=2), MASKED)
    outcome = Outcome(rounds=3, extra=[dying])
    assert torch.equal(outcome.recorder.started[1], outcome.recorder.started[2])
    assert [measurements["alarms"] for measurements in outcome.measurements] == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:round")
def test_a_lost_update_is_no_repetition():
    """A client alone on its coordinates whose update never arrived gets the same values again."""
    dying = over(Dying([1], "ciphertext", round_=1), ENCRYPTED)
    apart = {"capacities": [0.5, 0.5], "method": Moved(Prefix(), (1,)), "personal": ["*classifier*", "*hidden2.weight"]}
    outcome = Outcome(rounds=2, extra=[dying], data=Blobs((6, 7)), **apart)
    assert [message.client for message in outcome.recorder.messages] == [0, 1, 0]
    assert [measurements["alarms"] for measurements in outcome.measurements] == [0, 0]


@pytest.mark.filterwarnings("ignore:round")
def test_a_server_that_stands_still_loses_its_clients():
    """With a learning rate of 0 the model repeats honestly, and the texts say that clients then refuse."""
    still = LocalTraining(batch_size=4, optimizer=sgd(0.0))
    outcome = Outcome(rounds=3, local=still)
    assert [measurements["repeated"] for measurements in outcome.measurements] == [0, 8, 8]


def test_memory_survives_a_checkpoint():
    """A client that has seen a model in the run before knows it again; only plain tensors are kept."""
    first = Outcome(rounds=1, local=LocalTraining(batch_size=4, optimizer=sgd(0.0)))
    file = io.BytesIO()
    torch.save(first.tripwire.state_dict(), file)
    file.seek(0)
    later = Tripwire(action="warn")
    later.load_state_dict(torch.load(file, weights_only=True))
    with pytest.warns(UserWarning, match=r"round 1: alarm of clients 0, 1, .*has not changed"):
        run(federation_of(), Blobs(SIZES), 1, [later])
    assert later.measurements()["tripwire/repeated"] == 8


def test_memory_is_one_vector_a_client_and_one_index_a_submodel():
    """What the texts say it costs."""
    state = Outcome(rounds=2).tripwire.state_dict()["clients"]
    assert set(state) == set(map(str, range(8)))
    assert len({id(index) for index, _ in state.values()}) == len(set(MIXED))
    assert all(index.shape == values.shape for index, values in state.values())


def test_digests_are_paid_for():
    """32 bytes for each set of holders and for the root, to every client: nested widths have as many sets as widths."""
    outcome = Outcome(rounds=1, method=Prefix())
    assert outcome.tripwire.costs() == {"tripwire/digest_bytes": 8 * 32 * (len(set(MIXED)) + 1)}
    assert Outcome(rounds=1, commitment=False).tripwire.costs() == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"repeated": 0.0}, "repeated is 0.0 .Tripwire"),
        ({"repeated": 1.1}, "float in .0, 1."),
        ({"distinct_rows": 2.0}, "distinct_rows"),
        ({"variation": -1.0}, "variation"),
        ({"variation": float("inf")}, "variation"),
        ({"gradient_suppression": float("nan")}, "gradient_suppression"),
        ({"probe_samples": 1}, "probe_samples"),
        (OFF, "all checks of Tripwire are switched off"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting, words):
    """Before any training, with the option to set."""
    with pytest.raises(UserError, match=words) as error:
        Outcome(rounds=1, **setting)
    assert "--defenses.NAME." in error.value.problems[0].remedy


@pytest.mark.filterwarnings("ignore:round")
def test_only_parameters_that_the_server_sends_are_compared():
    """The client's own head and running statistics move by themselves, and must not hide a frozen rest."""

    class FreezingParameters(Freezing):
        """Leaves the rest as it is."""

        def edit(self, federation, client, vector):
            """Parameters that are not personal."""
            index = federation.plan.index(client)
            frozen = federation.personal.shared(index) & (index < federation.space.trainable)
            vector[frozen] = self.first[index[frozen]]

    own = {"net": partial(CNN, u=4, statistics="running"), "personal": ["*classifier*"], "capacities": [1.0, 0.5, 0.5]}
    data = Blobs((6, 9, 7), PICTURES)
    outcome = Outcome(FreezingParameters((1,), (1,)), rounds=2, data=data, **own, **{**OFF, "repeated": 1.0})
    assert [outcome.refusing(round_) for round_ in range(2)] == [(), (1,)]


def test_only_gradients_look_at_private_data():
    """Under differential privacy that is warned of; the other checks, and a mere warning, give nothing away."""
    assert Tripwire().traits() == {"refuses-by-data"}
    assert Tripwire(gradient_suppression=None).traits() == Tripwire(action="warn").traits() == frozenset()
    with pytest.warns(UserWarning, match=r"Tripwire under DPSGD.*gradient_suppression null"):
        Outcome(rounds=1, extra=[DPSGD(noise=1.0)])
