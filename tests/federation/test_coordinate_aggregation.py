"""Every coordinate is the weighted mean over the clients that sent it."""

from fractions import Fraction

import pytest
import torch
from federation_kit import TINY_MLP, Blobs, Recorder, initial, run, small_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.federation.channels import base
from app.federation.channels.base import Aggregate, PlainChannel, Update
from app.federation.parameters import Axis
from app.federation.submodels import ClientRound, SubmodelMethod


@pytest.fixture(autouse=True, scope="module")
def _several_parts():
    """Updates of more than three coordinates are added in parts, as those of large networks are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CACHED", 3)
        yield


def update_of(index: list[int], values: list[float], weight: float = 1.0, curvature: float = 0.0) -> Update:
    """An update in single precision about the given coordinates."""
    vector = torch.tensor(values, dtype=torch.float32)
    return Update(
        0, 0, torch.tensor(index, dtype=torch.int64), vector, vector, len(index), 1, 0.1, 0.0, 0.0, weight, curvature
    )


def closed(theta: Tensor, updates: list[Update], uncovered: str = "keep") -> Aggregate:
    """One process's round."""
    channel = PlainChannel()
    channel.open(None, theta)
    for update in updates:
        channel.send(update)
    return channel.close(uncovered, lambda tensor: tensor)


def test_three_coordinates_by_hand():
    """Coordinate 0 from both clients, coordinate 1 from the second, coordinate 2 from nobody."""
    theta = torch.tensor([9.0, 9.0, 9.0])
    updates = [update_of([0], [1.0], weight=1.0, curvature=0.5), update_of([0, 1], [4.0, 6.0], weight=2.0)]
    kept, zeroed = closed(theta, updates), closed(theta, updates, "zero")
    assert kept.mean.tolist() == [3.0, 6.0, 9.0]
    assert zeroed.mean.tolist() == [3.0, 6.0, 0.0]
    assert kept.weight.tolist() == [3.0, 2.0, 0.0]
    assert (kept.updates, kept.curvature.tolist()) == (2, [0.5, 0.0, 0.0])
    assert kept.mean.dtype == torch.float64


def test_nobody_sent_anything():
    """Without updates the server's values stay, whatever becomes of uncovered coordinates."""
    theta = torch.tensor([1.5, -2.0])
    for uncovered in ("keep", "zero"):
        aggregate = closed(theta, [], uncovered)
        assert aggregate.mean.tolist() == theta.tolist()
        assert aggregate.updates == 0


def test_the_server_reads_the_plain_vector():
    """A plain message holds the values, their coordinates and their size in bytes."""
    channel = PlainChannel()
    channel.open(None, torch.zeros(4))
    message = channel.send(update_of([1, 3], [2.0, 5.0]))
    assert message.form == "plain"
    assert message.payload.tolist() == [2.0, 5.0]
    assert message.index.tolist() == [1, 3]
    assert message.size == 8


CELLS = 7
an_update = st.builds(
    lambda coordinates, values, weight: (sorted(coordinates), values[: len(coordinates)], weight),
    st.sets(st.integers(0, CELLS - 1), max_size=CELLS),
    st.lists(st.floats(-100, 100, width=32), min_size=CELLS, max_size=CELLS),
    st.floats(0.0009765625, 500, width=32),
)


@given(parts=st.lists(an_update, max_size=6))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_channel_equals_exact_fractions(parts):
    """Any weights and index sets, full ones included, against rational arithmetic coordinate by coordinate."""
    theta = torch.arange(float(CELLS))
    aggregate = closed(theta, [update_of(*part) for part in parts])
    for coordinate in range(CELLS):
        terms = [
            (Fraction(weight), Fraction(values[coordinates.index(coordinate)]))
            for coordinates, values, weight in parts
            if coordinate in coordinates
        ]
        weight = sum((weight for weight, _ in terms), Fraction(0))
        total = sum((weight * value for weight, value in terms), Fraction(0))
        assert float(aggregate.weight[coordinate]) == pytest.approx(float(weight), rel=1e-12)
        assert float(aggregate.mean[coordinate]) == pytest.approx(
            float(total / weight if weight else coordinate), abs=1e-9
        )


@given(parts=st.lists(an_update, min_size=1, max_size=6), cut=st.integers(0, 6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_two_processes_equal_one(parts, cut):
    """Updates dealt to two processes, whose tensors are summed, give what one process gives."""
    theta, sent = torch.arange(float(CELLS)), []
    whole = closed(theta, [update_of(*part) for part in parts])
    first, second = PlainChannel(), PlainChannel()
    for channel, mine in ((first, parts[:cut]), (second, parts[cut:])):
        channel.open(None, theta)
        for part in mine:
            channel.send(update_of(*part))
    second.close("keep", lambda tensor: sent.append(tensor.clone()) or tensor)
    arriving = iter(sent)
    both = first.close("keep", lambda tensor: tensor + next(arriving))
    assert torch.allclose(both.mean, whole.mean, rtol=0, atol=1e-9)
    assert torch.allclose(both.weight, whole.weight, rtol=1e-12)
    assert both.updates == whole.updates == len(parts)


def by_hand(recorder: Recorder, start: Tensor, weights: dict[int, float], fill: float | None) -> Tensor:
    """Mean of every coordinate over the updates that hold it, one coordinate at a time."""
    result = start.clone()
    for coordinate in range(len(start)):
        terms = [
            (weights[client], float(vector[(index == coordinate).nonzero()]))
            for client, vector, index in recorder.updates
            if coordinate in index
        ]
        if terms:
            result[coordinate] = sum(weight * value for weight, value in terms) / sum(weight for weight, _ in terms)
        elif fill is not None:
            result[coordinate] = fill
    return result


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("capacities", [[1.0, 0.5, 0.25], [0.5, 0.5, 0.5], [0.5, 0.25, 1.0]])
@pytest.mark.parametrize("uncovered", ["keep", "zero"])
def test_a_round_of_unequal_models(weighting, capacities, uncovered):
    """The server's next model, coordinate by coordinate, from the recorded updates; counts as well."""
    sizes, recorder = (5, 8, 11), Recorder()
    start = initial(small_federation(TINY_MLP), Blobs(sizes))
    federation = small_federation(TINY_MLP, capacities=capacities, weighting=weighting, uncovered_cells=uncovered)
    end = run(federation, Blobs(sizes), 1, [recorder])
    weights = {client: float(size) if weighting == "samples" else 1.0 for client, size in enumerate(sizes)}
    expected = by_hand(recorder, start, weights, 0.0 if uncovered == "zero" else None)
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-14)
    count = torch.zeros_like(start)
    for client, _, index in recorder.updates:
        count[index] += weights[client]
    torch.testing.assert_close(recorder.aggregates[0][1], count, rtol=0, atol=0)


@pytest.mark.parametrize(("uncovered", "untouched"), [("keep", True), ("zero", False)])
def test_coordinates_no_client_holds(uncovered, untouched):
    """With all clients at half width, the other channels keep their values for ever, or become zero."""
    federation = small_federation(TINY_MLP, capacities=[0.5], uncovered_cells=uncovered)
    start = initial(small_federation(TINY_MLP))
    end = run(federation, rounds=2)
    covered = torch.zeros(federation.space.size, dtype=torch.bool)
    covered[federation.plan.index(0)] = True
    assert 0 < int(covered.sum()) < federation.space.size
    assert torch.equal(end[~covered], start[~covered] if untouched else torch.zeros_like(start[~covered]))
    assert bool((end[covered] != start[covered]).any())


class EveryChannel(SubmodelMethod):
    """Keeps all channels, but says that every client is different."""

    def channels(self, axis: Axis, keep: int, client_round: ClientRound) -> Tensor:
        """All of them."""
        return torch.arange(axis.width)


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_capacity_one_for_all_is_fedavg_bit_for_bit(precision):
    """Named for every client, once for all, or by another method: the same bits."""
    variants = [{}, {"capacities": [1.0] * 3}, {"capacities": [1.0]}, {"method": EveryChannel()}]
    results = [run(small_federation(TINY_MLP, **settings), precision=precision) for settings in variants]
    assert all(torch.equal(result, results[0]) for result in results)


def test_one_narrow_client_changes_only_what_it_holds():
    """Where the narrow client sends nothing, the wide ones' mean is as if it were not there."""
    recorder = Recorder()
    federation = small_federation(TINY_MLP, capacities=[1.0, 1.0, 0.25])
    end = run(federation, rounds=1, callbacks=[recorder])
    wide = [vector for client, vector, _ in recorder.updates if client != 2]
    outside = torch.ones(federation.space.size, dtype=torch.bool)
    outside[federation.plan.index(2)] = False
    torch.testing.assert_close(end[outside], (sum(wide) / 2)[outside], rtol=0, atol=1e-15)
