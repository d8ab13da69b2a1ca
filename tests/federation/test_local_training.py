"""Batches, learning rates and optimisers of local training."""

from functools import partial

import pytest
import torch
from federation_kit import PICTURES, TINY_MLP, Blobs, Recorder, initial, make_trainer, run, sgd, small_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from app.common.errors import UserError
from app.federation.client import ClientModule
from app.federation.local_training import LocalTraining, merge_short
from app.models import CNN


def generator(seed: int = 0) -> torch.Generator:
    """Seeded."""
    return torch.Generator().manual_seed(seed)


@given(
    samples=st.integers(1, 40), batch_size=st.integers(2, 12), epochs=st.integers(1, 3), least=st.sampled_from([1, 2])
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_every_sample_once_per_epoch(samples, batch_size, epochs, least):
    """Each epoch is a permutation, cut into full batches and a rest; a rest of one joins the batch before."""
    local = LocalTraining(batch_size=batch_size, epochs=epochs)
    batches = list(local.batches(samples, generator(), least))
    per_epoch = local.steps_per_epoch(samples, least)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        mine = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(torch.cat(mine).tolist()) == list(range(samples))
        assert all(len(batch) == batch_size for batch in mine[:-1])
        assert min(least, samples) <= len(mine[-1]) <= batch_size + least - 1


def test_epochs_are_shuffled_anew():
    """And depend on the generator only."""
    local = LocalTraining(batch_size=4, epochs=2)
    batches = torch.cat(list(local.batches(16, generator()))).view(2, 16)
    again = torch.cat(list(local.batches(16, generator()))).view(2, 16)
    assert torch.equal(batches, again)
    assert not torch.equal(batches[0], batches[1])
    assert batches[0].tolist() != list(range(16))


@pytest.mark.parametrize(("steps", "samples", "sizes"), [(2, 10, [4, 4]), (5, 6, [4, 2, 4, 2, 4]), (3, 1, [1, 1, 1])])
def test_steps_instead_of_epochs(steps, samples, sizes):
    """As many steps as asked for, over as many epochs as that takes."""
    local = LocalTraining(batch_size=4, steps=steps)
    assert [len(batch) for batch in local.batches(samples, generator())] == sizes


def test_merging_a_short_last_batch():
    """Only a last batch that is too short, and only where there is one before it."""
    assert [len(batch) for batch in merge_short(torch.arange(9).split(4), 2)] == [4, 5]
    assert [len(batch) for batch in merge_short(torch.arange(10).split(4), 2)] == [4, 4, 2]
    assert [len(batch) for batch in merge_short(torch.arange(1).split(4), 2)] == [1]
    assert torch.equal(torch.cat(merge_short(torch.arange(9).split(4), 2)), torch.arange(9))


def test_learning_rates_of_a_schedule():
    """MultiStepLR divides by ten at its milestones; without a schedule the rate is constant."""
    schedule = partial(MultiStepLR, milestones=[2, 4], gamma=0.1)
    rates = LocalTraining(optimizer=sgd(1.0), lr_schedule=schedule).learning_rates(6)
    assert rates == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])
    assert LocalTraining(optimizer=sgd(0.3)).learning_rates(3) == [0.3, 0.3, 0.3]


def test_a_run_uses_the_rate_of_every_round():
    """A schedule that all but switches off after the first round stops all learning there."""
    recorder = Recorder()
    schedule = partial(MultiStepLR, milestones=[1], gamma=1e-300)
    local = LocalTraining(batch_size=4, optimizer=sgd(0.5), lr_schedule=schedule)
    end = run(small_federation(local=local), rounds=3, callbacks=[recorder])
    assert not torch.equal(recorder.started[0], recorder.started[1])
    assert torch.equal(recorder.started[1], recorder.started[2])
    assert torch.equal(recorder.started[2], end)


COHORTS = ((0.5, 0.5), (0.25, 0.1))
"""Haldankar et al.'s cohorts A, B and C train with .1, .05 and .01."""


@pytest.mark.parametrize("executor", ["sequential", "threads", "vectorised"])
def test_every_width_has_a_learning_rate_of_its_own(executor):
    """One full-batch step of plain SGD moves a client by its learning rate times its gradient; the schedule goes on."""
    moved = {}
    for factors in ((), COHORTS):
        recorder = Recorder()
        schedule = partial(MultiStepLR, milestones=[1], gamma=1e-300)
        local = LocalTraining(batch_size=100, optimizer=sgd(0.1), lr_schedule=schedule, lr_factors=factors)
        capacities = [1.0, 0.5, 0.25, 0.25, 1.0]
        federation = small_federation(TINY_MLP, capacities=capacities, local=local, executor=executor)
        run(federation, Blobs((6, 6, 6, 6, 6)), rounds=2, callbacks=[recorder])
        moved[factors] = [vector - recorder.started[0][index] for _, vector, index in sorted(recorder.updates[:5])]
        assert torch.equal(recorder.started[1], federation.space.read(federation.net)), "the schedule has all but ended"
    for plain, scaled, factor in zip(moved[()], moved[COHORTS], (1.0, 0.5, 0.1, 0.1, 1.0), strict=True):
        torch.testing.assert_close(scaled, factor * plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("factors", "words"),
    [(((0.5, 0.0),), "float > 0"), (((0.125, 2.0),), "name one of 1, 0.5"), (((0.5, -1.0),), "float > 0")],
)
def test_factors_that_cannot_be_meant(factors, words):
    """Factors of 0 or less, and widths that no client has, are refused before any training."""
    local = LocalTraining(optimizer=sgd(0.1), lr_factors=factors)
    with pytest.raises(UserError, match=words):
        run(small_federation(TINY_MLP, capacities=[1.0, 0.5], local=local), Blobs((4, 4)))


OPTIMISERS = {
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": (Adam, {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True}),
    "adamw": (AdamW, {"lr": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fused_optimisers_change_only_the_speed(name):
    """Fused by default, plain where the user says so; the same result."""
    kind, options = OPTIMISERS[name]
    locals_ = [
        LocalTraining(batch_size=4, epochs=2, optimizer=partial(kind, **options, **more))
        for more in ({}, {"fused": False})
    ]
    flags = [
        local.build_optimizer([torch.nn.Parameter(torch.zeros(2))], 0.1).param_groups[0]["fused"] for local in locals_
    ]
    assert flags == [True, False]
    fused, plain = (run(small_federation(TINY_MLP, local=local), Blobs((5, 9))) for local in locals_)
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-12)


def test_the_round_sets_the_learning_rate():
    """Whatever the optimiser was given."""
    optimizer = LocalTraining(optimizer=sgd(0.5)).build_optimizer([torch.nn.Parameter(torch.zeros(2))], 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125]


def test_no_optimiser_state_is_carried_over():
    """Momentum starts at zero in every round: with one step per round it has no effect."""
    plain, heavy = (
        run(small_federation(local=LocalTraining(batch_size=100, optimizer=sgd(0.5, momentum=momentum))), rounds=3)
        for momentum in (0.0, 0.9)
    )
    torch.testing.assert_close(plain, heavy, rtol=0, atol=1e-14)


def test_clipping_bounds_the_step():
    """One step of plain SGD moves each client by at most lr * clip_norm, and by exactly that where it clips."""
    recorder = Recorder()
    local = LocalTraining(batch_size=100, optimizer=sgd(0.5), clip_norm=0.01)
    run(small_federation(local=local), rounds=1, callbacks=[recorder])
    for _, vector, _ in recorder.updates:
        assert float((vector - recorder.started[0]).norm()) == pytest.approx(0.005, rel=1e-3)


@pytest.mark.parametrize("channels_last", [True, False])
def test_memory_layout_does_not_matter(channels_last):
    """channels_last is a matter of speed."""
    nets = partial(CNN, u=4, norm="none")
    local = partial(LocalTraining, batch_size=4, optimizer=sgd(0.1))
    reference = run(small_federation(nets, local=local()), Blobs((5, 9), PICTURES))
    result = run(small_federation(nets, local=local(channels_last=channels_last)), Blobs((5, 9), PICTURES))
    torch.testing.assert_close(result, reference, rtol=0, atol=1e-12)


def test_without_shuffling_every_epoch_is_the_same():
    """Batches in the order of the samples, whatever the generator."""
    fixed = LocalTraining(batch_size=2, epochs=2, shuffle=False)
    batches = [batch.tolist() for batch in fixed.batches(5, torch.Generator().manual_seed(3))]
    assert batches == [[0, 1], [2, 3], [4]] * 2


@pytest.mark.parametrize("more", [{}, {"proximal": 0.5, "clip_norm": 0.2}], ids=["plain", "proximal and clipped"])
def test_a_trainer_of_its_own_trains_a_client(more):
    """It ends where the only client of a federation ends, which the server then takes over."""
    local = LocalTraining(batch_size=4, epochs=3, shuffle=False, optimizer=sgd(0.5, momentum=0.9), **more)
    federation = small_federation(TINY_MLP, local=local)
    start, end = initial(small_federation(TINY_MLP), Blobs((9,))), run(federation, Blobs((9,)), rounds=1)
    net = TINY_MLP(federation.data.shape).double()
    federation.space.write(net, start)
    client = ClientModule(net, local)
    samples = federation.data.store.batch(torch.as_tensor(federation.data.train_indices(0)), torch.float64)
    trainer = make_trainer(3, gradient_clip_val=local.clip_norm)
    trainer.fit(client, DataLoader(TensorDataset(*samples), batch_size=4))
    torch.testing.assert_close(federation.space.read(net), end, rtol=0, atol=1e-12)
    assert (end - start).abs().max() > 0.05
