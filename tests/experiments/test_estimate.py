"""Time that is left, from what is known."""

import pytest

from app.common.progress import in_words
from app.experiments.board import Running, seconds_left

A, B = ("digits", "fedavg", "none"), ("digits", "fedavg", "paillier")


def test_nothing_is_known():
    """No run has ended, and none has done a round."""
    assert seconds_left([A], [Running(A, 5.0, 0.0), Running(B, 5.0, None)], [], 2) is None


def test_progress_is_all_there_is():
    """A quarter done in 10 s: 30 s are left, and 40 s for the next, on one worker."""
    assert seconds_left([B], [Running(A, 10.0, 0.25)], [], 1) == pytest.approx(70)


def test_runs_of_the_same_kind_count():
    """A takes 20 s and B 100 s; B waits and has half of it left, two workers."""
    ended = [(A, 10.0), (A, 30.0), (B, 100.0)]
    assert seconds_left([A, B], [Running(B, 50.0, 0.1)], ended, 2) == pytest.approx((20 + 100 + 50) / 2)


def test_the_longest_run_cannot_be_shared():
    """Four workers do not make a single run faster."""
    assert seconds_left([], [Running(B, 40.0, None)], [(B, 100.0)], 4) == pytest.approx(60)


def test_a_run_that_takes_longer_than_others():
    """Never negative."""
    assert seconds_left([], [Running(A, 40.0, None)], [(A, 10.0)], 1) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (7500, "2 h 5 min")]
)
def test_words(seconds, text):
    """Seconds, minutes, hours."""
    assert in_words(seconds) == text
