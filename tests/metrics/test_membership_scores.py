"""Scores are checked when they are made, and every mistake is named at once."""

import numpy as np
import pytest

from app.common.errors import UserError
from app.metrics.membership import NO_CLIENT, MembershipScores

TRUTH = np.array([True, False, True, False])


def test_counts_and_clients():
    """Rows keep what they were given; ids default to one client and numbered samples."""
    scores = MembershipScores.of([3.0, 1.0, 2.0, 0.0, 0.5], [True, False, True, False, False], clients=[4, 4, 1, 1, -1])
    assert (scores.member_count, scores.nonmember_count) == (2, 3)
    assert scores.client_ids.tolist() == [1, 4], "nobody is not a client"
    assert scores.samples.tolist() == [0, 1, 2, 3, 4]
    assert MembershipScores.of([1.0, 2.0], [True, False]).clients.tolist() == [0, 0]
    part = scores.select(scores.clients == 4)
    assert part.scores.tolist() == [3.0, 1.0]
    assert part.samples.tolist() == [0, 1]


def test_types_are_widened_without_loss():
    """Ids of mixed integer types do not pass through floats, in which large ones would fall together."""
    big = 2**60
    scores = MembershipScores(
        np.array([1, 2], dtype=np.float32),
        np.array([True, True, False])[1:],
        np.array([big, big + 1], dtype=np.uint64),
        np.array([0, 0], dtype=np.int8),
    )
    assert scores.samples.tolist() == [big, big + 1]
    assert scores.scores.dtype == np.float64


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(value):
    """A diverged model must not pass for a safe one."""
    with pytest.raises(UserError, match=r"1 of 4 scores are not finite, such as -?(nan|inf) for sample 2 of client 0"):
        MembershipScores.of([1.0, 2.0, value, 3.0], TRUTH)


def test_all_problems_at_once():
    """Shapes and types first; then every wrong value in one error."""
    with pytest.raises(UserError) as shapes:
        MembershipScores.of([1.0, 2.0, 3.0, 4.0], [1, 0, 1], clients=[0.0, 0.0, 0.0, 0.0])
    assert len(shapes.value.problems) == 3
    assert "members (3,)" in str(shapes.value)
    assert "members has type int64" in str(shapes.value), "some published code has 0 for members"
    with pytest.raises(UserError) as values:
        MembershipScores.of([1.0, np.nan, 3.0], np.ones(3, dtype=bool), samples=[5, 5, 6], clients=[0, 0, NO_CLIENT])
    causes = [problem.cause for problem in values.value.problems]
    assert len(causes) == 4
    for part in ("not finite", "no non-members", "no valid client", "1 row with a pair"):
        assert any(part in cause for cause in causes), part
    assert all(problem.consequence and problem.remedy for problem in values.value.problems)


def test_one_sample_may_be_audited_for_several_clients():
    """The pair of client and sample is what must be unique."""
    scores = MembershipScores.of([1.0, 2.0, 3.0, 4.0], TRUTH, samples=[7, 8, 8, 7], clients=[0, 0, 1, 1])
    assert scores.member_count == 2


def test_a_class_may_not_be_missing():
    """Without members, or without non-members, nothing can be measured."""
    with pytest.raises(UserError, match="no members"):
        MembershipScores.of([1.0, 2.0], [False, False])
    with pytest.raises(UserError, match="no members"):
        MembershipScores.of([], np.array([], dtype=bool))
