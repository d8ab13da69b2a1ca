"""MemDefense: which coordinates are given up, what becomes of them, and what is said about it."""

import warnings
from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Reader, Recorder, initial, run, sgd, small_federation
from torch.optim.lr_scheduler import MultiStepLR

from app.common.errors import UserError
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset
from app.models import CNN
from callbacks.defenses.memdefense import MemDefense, smallest

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2), epochs=2)


def trained(*defenses, net=TINY_MLP, rounds=1, data=None, **settings):
    """Final vector, and what was uploaded before and after the defense."""
    before, after = Reader(), Recorder()
    federation = small_federation(net, local=LOCAL, **settings)
    vector = run(federation, data, rounds, callbacks=[before, *defenses, after])
    return vector, before, after, federation


def moves(before, place, start):
    """Absolute change of one client's parameters."""
    _, vector, index = before.updates[place]
    return (vector - start[index]).abs()


@pytest.mark.parametrize("variant", ["zero", "keep-old", "masked-mean"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_gamma_zero_is_no_defense(variant, scope):
    """Bit for bit."""
    plain, *_ = trained(rounds=2)
    defended, *_ = trained(MemDefense(0.0, scope, variant), rounds=2)
    assert torch.equal(plain, defended)


def test_gamma_one_zeroes_everything():
    """The server's next model is zero, too."""
    vector, _, after, _ = trained(MemDefense(1.0))
    assert all(not update[1].any() for update in after.updates)
    assert not vector.any()


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.9, 0.99])
def test_the_least_moved_are_zeroed_exactly(gamma):
    """floor(gamma d) zeros; no given-up coordinate moved further than a kept one; kept coordinates are as trained."""
    start = initial(small_federation(TINY_MLP, local=LOCAL))
    _, before, after, federation = trained(MemDefense(gamma))
    for place, (_, sent, _) in enumerate(after.updates):
        change, own = moves(before, place, start), before.updates[place][1]
        zeroed = (sent == 0) & (own != 0)
        assert int(zeroed.sum()) == int(gamma * federation.space.size + 1e-6)
        assert change[zeroed].max() <= change[~zeroed].min()
        assert torch.equal(sent[~zeroed], own[~zeroed])


def test_refilling_the_zeros_restores_the_update_up_to_the_quantile():
    """Adaptive server: the error per coordinate is at most the gamma-quantile of the client's moves."""
    start = initial(small_federation(TINY_MLP, local=LOCAL))
    _, before, after, _ = trained(MemDefense(0.8))
    for place, (_, sent, index) in enumerate(after.updates):
        refilled = torch.where(sent == 0, start[index], sent)
        change, own = moves(before, place, start), before.updates[place][1]
        largest = change.sort().values[int(0.8 * len(change) + 1e-6) - 1]
        assert (refilled - own).abs().max() <= largest
        assert (sent - own).norm() > 3 * (refilled - own).norm()


def test_scope_layer_gives_up_the_same_share_of_every_tensor():
    """And scope global does not."""
    _, _, after, federation = trained(MemDefense(0.5, "layer"))
    for _, sent, _ in after.updates:
        for block in federation.space.blocks:
            assert int((sent[block.coordinates] == 0).sum()) == block.size // 2
    _, _, together, _ = trained(MemDefense(0.5, "global"))
    shares = [
        float((together.updates[0][1][block.coordinates] == 0).double().mean()) for block in federation.space.blocks
    ]
    assert max(shares) - min(shares) > 0.2


def test_zeros_enter_the_mean():
    """The paper's uniform mean over all clients, zeros included."""
    vector, _, after, _ = trained(MemDefense(0.7))
    torch.testing.assert_close(vector, torch.stack([sent for _, sent, _ in after.updates]).mean(dim=0))


def test_keep_old_sends_what_was_received():
    """The least moved coordinates of the upload are those of the broadcast."""
    start = initial(small_federation(TINY_MLP, local=LOCAL))
    _, before, after, federation = trained(MemDefense(0.6, variant="keep-old"))
    for place, (_, sent, _) in enumerate(after.updates):
        given_up = smallest(moves(before, place, start), int(0.6 * federation.space.size + 1e-6))
        assert torch.equal(sent, torch.where(given_up, start, before.updates[place][1]))


def test_masked_mean_is_over_the_clients_that_kept_a_coordinate():
    """And a coordinate nobody kept stays as it was."""
    start = initial(small_federation(TINY_MLP, local=LOCAL))
    vector, before, after, federation = trained(MemDefense(0.6, variant="masked-mean"))
    total, count = torch.zeros_like(start), torch.zeros_like(start)
    for place, (_, sent, index) in enumerate(after.updates):
        assert len(index) == federation.space.size - int(0.6 * federation.space.size + 1e-6)
        assert torch.equal(sent, before.updates[place][1][index])
        total[index] += sent
        count[index] += 1
    assert (count == 0).any(), "some weight must be given up by all clients for the test to mean something"
    torch.testing.assert_close(vector, torch.where(count > 0, total / count.clamp(min=1), start))


@pytest.mark.parametrize("variant", ["zero", "keep-old", "masked-mean"])
def test_buffers_are_never_touched(variant):
    """Running statistics arrive as trained, even where everything is given up."""
    net = partial(CNN, u=4, statistics="running")
    _, before, after, federation = trained(MemDefense(1.0, variant=variant), net=net, data=Blobs(shape=PICTURES))
    assert federation.space.size > federation.space.trainable
    for place, (_, sent, index) in enumerate(after.updates):
        own = before.updates[place][1][federation.space.trainable :]
        assert torch.equal(sent[index >= federation.space.trainable], own)
        assert (own != 0).any()


def test_spared_parameters_are_kept():
    """Patterns take tensors out of the choice; the count is of what may be chosen."""
    _, before, after, federation = trained(MemDefense(1.0, spare=["*bias"]))
    for block in federation.space.blocks:
        for place, (_, sent, _) in enumerate(after.updates):
            own = before.updates[place][1][block.coordinates]
            assert torch.equal(sent[block.coordinates], own if block.name.endswith("bias") else torch.zeros_like(own))


def test_each_client_chooses_among_its_own_coordinates():
    """Under submodels the count is of the client's own coordinates, not the server's."""
    capacities = [1.0, 0.5, 0.5]
    _, before, after, _ = trained(MemDefense(0.9), capacities=capacities, method=ChannelSubset.preset("fdropout"))
    sizes = {len(index) for _, _, index in after.updates}
    assert len(sizes) == 2
    for place, (_, sent, index) in enumerate(after.updates):
        zeroed = (sent == 0) & (before.updates[place][1] != 0)
        assert int(zeroed.sum()) == int(0.9 * len(index) + 1e-6)


def test_measurements():
    """Zeros, silent units and norm are those of the mean; agreement is 1 where all clients keep the same weights."""
    defense = MemDefense(0.9)
    vector, *_ = trained(defense)
    numbers = defense.measurements()
    assert numbers["memdefense/zeros"] == pytest.approx(float((vector == 0).double().mean()))
    assert 1 / 3 <= numbers["memdefense/agreement"] < 1
    assert 0 < numbers["memdefense/norm_ratio"] < 1
    everything = MemDefense(0.0)
    trained(everything)
    assert everything.measurements()["memdefense/agreement"] == 1.0
    nothing = MemDefense(1.0)
    trained(nothing)
    assert nothing.measurements()["memdefense/silent_units"] == 1.0


def test_agreement_counts_clients_per_kept_coordinate():
    """By hand: coordinates kept by k of 3 clients weigh k * k/3."""
    defense = MemDefense(0.6)
    _, _, after, _ = trained(defense)
    kept = torch.stack([sent != 0 for _, sent, _ in after.updates]).sum(dim=0).double()
    expected = float((kept**2).sum() / 3 / kept.sum())
    assert defense.measurements()["memdefense/agreement"] == pytest.approx(expected)


def collapse_warnings(gamma, milestones, **settings):
    """What is said about the learning rate in a run of three rounds."""
    schedule = partial(MultiStepLR, milestones=milestones, gamma=0.1)
    factors = ((0.5, 0.1),) if settings else ()
    local = LocalTraining(batch_size=4, optimizer=sgd(0.2), lr_schedule=schedule, lr_factors=factors)
    federation = small_federation(TINY_MLP, local=local, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(federation, Blobs((1, 1, 1, 1, 1)), 3, callbacks=[MemDefense(gamma)])
    return [str(warning.message) for warning in caught if "learning rate falls" in str(warning.message)]


def test_a_falling_learning_rate_is_warned_of_once():
    """Only where the rate falls, and only where clients disagree on what they keep."""
    assert len(collapse_warnings(0.97, [1, 2])) == 1
    assert not collapse_warnings(0.97, [10])
    assert not collapse_warnings(0.0, [1, 2])


def test_cohorts_with_small_rates_are_no_falling_rate():
    """A narrow client that always trains slower comes after the wide ones in every round; nothing falls."""
    assert not collapse_warnings(0.97, [10], capacities=[1.0, 1.0, 1.0, 1.0, 0.5])


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_bad_settings_are_refused(gamma):
    """A fraction out of range, and a pattern that matches nothing."""
    for settings, words in (({"gamma": gamma}, "gamma is .* .MemDefense"), ({"spare": ["nonsense*"]}, "nonsense")):
        with pytest.raises(UserError, match=words):
            trained(MemDefense(**settings))
