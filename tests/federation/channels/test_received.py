"""Digests of what clients received: shared where every bit is the same, and never where one is not."""

import numpy as np
import pytest
import torch
from federation_kit import PICTURES

from app.crypto.commitment import BlockDigests
from app.crypto.contributors import Contributors
from app.crypto.trained_models import model_digests
from app.federation.channels.base import Update
from app.federation.channels.received import ReceivedModels
from app.federation.parameters import ParameterSpace
from app.models import CNN

SPACE = ParameterSpace(CNN(PICTURES, u=4, statistics="running"))
WHOLE, HALF, LATE = np.arange(SPACE.size), np.arange(0, SPACE.size, 2), np.arange(SPACE.size // 2, SPACE.size)
CONTRIBUTORS = Contributors.of(SPACE.size, {0: WHOLE, 1: WHOLE, 2: WHOLE, 3: HALF, 4: HALF, 5: LATE})
THETA = torch.randn(SPACE.size, generator=torch.Generator().manual_seed(3))


def update(client, values=THETA):
    """What a client trained on: values of the whole model, of which it gets its own."""
    index = torch.from_numpy(CONTRIBUTORS.index(client))
    received = values[index]
    return Update(client, 0, index, received + 1, received, SPACE.trainable, 1, 0.1, 0.0, 0.0)


@pytest.fixture
def models():
    """One round."""
    return ReceivedModels(CONTRIBUTORS, SPACE)


@pytest.mark.parametrize("client", range(6))
def test_digests_are_those_of_the_values(models, client):
    """Worked out tensor by tensor: parameters only, each with the coordinates that the client has."""
    index, received = CONTRIBUTORS.index(client), models.of(update(client))
    values = THETA.numpy()[index]
    named = {block.name: np.isin(index, np.r_[block.coordinates]) for block in SPACE.blocks}
    tensors = [
        (block.name, values[named[block.name]])
        for block in SPACE.blocks
        if block.start < SPACE.trainable and named[block.name].any()
    ]
    assert received.tensors == model_digests(tensors)
    assert received.places[""] == slice(0, int((index < SPACE.trainable).sum()))
    assert received.places.keys() == {"", *(name for name, _ in tensors)}
    expected = BlockDigests(CONTRIBUTORS, index, values)
    assert all(received.blocks.binding(client, peer) == expected.binding(client, peer) for peer in range(6))


def test_clients_with_the_same_values_share_digests(models):
    """Equal values in other memory will do; another submodel has its own."""
    first = models.of(update(0))
    assert models.of(update(1, THETA.clone())) is first
    assert models.of(update(3)) is not first
    assert models.of(update(2)) is first
    assert models.of(update(4)) is models.of(update(3))


def bent(place, by):
    """The model with one bit of one value turned over."""
    values = THETA.clone()
    values.view(torch.int32)[place] ^= by
    return values


@pytest.mark.parametrize("place", [0, SPACE.size // 3, SPACE.trainable - 1])
@pytest.mark.parametrize("by", [1, -(2**31)], ids=["last bit", "sign"])
def test_one_bit_in_one_clients_model_is_noticed(models, place, by):
    """Also after others with the same submodel; who gets the first model again has its digests again."""
    first, other, again = models.of(update(0)), models.of(update(1, bent(place, by))), models.of(update(2))
    assert other.blocks.binding(1, 0) != first.blocks.binding(0, 1) == again.blocks.binding(2, 0)
    assert other.tensors[""] != first.tensors[""] == again.tensors[""]


def test_zeros_of_both_signs_and_no_numbers_are_values_like_others(models):
    """Equal as numbers, or never equal: what counts are bits."""
    zero, minus, lost = (torch.full_like(THETA, value) for value in (0.0, -0.0, float("nan")))
    assert models.of(update(0, minus)).blocks.binding(0, 1) != models.of(update(1, zero)).blocks.binding(1, 0)
    assert models.of(update(0, lost)) is models.of(update(1, lost.clone()))


def test_memory_that_is_written_again_is_another_model(models):
    """A server that reuses one tensor for all clients: digests are of what each received at its turn."""
    one = update(0)
    first = models.of(one)
    one.received[0] += 1
    second = models.of(one)
    assert first.blocks.binding(0, 1) == BlockDigests(CONTRIBUTORS, WHOLE, THETA.numpy()).binding(0, 1)
    assert second.blocks.binding(0, 1) == BlockDigests(CONTRIBUTORS, WHOLE, one.received.numpy()).binding(0, 1)
    assert second.tensors[""] != first.tensors[""]


def test_one_copy_for_each_submodel_of_several_clients(models):
    """Whatever the server sends, and none where nobody else could have received the same."""
    for turn in range(5):
        for client in range(6):
            models.of(update(client, THETA + turn))
    assert sum(len(text) for text, _ in models._last.values()) == 4 * (len(WHOLE) + len(HALF))
