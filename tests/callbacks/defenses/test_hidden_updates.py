"""Runs whose updates travel encrypted or masked: the plain run up to the stated rounding, nothing but sums to see."""

import json
from functools import cache

import pytest
import torch
from channel_kit import CHANNELS, ENCRYPTED, MASKED, METHODS, MIXED, NET, SIMULATED, SIZES, trained
from federation_kit import PICTURES, Blobs, Recorder, initial, run, sgd, small_federation

from app.common.errors import UserError
from app.federation.aggregation import QFFL, FedAdam, FedAvgM
from app.federation.local_training import LocalTraining
from app.models import CNN
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation

HALF_STEP = {"simulated": 2.0**-19, "masked": 2.0**-23}
"""Half of range / 2^(bits - 1) with the defaults."""

SETTINGS = {
    "samples": {"weighting": "samples"},
    "momentum": {"server": FedAvgM},
    "few participants": {"participation": 0.4},
    "poisson": {"participation": 0.6, "sampling": "poisson"},
    "local head": {"personal": ["layers.classifier.*"]},
    "label masks": {"local": LocalTraining(batch_size=4, optimizer=sgd(0.2), mask_labels=True)},
    "zeros": {"capacities": [0.5], "uncovered_cells": "zero"},
}


@cache
def plainly(name):
    """The end of a run whose updates travel as they are, with a method or a kind of federation."""
    return trained(**SETTINGS[name]) if name in SETTINGS else trained(method=METHODS[name])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("channel", HALF_STEP)
def test_every_method_up_to_rounding(channel, method):
    """Half a step per weight after one round, whatever submodels clients train; not the plain sum by chance.

    Simulated encryption gives the bits of the real one, see below.
    """
    hidden = trained(CHANNELS[channel](), method=METHODS[method])
    difference = (hidden - plainly(method)).abs().max()
    assert 0 < difference <= HALF_STEP[channel] * (1 + 1e-9)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("channel", HALF_STEP)
def test_every_kind_of_federation_up_to_rounding(channel, name):
    """Weights by samples, server momentum, few shared coordinates, coordinates that nobody sends."""
    hidden = trained(CHANNELS[channel](), **SETTINGS[name])
    assert (hidden - plainly(name)).abs().max() <= HALF_STEP[channel] * (1 + 1e-9)


@pytest.mark.parametrize("channel", HALF_STEP)
def test_fair_weights_stay_secret_and_right(channel):
    """q-FFL divides by sums of losses that nobody sees: rounded to 2^-16, one sum for every block of coordinates."""
    plain, start = trained(server=lambda p: QFFL(p, q=1.0)), initial(small_federation())
    hidden = trained(CHANNELS[channel](), server=lambda p: QFFL(p, q=1.0))
    assert (hidden - plain).abs().max() < 2e-4
    assert (plain - start[:1]).abs().max() > 0.05, "or nothing was learnt that rounding could spoil"
    for capacities in (MIXED, [1.0]):
        mean = trained(capacities=capacities)
        fair = trained(CHANNELS[channel](), server=lambda p: QFFL(p, q=0.0), capacities=capacities)
        assert (fair - mean).abs().max() < 2e-5


def test_weights_beyond_the_guard_bits_are_refused():
    """Instead of overflowing."""
    with pytest.raises(UserError, match=r"weight .* of client .* is not in 0\.\.0\.5") as error:
        trained(ENCRYPTED(max_weight=0.5), server=lambda p: QFFL(p, q=1.0))
    assert "--defenses.NAME.max_weight" in error.value.problems[0].remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"server": FedAdam},
        {"server": QFFL},
        {"participation": 0.5},
        {"method": METHODS["FedRolex"], "weighting": "samples"},
        {"method": METHODS["independent"], "personal": ["layers.classifier.*"]},
    ],
)
def test_simulation_is_the_real_thing_bit_for_bit(settings):
    """Two rounds of encryption, and two without: the same numbers, and the same bytes."""
    real, mimicked = Recorder(), Recorder()
    one = trained(ENCRYPTED(), real, rounds=2, **settings)
    other = trained(SIMULATED(), mimicked, rounds=2, **settings)
    assert torch.equal(one, other)
    assert [message.size for message in real.messages] == [message.size for message in mimicked.messages]


@pytest.mark.parametrize("channel", CHANNELS)
def test_server_sees_no_payload(channel):
    """Messages say who and which coordinates, and hold no values."""
    recorder = Recorder()
    trained(CHANNELS[channel](), recorder)
    assert len(recorder.messages) == len(SIZES)
    assert {message.form for message in recorder.messages} == {"masked" if channel == "masked" else "ciphertext"}
    assert all(message.payload is None for message in recorder.messages)


def test_packing_makes_updates_small():
    """A ciphertext of 256 bytes for tens of values; narrow clients send fewer of them."""
    recorder = Recorder()
    trained(ENCRYPTED(), recorder)
    sizes = {message.client: message.size for message in recorder.messages}
    coordinates = {message.client: message.index.numel() for message in recorder.messages}
    whole, narrow = MIXED.index(1.0), MIXED.index(0.25)
    assert (sizes[whole] - 121) % 256 == 0
    assert sizes[whole] <= 121 + 256 * (coordinates[whole] // 43 + 1)
    assert sizes[narrow] < sizes[whole]


@pytest.mark.parametrize("make", [ENCRYPTED, MASKED])
@pytest.mark.parametrize("defense", [lambda: MemDefense(0.5), lambda: NbAFL(50.0, 1e-3, exposures=1)])
def test_defenses_act_before_the_channel(make, defense):
    """Pruning and noise on the update, then encryption: the same model up to rounding."""
    assert (trained(defense(), make(range=16.0)) - trained(defense())).abs().max() <= 2.0**-16


@pytest.mark.parametrize("make", [ENCRYPTED, MASKED])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_central_noise_over_hidden_sums(make, weighting):
    """DP-FedAvg's fractional weights pass through, and its noise is the same."""
    both = {"weighting": weighting, "rounds": 2}
    plain = trained(DPFedAvg(noise=0.1, clip=0.5), **both)
    assert (trained(DPFedAvg(noise=0.1, clip=0.5), make(), **both) - plain).abs().max() < 1e-4


def test_changes_outside_the_range_are_refused_or_clipped():
    """Named with client, layer and remedy; or cut, and the share of values that were cut is measured."""
    with pytest.raises(UserError, match=r"parameters of client \d+ changed by up to .* in layers") as error:
        trained(ENCRYPTED(range=1e-3))
    assert "--defenses.NAME.range" in error.value.problems[0].remedy
    defense = ENCRYPTED(range=1e-3, outside="clip")
    moved = trained(defense) - initial(small_federation(net=NET, capacities=MIXED), Blobs(SIZES))
    assert moved.abs().max() <= 1e-3
    assert 0.1 < defense.measurements()["paillier/clipped"] < 1


def test_buffers_travel_like_parameters():
    """Running statistics are in the sum, too."""
    settings = {"net": lambda shape: CNN(shape, u=2, statistics="running"), "capacities": [1.0, 0.5, 0.5]}
    data = Blobs((6, 8, 5), PICTURES)
    plain = run(small_federation(**settings), data, rounds=1)
    hidden = run(small_federation(**settings), Blobs((6, 8, 5), PICTURES), rounds=1, callbacks=[ENCRYPTED(range=16.0)])
    assert (hidden - plain).abs().max() <= 2.0**-16


@pytest.mark.parametrize("make", [Paillier, SecureAggregation])
@pytest.mark.parametrize(
    ("settings", "words"), [({"bits": 4}, "bits"), ({"bits": 40}, "bits"), ({"range": 0.0}, "range")]
)
def test_precision_that_means_nothing(make, settings, words):
    """Refused before any training."""
    with pytest.raises(UserError, match=f"{words} is .*{make.__name__}"):
        trained(make(**settings), capacities=[1.0])


def test_numbers_that_do_not_fit():
    """32 bits per value and weights of up to 2^40 leave no room in 63 bits."""
    for make in (Paillier, SecureAggregation):
        with pytest.raises(UserError, match="bits"):
            trained(make(bits=32, max_weight=2.0**40), server=QFFL, capacities=[1.0])


def test_settings_that_mean_nothing():
    """All at once."""
    with pytest.raises(UserError) as error:
        trained(SecureAggregation(k=1, threshold=0.5), capacities=[1.0])
    assert [problem.cause.split()[0] for problem in error.value.problems] == [
        "--defenses.NAME.k",
        "--defenses.NAME.threshold",
    ]
    with pytest.raises(UserError, match=r"workers is 0 \(Paillier\)"):
        trained(Paillier(workers=0))
    for make in (Paillier, SecureAggregation):
        with pytest.raises(UserError) as error:
            trained(make(attempts=0, max_weight=-1.0), capacities=[1.0])
        named = [problem.cause.split()[0] for problem in error.value.problems]
        assert named == ["--defenses.NAME.max_weight", "--defenses.NAME.attempts"]


def test_one_client_a_round_has_nobody_to_hide_behind():
    """Refused with the option that changes it, also where singletons are allowed."""
    with pytest.raises(UserError, match="1 of 8 clients takes part in a round") as error:
        trained(MASKED(), participation=0.125)
    assert error.value.problems[0].remedy == "raise --model.participation"


def test_two_channels_are_one_too_many():
    """Which of them would be used would depend on their order."""
    with pytest.raises(UserError, match="both replace the way"):
        trained(ENCRYPTED(), MASKED())


def test_coordinates_chosen_by_the_data_cannot_be_summed():
    """MemDefense's variant without zeros tells which coordinates it sends."""
    with pytest.raises(UserError, match="depends on its data"):
        trained(MemDefense(0.5, variant="masked-mean"), MASKED())


def test_short_keys_are_warned_of():
    """1024 bits are for comparison only."""
    with pytest.warns(UserWarning, match="a key of 1024 bits can be broken"):
        trained(ENCRYPTED())
    with pytest.warns(UserWarning, match="nothing is encrypted"):
        trained(SIMULATED())


def test_statements_are_plain_data():
    """And say what is simulated, what was accepted, and how precise sums are."""
    federation = small_federation()
    statement = SIMULATED().channel_statement(federation)
    assert statement.simulated
    assert "simulated" in statement.line()
    assert statement.step == 2.0**-18
    assert json.loads(json.dumps(statement.record()))["mechanism"] == "Paillier, 1024 bits"
    assert any("80 bits of security" in note for note in statement.notes)
