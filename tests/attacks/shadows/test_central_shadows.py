"""Centrally trained shadows: the recipe of the clients, shared and kept."""

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
import torch
from torch.optim import SGD

from app.attacks.models import AttackedModel, Snapshot
from app.attacks.shadows import cache, shadow_store
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob, initial_vector, train_centrally
from app.attacks.shadows.shadow_store import CentralShadows
from app.common.errors import UserError
from app.common.seeding import derive_key, torch_generator
from app.federation.local_training import LocalTraining
from app.federation.parameters import FlatNet, ParameterSpace

ROUNDS = (1, 2)


@pytest.fixture(scope="module")
def knowledge(toy):
    """The toy's data with a short recipe."""
    local = LocalTraining(epochs=1, batch_size=50, optimizer=partial(SGD, lr=0.1))
    return replace(toy.knowledge, local=local, learning_rates=(0.1, 0.05))


def target(client=0, size=100, rate=1.0, rounds=ROUNDS):
    """What shadows are made for."""
    return AttackedModel("t", client, size, tuple(Snapshot(round_, rate, torch.zeros(1)) for round_ in rounds))


AUDITED = {0: np.arange(100), 1: np.arange(100, 200), 2: np.arange(200, 400)}


@pytest.fixture
def no_training(monkeypatch):
    """From here on, nothing is trained any more."""

    def forbid():
        def refuse(*_):
            raise AssertionError("a shadow is trained again")

        monkeypatch.setattr(shadow_store, "train_centrally", refuse)

    return forbid


def test_training_is_the_plain_loop(knowledge):
    """Two rounds of one epoch equal SGD written by hand, learning rates of the rounds included."""
    samples = np.arange(400, 520)
    (snapshots,) = train_centrally(knowledge, [ShadowJob(3, 1.0, samples, 9)], ROUNDS, workers=1)
    net = knowledge.prototype.scaled(1.0)
    flat = FlatNet(ParameterSpace(net), net)
    flat.write(initial_vector(knowledge, 1.0, derive_key(9, "initialisation", 3)))
    for round_, lr in enumerate((0.1, 0.05)):
        order = torch.randperm(120, generator=torch_generator(9, "batches", round_, 3))
        for batch in order.split(50):
            images, labels = knowledge.store.batch(torch.from_numpy(samples)[batch])
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= lr * gradient
        assert torch.allclose(snapshots[round_].vector, flat.read(), atol=1e-5)
    assert [snapshot.round for snapshot in snapshots] == [1, 2]


def test_shadows_train_at_the_rate_of_their_width(knowledge):
    """Half the learning rate for a width is half of every round's rate; other widths are as before, also on disk."""
    slowed = replace(knowledge, local=replace(knowledge.local, lr_factors=((0.5, 0.5),)))
    halved = replace(knowledge, learning_rates=(0.05, 0.025))
    keys = []
    for rate, same in ((0.5, halved), (1.0, knowledge)):
        job = ShadowJob(3, rate, np.arange(400, 520), 9)
        (one,), (other,) = (train_centrally(each, [job], ROUNDS, workers=1) for each in (slowed, same))
        assert torch.equal(one[-1].vector, other[-1].vector)
        keys.append([ShadowCache(None).key(each, job, ROUNDS) for each in (slowed, knowledge)])
    assert keys[0][0] != keys[0][1]
    assert keys[1][0] == keys[1][1]


def test_models_do_not_depend_on_their_company(knowledge):
    """One model alone equals the same one among others."""
    jobs = [ShadowJob(number, 1.0, np.arange(400, 500), 5) for number in range(3)]
    together = train_centrally(knowledge, jobs, ROUNDS)
    (alone,) = train_centrally(knowledge, jobs[1:2], ROUNDS)
    assert torch.allclose(together[1][-1].vector, alone[-1].vector, atol=1e-5)
    assert not torch.allclose(together[0][-1].vector, together[1][-1].vector, atol=1e-3)


def test_clients_of_one_size_share_their_shadows(knowledge, no_training):
    """Trained for client 0, used for client 1; a larger client gets others."""
    source = CentralShadows(knowledge, AUDITED, count=2)
    first = source.shadows(target(0), "out").shadows
    no_training()
    second = source.shadows(target(1, size=101), "out").shadows
    assert [shadow.model.key for shadow in first] == [shadow.model.key for shadow in second]
    with pytest.raises(AssertionError, match="trained again"):
        source.shadows(target(2, size=200), "out")


def test_the_first_few_are_the_same_as_those_of_all(knowledge):
    """Asking for one and then for all trains the first one once."""
    source = CentralShadows(knowledge, AUDITED, count=4)
    (first,) = source.shadows(target(), "out", first=1).shadows
    every = source.shadows(target(), "out").shadows
    assert len(every) == 4
    assert every[0] is first


def test_targets_are_prepared_together(knowledge, monkeypatch):
    """One training for the shadows of all targets, which are those that each target gets alone."""
    targets, calls = [target(0), target(1, rate=0.5), target(2, size=200), target(2, size=200, rounds=(2,))], []
    alone = CentralShadows(knowledge, AUDITED, count=2)
    expected = [alone.shadows(one, "in-out").shadows for one in targets]
    monkeypatch.setattr(shadow_store, "train_centrally", lambda *given: calls.append(given) or train_centrally(*given))
    source = CentralShadows(knowledge, AUDITED, count=2)
    source.prepare(targets, "in-out")
    assert [(len(jobs), rounds) for _, jobs, rounds in calls] == [(6, ROUNDS), (2, (2,))]
    for one, shadows in zip(targets, expected, strict=True):
        for made, right in zip(source.shadows(one, "in-out").shadows, shadows, strict=True):
            assert made.model.key == right.model.key
            assert made.model.client == one.client
            assert np.array_equal(made.members, right.members)
            assert torch.allclose(made.model.last.vector, right.model.last.vector, atol=1e-5)
    assert len(calls) == 2


def test_runs_that_share_some_targets_do_not_wait_for_each_other_for_ever(knowledge, tmp_path):
    """Two that prepare the same targets in opposite orders, again and again."""
    targets = [target(0), target(1), target(2, size=200)]

    def prepared(number):
        source = CentralShadows(replace(knowledge, seed=number // 2), AUDITED, 2, tmp_path)
        source.prepare(targets if number % 2 else targets[::-1], "in-out")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(prepared, number) for number in range(8)]:
            done.result(120)
    assert not list(tmp_path.glob("*.lock"))


def test_out_shadows_know_nothing_of_audited_samples(knowledge):
    """In-out shadows know half of the audited ones, and none of the other clients'."""
    source = CentralShadows(knowledge, AUDITED, count=2)
    for shadow in source.shadows(target(), "out").shadows:
        assert np.isin(shadow.members, knowledge.auxiliary).all()
    for shadow in source.shadows(target(), "in-out").shadows:
        assert shadow.trained_on(AUDITED[0]).sum() == 50
        assert not shadow.trained_on(AUDITED[1]).any()
        assert len(shadow.members) == 100


def test_kept_on_disk(knowledge, tmp_path, no_training):
    """Another process finds them, with the same values."""
    before = CentralShadows(knowledge, AUDITED, 2, tmp_path).shadows(target(), "in-out").shadows
    no_training()
    after = CentralShadows(knowledge, AUDITED, 2, tmp_path).shadows(target(), "in-out").shadows
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.model.last.vector, new.model.last.vector)
        assert new.model.rounds == ROUNDS


def test_a_damaged_file_is_trained_again(knowledge, tmp_path):
    """Cut short, it is replaced by the same shadow."""
    before = CentralShadows(knowledge, AUDITED, 2, tmp_path).shadows(target(), "out").shadows
    for path in tmp_path.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    after = CentralShadows(knowledge, AUDITED, 2, tmp_path).shadows(target(), "out").shadows
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.model.last.vector, new.model.last.vector)
    assert not list(tmp_path.glob("*.part"))


def counted(knowledge):
    """The same knowledge of a run of its own, with its own counts."""
    return replace(knowledge, shadow_counts=Counter())


def test_runs_at_the_same_time_train_a_shadow_once(knowledge, tmp_path, monkeypatch):
    """The second waits for the first, and takes its shadows."""
    began, asked, runs = Event(), [], [counted(knowledge) for _ in range(2)]

    def slow(*given):
        began.set()
        asked.append(len(given[1]))
        while not any(tmp_path.glob("*.waits")):
            pass
        return train_centrally(*given)

    monkeypatch.setattr(shadow_store, "train_centrally", slow)
    monkeypatch.setattr(cache, "Step", lambda *_, **__: (tmp_path / "second.waits").touch() or nullcontext())

    def shadows(run):
        return CentralShadows(run, AUDITED, 2, tmp_path).shadows(target(), "out").shadows

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shadows, runs[0])
        assert began.wait(60)
        second = pool.submit(shadows, runs[1])
        found = first.result(60), second.result(60)
    assert asked == [2]
    assert [dict(run.shadow_counts) for run in runs] == [{"trained": 2, "reused": 0}, {"trained": 0, "reused": 2}]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.model.last.vector, other.model.last.vector)
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_that_was_killed_keeps_nobody_waiting(knowledge, tmp_path):
    """The lock of a dead process is free; what it had finished is used, the rest trained."""
    before = CentralShadows(counted(knowledge), AUDITED, 2, tmp_path).shadows(target(), "out").shadows
    next(tmp_path.glob("*.npz")).unlink()
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        keys = [shadow.model.key for shadow in before]
        with ShadowCache(tmp_path).turn([keys]):
            os.write(theirs, b"!")
            signal.pause()
    assert os.read(ours, 1) == b"!"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    again = counted(knowledge)
    after = CentralShadows(again, AUDITED, 2, tmp_path).shadows(target(), "out").shadows
    assert again.shadow_counts == {"trained": 1, "reused": 1}
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one.model.last.vector, other.model.last.vector)


def test_the_hash_covers_what_a_shadow_depends_on(knowledge):
    """Recipe, data, width, rounds and seed; but not the device or the number of shadows."""
    job = ShadowJob(0, 1.0, np.arange(400, 500), 0)
    images = knowledge.store.images.clone()
    images[450] += 1
    noisy = replace(knowledge.store, images=images)
    labels = knowledge.store.labels.clone()
    labels[450] = (labels[450] + 1) % 10
    others = [
        replace(knowledge, local=replace(knowledge.local, epochs=2)),
        replace(knowledge, local=replace(knowledge.local, shuffle=False)),
        replace(knowledge, local=replace(knowledge.local, optimizer=partial(SGD, lr=0.1, momentum=0.5))),
        replace(knowledge, learning_rates=(0.1, 0.06)),
        replace(knowledge, store=noisy),
        replace(knowledge, store=replace(knowledge.store, labels=labels)),
        replace(knowledge, prototype=type(knowledge.prototype)(knowledge.store.shape, hidden=(32,))),
        replace(knowledge, prototype=with_settings(knowledge.prototype, uniform=0.1)),
        replace(knowledge, seed=1),
    ]
    key = ShadowCache(None).key(knowledge, job, ROUNDS)
    assert ShadowCache(None).key(replace(knowledge), job, ROUNDS) == key
    keys = {key, *(ShadowCache(None).key(other, job, ROUNDS) for other in others)}
    keys |= {ShadowCache(None).key(knowledge, replace(job, **change), ROUNDS) for change in CHANGES}
    keys |= {ShadowCache(None).key(knowledge, job, (2,))}
    assert len(keys) == 1 + len(others) + len(CHANGES) + 1


def with_settings(net, **settings):
    """A network whose layers look alike, with other settings."""
    return type(net)(**{**net.hparams, **settings})


CHANGES = ({"rate": 0.5}, {"number": 1}, {"samples": np.arange(401, 501)}, {"seed": 1})


def test_no_data_for_shadows(knowledge):
    """Refused with the remedy."""
    poor = replace(knowledge, auxiliary=np.arange(2))
    with pytest.raises(UserError, match=r"--data\.holdout\.shadow"):
        CentralShadows(poor, AUDITED, 2).shadows(target(), "out")


def test_remarks_on_stand_ins(knowledge):
    """Always that they are stand-ins; also that they have less data than their target, where they have."""
    source = CentralShadows(knowledge, AUDITED, count=2)
    assert len(source.shadows(target(), "out").notes) == 1
    assert "want of data" in source.shadows(target(size=5000), "out").notes[1]
