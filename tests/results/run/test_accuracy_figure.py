"""The picture of accuracies over the rounds, whatever of it was measured."""

import warnings

import pytest

from app.results.run.figures import draw_accuracy


@pytest.fixture
def labels(pixels, tmp_path, monkeypatch):
    """Draws records without a warning, and returns what the lines are called."""

    def drawn(records):
        figures = []
        monkeypatch.setattr("app.results.run.figures.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw_accuracy(records, tmp_path / "accuracy.png", "a run")
        (figure,) = figures
        return [line.get_label() for line in figure.axes[0].get_lines()]

    return drawn


def test_nothing_measured_yet(labels):
    """A short run may end before its first evaluation."""
    assert labels([{"round": 1, "seconds": 2.0}]) == []


def test_all_clients_stand_in_for_participants_that_are_not_evaluated(labels):
    """With ten participants of a hundred, those alone would say little."""
    everyone = {"everyone/accuracy": 0.5}
    assert labels([{"round": 1, **everyone}]) == ["local test accuracy, mean of all clients"]
    participants = {"clients/trained_own/mean": 0.6, "clients/trained_own/worst": 0.1}
    (label,) = labels([{"round": 1, **everyone, **participants}])
    assert label.startswith("trained models, own test sets")
