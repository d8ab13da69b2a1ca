"""Scores of reconstructions: known answers, one candidate for one image, and no dependence on any order."""

import math
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d

from app.metrics import image_similarity
from app.metrics.image_similarity import HIGHEST_PSNR, pearson_matrix, psnr, psnr_matrix, ssim
from app.metrics.intervals import wilson
from app.metrics.reconstruction import (
    RECOVERED,
    UNMATCHED,
    Similarity,
    legacy_scores,
    matched_images,
    score_reconstruction,
)

SHAPES = [(1, 8, 8), (3, 32, 32)]
NOBODY = torch.zeros(0, dtype=torch.int64)


def images(count, shape=(1, 8, 8), seed=0):
    """Noise between 0 and 1."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def keys_of(truth, client=0):
    """Every image is a sample of its own of one client."""
    return [(client, 10 * row, row % 2) for row in range(len(truth))]


def scored(truth, candidates, chosen=None, nulls=None):
    """Scores with every candidate shown, and no nulls, unless told otherwise."""
    shown = torch.arange(len(candidates)) if chosen is None else chosen
    return score_reconstruction(truth, keys_of(truth), candidates, shown, nulls or {})


def strip(*values):
    """One image of one row."""
    return torch.tensor([[[list(values)]]], dtype=torch.float64)


def test_pearson_by_hand():
    """(1, 2, 3) and (1, 2, 4) correlate with 9 / sqrt(84); a scaled and shifted copy with 1, the negative with -1."""
    truth = strip(1, 2, 3)
    candidates = torch.cat([strip(1, 2, 4), strip(5, 7, 9), strip(3, 2, 1)])
    assert pearson_matrix(truth, candidates)[0].tolist() == pytest.approx([9 / math.sqrt(84), 1, -1], abs=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_pearson_is_that_of_numpy(shape):
    """Over all pixels and channels, in float64, with chunks that do not divide the number of candidates."""
    truth, candidates = images(3, shape), images(image_similarity.CHUNK + 7, shape, seed=1) - 0.5
    result = pearson_matrix(truth, candidates)
    both = torch.cat([truth, candidates]).flatten(1).double().numpy()
    assert result.dtype == torch.float64
    assert np.allclose(result.numpy(), np.corrcoef(both)[:3, 3:], atol=1e-12)


@pytest.mark.parametrize("grey", [0.0, 0.1, 1 / 3, -7.3, 1e30])
def test_a_constant_image_correlates_with_nothing(grey):
    """Exactly 0 on either side, not rounding noise and not NaN."""
    flat = torch.full((1, 1, 8, 8), grey, dtype=torch.float64)
    assert pearson_matrix(images(2), flat).tolist() == [[0.0], [0.0]]
    assert pearson_matrix(flat, images(2)).tolist() == [[0.0, 0.0]]


def test_huge_values_have_a_correlation():
    """Squares of such values are infinite."""
    truth = images(1).double()
    assert pearson_matrix(truth, truth * 1e200).item() == pytest.approx(1)


def test_psnr_by_hand():
    """An error of 0.1 everywhere is 20 dB, of 1 is 0 dB; equal images have the cap; both forms agree."""
    truth = images(1).double()
    candidates = torch.cat([truth + 0.1, truth + 1, truth, truth - 0.01])
    expected = [20, 0, HIGHEST_PSNR, 40]
    assert psnr(truth.expand(4, -1, -1, -1), candidates).tolist() == pytest.approx(expected)
    assert psnr_matrix(truth, candidates)[0].tolist() == pytest.approx(expected)


def test_psnr_tells_tiny_errors_apart():
    """Errors of 1e-9 are 180 dB, which products of pixel values cannot resolve."""
    truth = images(1, (3, 32, 32)).double()
    assert psnr_matrix(truth, truth + 1e-9).item() == pytest.approx(180, abs=0.01)


def reference_ssim(first, second, window):
    """SSIM of two images of one channel: Gaussian window, mirrored edges, constants of data range 1."""
    places = np.arange(window) - window // 2
    weights = np.exp(-(places**2) / 2 / (1.5 * window / 11) ** 2)
    weights /= weights.sum()

    def smooth(values):
        return correlate1d(correlate1d(values, weights, axis=0, mode="mirror"), weights, axis=1, mode="mirror")

    means = smooth(first), smooth(second)
    variances = smooth(first**2) - means[0] ** 2, smooth(second**2) - means[1] ** 2
    shared = smooth(first * second) - means[0] * means[1]
    bright = (2 * means[0] * means[1] + 1e-4) / (means[0] ** 2 + means[1] ** 2 + 1e-4)
    return (bright * (2 * shared + 9e-4) / (sum(variances) + 9e-4)).mean()


@pytest.mark.parametrize(("side", "window"), [(8, 5), (28, 11), (32, 11), (5, 3), (2, 1)])
def test_ssim_windows(side, window):
    """The window is smaller in small images, and the values are those of the formula."""
    first, second = images(2, (1, side, side)).double(), images(2, (1, side, side), seed=1).double()
    expected = [reference_ssim(*(part[row, 0].numpy() for part in (first, second)), window) for row in range(2)]
    assert ssim(first, second).tolist() == pytest.approx(expected, abs=1e-9)
    assert ssim(first, first).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_candidates_recover_all(shape):
    """n images and n exact candidates in another order: all recovered, with Wilson's interval, each at its place."""
    truth, order = images(6, shape), torch.tensor([3, 0, 5, 1, 4, 2])
    result = scored(truth, truth[order])
    assert (result.oracle.recovered, result.oracle.of, result.candidates) == (6, 6, 6)
    assert result.oracle.recovered_share.value == 1
    assert result.oracle.recovered_share.interval == wilson(6, 6)
    assert result.oracle.pearson_mean == pytest.approx(1)
    assert result.oracle.psnr_mean == result.oracle.psnr_best == HIGHEST_PSNR
    assert result.oracle.ssim_mean == pytest.approx(1)
    assert result.blind == result.oracle
    assert [order[score.candidate].item() for score in result.per_image] == [*range(6)]
    assert [(score.client, score.sample, score.label) for score in result.per_image] == keys_of(truth)
    assert torch.equal(matched_images(truth[order], result.per_image), truth)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_candidates(shape):
    """Correlation 0, SSIM 0, PSNR of mid-grey, nothing recovered, and an image that is nan."""
    truth = images(3, shape)
    result = scored(truth, truth[:0])
    grey = psnr(truth, torch.full_like(truth, 0.5))
    assert result.oracle == result.blind
    assert (result.oracle.pearson_mean, result.oracle.ssim_best, result.oracle.recovered) == (0, 0, 0)
    assert result.oracle.psnr_mean == pytest.approx(grey.mean().item())
    assert result.oracle.psnr_best == pytest.approx(grey.max().item())
    assert {score.candidate for score in result.per_image} == {UNMATCHED}
    assert matched_images(truth[:0], result.per_image).isnan().all()
    assert matched_images(truth[:0], result.per_image).shape == truth.shape
    legacy = legacy_scores(truth, truth[:0])
    assert math.isnan(legacy.pearson)
    assert math.isnan(legacy.psnr)
    assert legacy.recovered == 0


def test_one_candidate_cannot_serve_two_images():
    """Two like images and one candidate: one is recovered, the other has nothing; published scoring counts both."""
    truth = torch.cat([images(1), images(1) * 0.9 + 0.05])
    result = scored(truth, truth[:1])
    assert result.oracle.recovered == 1
    assert sorted(score.candidate for score in result.per_image) == [UNMATCHED, 0]
    assert legacy_scores(truth, truth[:1]).recovered == 2
    assert result.oracle.pearson_mean == pytest.approx(0.5, abs=1e-6)


def test_the_sum_of_correlations_is_largest():
    """Among all assignments, tried one by one; giving the best pair first would be worse."""
    noise, truth = images(4, seed=3), images(3)
    common = truth.mean(dim=0, keepdim=True)
    candidates = torch.cat([common, 0.7 * truth[:2] + 0.5 * noise[:2], noise[2:]])
    pearson = pearson_matrix(truth, candidates)
    places = torch.cartesian_prod(*[torch.arange(5)] * 3)
    apart = [row for row in places if len(row.unique()) == 3]
    best = max(pearson[torch.arange(3), row].clamp_min(0).sum().item() for row in apart)
    assert 3 * scored(truth, candidates).oracle.pearson_mean == pytest.approx(best, abs=1e-8)


def test_a_further_candidate_never_lowers_the_sum():
    """A negative of the image is not taken, so that the mean cannot fall below that of no candidate."""
    truth = images(1)
    assert scored(truth, 1 - truth).oracle.pearson_mean == 0
    assert scored(truth, 1 - truth).per_image[0].candidate == UNMATCHED
    candidates = images(12, seed=5)
    means = [scored(images(4), candidates[:many]).oracle.pearson_mean for many in range(13)]
    assert all(after >= before - 1e-9 for before, after in pairwise(means))
    assert means[-1] > means[1] > 0


def test_no_score_depends_on_the_order_of_candidates():
    """Not even where correlations are equal: of scaled copies, the one with the higher PSNR counts."""
    truth = images(4)
    candidates = torch.cat([0.5 * truth, 0.25 * truth, truth, images(5, seed=9)])
    result = scored(truth, candidates, NOBODY)
    assert result.oracle.psnr_mean == HIGHEST_PSNR
    for seed in range(5):
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
        reordered = scored(truth, candidates[order], NOBODY).oracle
        assert asdict(reordered) == pytest.approx(asdict(result.oracle), rel=1e-12)  # products differ in the last bit


def test_no_score_depends_on_the_order_of_images():
    """Clients may come in any order; every image keeps its own scores."""
    truth, candidates = images(5), images(5) * 0.6 + 0.4 * images(5, seed=2)
    keys, order = keys_of(truth), torch.tensor([4, 2, 0, 3, 1])
    result = score_reconstruction(truth, keys, candidates, torch.arange(5), {"other": images(9, seed=4)})
    mixed = score_reconstruction(
        truth[order], [keys[row] for row in order], candidates, torch.arange(5), {"other": images(9, seed=4)}
    )
    assert (mixed.oracle, mixed.blind, mixed.nulls) == (result.oracle, result.blind, result.nulls)
    assert mixed.per_image == tuple(result.per_image[row] for row in order)


def test_means_are_equal_bit_for_bit_in_any_order():
    """Sums of floats would differ in their last digits."""
    truth = images(40)
    scores = scored(truth, 0.6 * truth + 0.4 * images(40, seed=2)).per_image
    means = {Similarity.over(np.random.default_rng(seed).permutation(np.array(scores))) for seed in range(20)}
    assert means == {Similarity.over(scores)}


def test_images_of_another_client_are_not_found():
    """Perfect reconstructions of one client say nothing of another one's images."""
    truth, other = images(5, (3, 32, 32)), images(5, (3, 32, 32), seed=1)
    result = scored(truth, other)
    assert result.oracle.recovered == 0
    assert result.oracle.pearson_best < 0.2
    assert scored(other, other).oracle.recovered == 5


def test_blind_counts_only_what_is_shown():
    """At most as many as there are images, the first ones; the others exist for the oracle alone."""
    truth = images(3)
    candidates = torch.cat([images(4, seed=1), truth])
    result = scored(truth, candidates, torch.tensor([4, 0, 1, 5, 6]))
    assert (result.oracle.recovered, result.blind.recovered) == (3, 1)
    assert result.blind == scored(truth, candidates[[4, 0, 1]]).oracle


def test_psnr_and_ssim_are_those_of_cut_images():
    """Correlation sees raw values: a bright spot outside the scale spoils it, and is cut for the other two."""
    truth = torch.zeros(1, 1, 8, 8)
    truth[..., 4:] = 1
    loud = truth.clone()
    loud[0, 0, 0, 7], loud[0, 0, 1, 0] = 40, -40
    [score] = scored(truth, loud).per_image
    assert (score.psnr, score.ssim) == (HIGHEST_PSNR, pytest.approx(1))
    assert score.pearson < 0.5
    assert torch.equal(matched_images(loud, [score]), truth)
    assert legacy_scores(truth, loud).psnr < 0


def test_recovered_starts_at_the_threshold():
    """An image just above counts, one just below does not."""
    truth, noise = images(1, (3, 32, 32)), images(1, (3, 32, 32), seed=1)
    shares = torch.linspace(0, 0.5, 50)
    candidates = [truth * (1 - share) + noise * share for share in shares]
    for candidate in candidates:
        result = scored(truth, candidate)
        assert result.oracle.recovered == (result.oracle.pearson_best >= RECOVERED)
    assert scored(truth, candidates[0]).oracle.recovered == 1
    assert scored(truth, candidates[-1]).oracle.recovered == 0


def test_published_scores_are_at_least_the_corrected_ones():
    """Each maximum is taken alone: correlation and PSNR may come from different candidates."""
    truth = images(4)
    candidates = torch.cat([truth[:1] * 3 + 1, truth[1:2] * 0.5 + images(1, seed=8) * 0.5, images(6, seed=7)])
    legacy, result = legacy_scores(truth, candidates), scored(truth, candidates)
    assert legacy.pearson >= result.oracle.pearson_best
    assert legacy.recovered >= result.oracle.recovered
    assert legacy.pearson == pearson_matrix(truth, candidates).max()
    assert legacy.psnr == psnr_matrix(truth, candidates).max()
    assert legacy.psnr != psnr_matrix(truth, candidates)[0, 0]


def test_best_of_more_others_is_a_stronger_null():
    """And the strongest null is the one that an attack has to exceed."""
    truth, others = images(3), images(400, seed=1)
    nulls = {f"best of {many}": others[:many] for many in (3, 20, 400)}
    result = scored(truth, 0.5 * truth + 0.5 * others[:3], nulls=nulls)
    means = [null.similarity.pearson_mean for null in result.nulls]
    assert means == sorted(means)
    assert means[0] < means[1] < means[2]
    assert result.strongest_null.name == "best of 400"
    assert result.beats_guessing is True
    assert scored(truth, others[:20], nulls=nulls).beats_guessing is False
    assert scored(truth, others[:400], nulls=nulls).beats_guessing is False
    assert scored(truth, others).beats_guessing is None
    assert scored(truth, others).strongest_null is None


def test_an_image_cannot_be_in_the_truth_twice():
    """Nor can a candidate be shown twice."""
    truth = images(2)
    with pytest.raises(AssertionError):
        score_reconstruction(truth, [(1, 5, 0), (1, 5, 1)], truth, NOBODY, {})
    with pytest.raises(AssertionError, match="serve two"):
        scored(truth, truth, torch.tensor([0, 0]))
