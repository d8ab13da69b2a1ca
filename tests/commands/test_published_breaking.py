"""Breaking Privacy's published numbers: the tables beside its public code, written down once more."""

import pytest

from app.experiments.reading import read_spec
from app.results.published.parse import parse_published

LEGACY = ("details/legacy_pearson", "details/legacy_psnr", "details/legacy_recovered")
MATCHED = ("pearson_best", "psnr_best", "recovered")

NOISE = {
    5: ((0.871, 21.2, 1.90), (0.976, 27.9, 3.80), (0.767, 14.6, 0), (0.999, 35.3, 7)),
    10: ((0.855, 19.0, 0.87), (0.969, 23.9, 1.73), (0.741, 14.1, 0), (0.996, 29.4, 4)),
    15: ((0.840, 17.7, 0.30), (0.961, 21.6, 0.60), (0.720, 13.8, 0), (0.990, 26.0, 2)),
    20: ((0.827, 16.9, 0.07), (0.951, 20.1, 0.13), (0.703, 13.7, 0), (0.983, 23.6, 1)),
    25: ((0.815, 16.2, 0.00), (0.938, 18.8, 0.00), (0.691, 13.5, 0), (0.974, 21.8, 0)),
    30: ((0.800, 15.6, 0.00), (0.924, 17.8, 0.00), (0.676, 13.4, 0), (0.964, 20.4, 0)),
}
"""Noise in percent: mean of all 30 trials, mean of those with the right client, of those with a wrong one, and maximum;
each of Pearson, PSNR in dB and images recovered."""

CONVERGENCE = {5: (0.642, 14.1, 0.946, 20.5), 10: (0.641, 13.1, 0.901, 16.3), 15: (0.621, 13.1, 0.878, 15.7)} | {
    20: (0.587, 13.2, 0.904, 16.0)
}
"""Images of a client: mean Pearson and PSNR in dB, and the largest of both."""


def printed(name, **place):
    """Values of a comparison by measure and statistic, of entries that are no bound and not about."""
    return {
        (each.measure.removeprefix("reconstruction:"), each.statistic): each
        for each in parse_published(read_spec(name).published)
        if each.relation == "is" and all(getattr(each, key) == value for key, value in place.items())
    }


@pytest.mark.parametrize("percent", NOISE)
def test_noise_levels(percent):
    """Figures 12 to 14 have the three numbers of every level; half of the trials had the right client."""
    mean, right, wrong, best = NOISE[percent]
    found = printed("breaking-figures-12-to-14", method=f"noise-{percent}")
    assert tuple(found[name, "mean"].value for name in LEGACY) == mean
    assert tuple(found[name, "highest"].value for name in LEGACY) == best
    assert tuple(found[name, "mean"].value for name in MATCHED) == right
    assert mean == pytest.approx([(one + other) / 2 for one, other in zip(right, wrong, strict=True)], abs=0.051)
    assert all("tables beside the public code" in each.remark for each in found.values())
    for number, name in zip((12, 13, 14), LEGACY, strict=True):
        assert found[name, "mean"].where == f"Figure {number}, {percent} %, average"


@pytest.mark.parametrize("images", CONVERGENCE)
def test_convergence_rates(images):
    """Figures 9 and 10 on MNIST; every entry says that no public version made it."""
    found = printed("breaking-figures-9-to-11", dataset=f"mnist-{images}")
    keys = [(name, statistic) for statistic in ("mean", "highest") for name in LEGACY[:2]]
    assert tuple(found[key].value for key in keys) == CONVERGENCE[images]
    assert all("older version of it that is not public" in each.remark for each in found.values())


@pytest.mark.parametrize(("images", "most"), [(5, None), (10, None), (15, "14 of 15"), (20, "18 of 20")])
def test_the_text_says_all_and_the_tables_do_not(images, most):
    """Figure 8's maxima are those of the text; where the tables have fewer, a remark says so."""
    told = printed("breaking-figures-4-to-8", dataset=f"mnist-{images}")[LEGACY[2], "highest"]
    assert told.value == images
    assert ("the same" if most is None else most) in told.remark
