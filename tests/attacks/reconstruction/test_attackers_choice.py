"""What an attacker shows without knowing the truth, and what could have been guessed."""

import pytest
import torch

from app.attacks.reconstruction.base import Candidates, Truth
from app.attacks.reconstruction.scoring import attackers_choice, guesses_without_updates
from app.metrics.image_similarity import CHUNK, pearson_matrix
from app.metrics.reconstruction import score_reconstruction

SHAPES = [(1, 8, 8), (3, 32, 32)]


def images(count, shape=(1, 8, 8), seed=0):
    """Noise between 0 and 1."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def truth_of(originals, labels):
    """All of client 0."""
    rows = torch.arange(len(originals))
    return Truth(originals, torch.tensor(labels), torch.zeros_like(rows), rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_surest_come_first(shape):
    """In the order of their confidence, which may be infinite, and no more than asked for."""
    candidates = Candidates(images(5, shape), torch.tensor([0.1, torch.inf, 3.0, -torch.inf, 2.0]))
    assert attackers_choice(candidates, 3).tolist() == [1, 2, 4]
    assert attackers_choice(candidates, 9).tolist() == [1, 2, 4, 0, 3]
    assert attackers_choice(candidates, 0).tolist() == []


def test_what_is_shown_already_is_passed_over():
    """Scaled and slightly noisy copies show the same; a negative does not."""
    first, second = images(1), images(1, seed=1)
    copies = [first, 0.3 * first + 2, first + 0.01 * second, 1 - first, second]
    candidates = Candidates(torch.cat(copies), torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]))
    assert attackers_choice(candidates, 5).tolist() == [0, 3, 4]
    assert attackers_choice(candidates, 2).tolist() == [0, 3]


def test_copies_are_compared_with_all_that_were_chosen():
    """Not only with the last one."""
    originals = images(3)
    candidates = Candidates(torch.cat([originals, originals[:2]]), torch.arange(5, 0, -1).float())
    assert attackers_choice(candidates, 5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", SHAPES)
def test_empty_and_flat_candidates(shape):
    """Nothing is chosen of nothing, and an image without contrast is never shown."""
    assert attackers_choice(Candidates(torch.zeros(0, *shape), torch.zeros(0)), 4).tolist() == []
    flat = torch.full((2, *shape), 0.1)
    flat[1, 0, 0, 0] = 0.2
    assert attackers_choice(Candidates(flat, torch.tensor([2.0, 1.0])), 2).tolist() == [1]


def test_equally_sure_ones_are_chosen_in_any_order():
    """The same images whatever their order, those with the strongest contrast first."""
    originals = images(CHUNK + 8) * torch.linspace(0.1, 1, CHUNK + 8).view(-1, 1, 1, 1)
    expected = originals[attackers_choice(Candidates(originals, torch.zeros(len(originals))), 5)]
    order = torch.randperm(len(originals), generator=torch.Generator().manual_seed(0))
    mixed = Candidates(originals[order], torch.zeros(len(originals)))
    assert torch.equal(mixed.images[attackers_choice(mixed, 5)], expected)
    contrast = expected.flatten(1).double().std(dim=1)
    assert contrast.tolist() == sorted(contrast.tolist(), reverse=True)


def test_the_choice_does_not_know_the_truth():
    """The best match finds the true images among the candidates; the attacker chooses by confidence alone."""
    originals = images(3)
    candidates = Candidates(torch.cat([images(3, seed=1), originals]), torch.arange(6, 0, -1).float())
    chosen = attackers_choice(candidates, 3)
    keys = [(0, row, 0) for row in range(3)]
    found = score_reconstruction(originals, keys, candidates.images, chosen, {})
    assert chosen.tolist() == [0, 1, 2]
    assert (found.oracle.recovered, found.blind.recovered) == (3, 0)


def test_means_as_guesses():
    """The batch mean once per image, the class mean of the attacker's images for each, others up to the count."""
    truth = truth_of(images(3), [1, 0, 1])
    others, labels = images(6, seed=1), torch.tensor([0, 0, 1, 1, 1, 2])
    nulls = guesses_without_updates(truth, others, labels, 4)
    assert list(nulls) == ["batch mean", "class mean", "best of 4 others"]
    assert torch.allclose(nulls["batch mean"], truth.images.mean(dim=0).expand(3, -1, -1, -1))
    ones, zeros = others[2:5].mean(dim=0), others[:2].mean(dim=0)
    assert torch.allclose(nulls["class mean"], torch.stack([ones, zeros, ones]))
    assert torch.equal(nulls["best of 4 others"], others[:4])
    assert "best of 6 others" in guesses_without_updates(truth, others, labels, 1000)


def test_what_cannot_be_guessed_is_left_out():
    """Without images of one's own, without candidates, and for a single image, which would be its own mean."""
    truth, nothing = truth_of(images(2), [0, 1]), torch.zeros(0, 1, 8, 8)
    assert list(guesses_without_updates(truth, nothing, torch.zeros(0), 5)) == ["batch mean"]
    assert list(guesses_without_updates(truth_of(images(1), [0]), nothing, torch.zeros(0), 5)) == []
    assert list(guesses_without_updates(truth, images(4), torch.zeros(4), 0)) == ["batch mean", "class mean"]


def test_a_class_the_attacker_does_not_have():
    """Its mean is that of all the attacker's images."""
    others = images(4, seed=1)
    nulls = guesses_without_updates(truth_of(images(2), [7, 0]), others, torch.tensor([0, 0, 1, 1]), 4)
    assert torch.allclose(nulls["class mean"], torch.stack([others.mean(dim=0), others[:2].mean(dim=0)]))


def test_the_batch_mean_of_like_images_is_a_strong_null():
    """Images that share most of what they show correlate with their mean: only what exceeds it is leakage."""
    shared = images(1)
    truth = truth_of(0.8 * shared + 0.2 * images(6, seed=1), [0] * 6)
    nulls = guesses_without_updates(truth, torch.zeros(0, 1, 8, 8), torch.zeros(0), 0)
    found = score_reconstruction(truth.images, [(0, row, 0) for row in range(6)], shared, torch.tensor([0]), nulls)
    assert found.strongest_null.name == "batch mean"
    assert found.strongest_null.similarity.pearson_mean > 0.95
    assert found.beats_guessing is False
    own = pearson_matrix(truth.images, nulls["batch mean"][:1]).mean().item()
    assert found.strongest_null.similarity.pearson_mean == pytest.approx(own)
