"""What all attacks with a network share: seeded fitting, balanced examples, held-out rows, reuse of results."""

from functools import partial

import numpy as np
import pytest
import torch
from attack_kit import (
    area,
    counted,
)
from torch.optim import Adam

from app.attacks.membership import attack_net
from app.attacks.membership.attack_net import ResultCache, Standardise, balanced, dense, fit, hold_out, predict
from app.attacks.models import Shadow
from app.common.errors import UserError
from app.common.files import npz_bytes


def trained(features, targets, seed=0, epochs=20, **settings):
    """A small network that was fitted."""
    made = {"batch_size": 32, "optimizer": partial(Adam, lr=1e-2), "loss": "bce"} | settings
    return fit(lambda: dense(features.shape[1], 8, 1), [features], targets, epochs=epochs, seed=seed, **made)


def two_heaps(rows=200, apart=1.0):
    """Features that differ by the class in their first column."""
    targets = torch.arange(rows) % 2
    features = torch.randn(rows, 5, generator=torch.Generator().manual_seed(1))
    features[:, 0] += apart * (2 * targets - 1)
    return features, targets


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_fitting_learns_with_either_loss(loss):
    """Members get the higher logits."""
    features, targets = two_heaps()
    net = trained(features, targets.bool(), loss=loss)
    assert area(predict(net, [features]), targets.bool().numpy()) > 0.85


def test_scores_are_logits_without_ties():
    """A probability would round to 1 for the surest members."""
    features, targets = two_heaps(apart=30.0)
    scores = predict(trained(features, targets, optimizer=partial(Adam, lr=0.3)), [features])
    assert scores.dtype == np.float64
    assert len(np.unique(scores)) == len(scores)
    assert len(torch.from_numpy(scores).float().sigmoid().unique()) < len(scores)


def test_held_out_rows_choose_the_epoch_and_are_not_trained_on():
    """What the network learns does not depend on their features, only when it stops does."""
    features, targets = two_heaps(60)
    held_out = hold_out([60], 0)
    assert held_out.sum() == 12
    other = torch.where(held_out[:, None], torch.zeros_like(features), features)
    shown = features[~held_out][:, :5]
    one = [predict(trained(given, targets, epochs=1, held_out=held_out), [shown]) for given in (features, other)]
    assert np.array_equal(*one)
    wrong = torch.where(held_out, 1 - targets, targets)  # every epoch makes it worse, so the first counts
    stopped = trained(features, wrong, epochs=40, held_out=held_out, patience=3)
    first = trained(features, wrong, epochs=1, held_out=held_out)
    assert np.array_equal(predict(stopped, [shown]), predict(first, [shown]))


def test_patience_ends_training(monkeypatch):
    """After so many epochs without progress nothing more is computed."""
    epochs = counted(monkeypatch, attack_net, "outputs")
    features, targets = two_heaps(60)
    held_out = hold_out([60], 0)
    trained(features, torch.where(held_out, 1 - targets, targets), epochs=40, held_out=held_out, patience=3)
    assert len(epochs) == 4


CHANGES = {
    "features": lambda features, targets: {"features": features + 1e-6},
    "targets": lambda features, targets: {"targets": 1 - targets},
    "seed": lambda features, targets: {"seed": 1},
    "epochs": lambda features, targets: {"epochs": 19},
    "loss": lambda features, targets: {"loss": "mse"},
    "learning rate": lambda features, targets: {"optimizer": partial(Adam, lr=2e-2)},
    "batches": lambda features, targets: {"batch_size": 16},
    "held out": lambda features, targets: {"held_out": hold_out([200], 0)},
}
"""What a network depends on, each changed alone."""


def test_a_kept_network_is_not_trained_again(monkeypatch, tmp_path):
    """It gives the same scores, bit for bit, without a single step; whatever it depends on leads to another one."""
    steps = counted(monkeypatch, attack_net, "_error")
    features, targets = two_heaps()
    first = trained(features, targets, cache=tmp_path)
    done = len(steps)
    again = trained(features, targets, cache=tmp_path)
    assert len(steps) == done
    assert np.array_equal(predict(first, [features]), predict(again, [features]))
    assert np.array_equal(predict(first, [features]), predict(trained(features, targets), [features]))
    for name, change in CHANGES.items():
        before = len(steps)
        trained(**{"features": features, "targets": targets, **change(features, targets)}, cache=tmp_path)
        assert len(steps) > before, name
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("content", [b"", b"no archive", "other", "last layer of another"])
def test_a_broken_file_of_a_network_is_replaced(tmp_path, content):
    """Cut short, or holding another network: it is trained again, and found the next time."""
    features, targets = two_heaps()
    right = trained(features, targets, cache=tmp_path)
    (file,) = tmp_path.glob("network-*.npz")
    whole = file.read_bytes()
    if content == "other":
        content = npz_bytes({"0.weight": np.zeros((2, 2))})
    elif content == "last layer of another":
        values = {name: np.zeros_like(value) for name, value in right.state_dict().items()}
        content = npz_bytes({**values, "2.weight": np.zeros((2, 2))})
    file.write_bytes(content)
    again = trained(features, targets, cache=tmp_path)
    assert np.array_equal(predict(right, [features]), predict(again, [features]))
    assert file.read_bytes() == whole


def test_threads_are_given_back():
    """Small networks are trained on one thread, whatever happens."""
    threads, seen = torch.get_num_threads(), []
    features, targets = two_heaps(20)

    def optimizer(parameters):
        made = Adam(parameters)
        made.register_step_post_hook(lambda *_: seen.append(torch.get_num_threads()) or 1 / 0)
        return made

    with pytest.raises(ZeroDivisionError):
        trained(features, targets, optimizer=optimizer)
    assert seen == [1]
    assert torch.get_num_threads() == threads


def test_a_whole_model_is_held_out_where_there_are_three():
    """The last of three models, a random fifth of fewer."""
    assert hold_out([4, 5, 6], 0).tolist() == [False] * 9 + [True] * 6
    assert hold_out([40, 60], 0).sum() == 20
    assert not torch.equal(hold_out([40, 60], 0), hold_out([40, 60], 1))


def test_diverged_features_are_refused():
    """One row that is not finite would spoil the whole network."""
    features, targets = two_heaps(20)
    features[3, 1] = torch.inf
    with pytest.raises(UserError, match="not finite in the attack network's training set: 1 row"):
        trained(features, targets)


def test_constant_features_are_only_centred():
    """Rounding errors are not blown up, and the others get mean 0 and deviation 1."""
    features = torch.tensor([[0.1, 0.0, 5.0], [0.1, 0.0, 7.0]])
    assert Standardise(features)(features).tolist() == [[0, 0, -1], [0, 0, 1]]
    assert Standardise(features)(features + 1)[0].tolist() == pytest.approx([1, 1, -0.0])


def test_examples_are_balanced_and_drawn_from_both_sides():
    """Half members, no more than asked for, another draw for another model."""
    model = Shadow(None, np.arange(30), np.arange(100, 110))
    known = balanced(model, 100, seed=0, number=0)
    assert len(known) == 20
    assert set(known[:10]) < set(range(30))
    assert set(known[10:]) == set(range(100, 110))
    assert len(balanced(model, 9, seed=0, number=0)) == 8
    assert not np.array_equal(known, balanced(model, 100, seed=0, number=1))
    with pytest.raises(UserError, match="0 members and 10 non-members"):
        balanced(Shadow(None, np.arange(0), np.arange(10)), 100, seed=0, number=0)


def test_members_are_the_first_half_of_every_models_examples(monkeypatch):
    """Two models of different size: the truth follows the order of the draw."""
    given = counted(monkeypatch, attack_net, "fit")
    models = [Shadow(number, np.arange(30), np.arange(100, 100 + size)) for number, size in enumerate((10, 4))]
    settings = {"epochs": 1, "batch_size": 8, "optimizer": partial(Adam, lr=1e-2), "loss": "bce"}
    observe = lambda model, samples: [torch.from_numpy(samples[:, None]).float()]  # noqa: E731
    attack_net.train_on(models, observe, lambda features: dense(1, 1), 100, None, 0, **settings)
    ((_, (samples,), truth),) = given
    assert truth.tolist() == [1.0] * 10 + [0.0] * 10 + [1.0] * 4 + [0.0] * 4
    assert torch.equal(truth == 1, samples[:, 0] < 30)


def test_results_are_kept_while_they_fit():
    """The one that was not used for longest goes first."""
    made = []
    kept = ResultCache(len, most=5)
    for key in ("aa", "bb", "aa", "cc", "aa", "bb", "ffffffff", "ffffffff"):
        assert kept.get(key, lambda key=key: made.append(key) or key) == key
    assert made == ["aa", "bb", "cc", "bb", "ffffffff"]
