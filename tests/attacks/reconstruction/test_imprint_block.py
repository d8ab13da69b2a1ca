"""The inserted layers: they do nothing at zero, leave the network's own layers alone, and sort images into bins."""

from functools import partial

import pytest
import torch

from app.attacks.reconstruction.active.imprint_block import BlockSettings, with_imprint_block
from app.federation.parameters import ParameterSpace
from app.models import CNN, MLP, DataShape, Factorised, LeNet5

SHAPE = DataShape(1, 28, 28, 4)
SETTINGS = BlockSettings(784, 6, "sparse")
NETS = [LeNet5, partial(CNN, u=2), partial(Factorised, net=partial(MLP, hidden=(6,)), factors={"layers.hidden1": 3})]


def made(net, settings=SETTINGS):
    """The announced network, and the same with a block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        announced = net(SHAPE)
        torch.manual_seed(0)
        return announced, with_imprint_block(net(SHAPE), settings)


@pytest.mark.parametrize("net", NETS, ids=["LeNet5", "CNN", "Factorised"])
def test_at_zero_nothing_changes(net):
    """Equal logits, to the bit, and no gradient of the block; its coordinates come first, the others as they were."""
    announced, shipped = made(net)
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    for one in (announced, shipped):
        torch.manual_seed(0)
        one.train()
    assert torch.equal(announced(images), shipped(images))
    shipped(images).square().sum().backward()
    assert not any(part.grad.any() for part in shipped.imprint.parameters())
    before, after = ParameterSpace(announced), ParameterSpace(shipped)
    inserted = after.size - before.size
    assert inserted == 6 * 784 + 6 + 6
    assert [(block.name, block.start + inserted) for block in before.blocks] == [
        (block.name, block.start) for block in after.blocks[3:]
    ]
    assert torch.equal(before.read(announced), after.read(shipped)[inserted:])
    assert not after.read(shipped)[:inserted].any()


def test_every_width_holds_the_whole_block():
    """The block has no channels that could be cut; all other layers scale as announced."""
    announced, shipped = made(LeNet5)
    half = shipped.scaled(0.5)
    assert half.imprint.measure.weight.shape == (6, 784)
    assert half.hidden1.weight.shape == announced.scaled(0.5).hidden1.weight.shape
    space = ParameterSpace(shipped)
    assert space.size_at(0.5) - ParameterSpace(announced).size_at(0.5) == 6 * 784 + 12
    assert space.axes == ParameterSpace(announced).axes


def test_state_dicts_are_those_of_the_announced_network():
    """A checkpoint of one loads into the other."""
    announced, shipped = made(LeNet5)
    assert announced.state_dict().keys() == shipped.state_dict().keys()
    with torch.no_grad():
        shipped.imprint.measure.bias.fill_(1.0)
    shipped.load_state_dict(announced.state_dict())
    announced.load_state_dict(shipped.state_dict())
    assert not shipped.imprint.measure.bias.any()


@pytest.mark.parametrize(("variant", "reached"), [("sparse", [2]), ("cumulative", [0, 1, 2])])
def test_an_image_reaches_its_bin(variant, reached):
    """Bins from 0, 1, 2, 3 and 4 on, and an image of measurement 2.25: the last edge that it exceeds is 2."""
    _, shipped = made(LeNet5, BlockSettings(784, 5, variant, 1.0))
    block = shipped.imprint
    with torch.no_grad():
        block.measure.weight.fill_(1 / 784)
        block.measure.bias.copy_(-torch.arange(5.0))
        block.spread.weight.fill_(1.0)
    image = torch.full((1, 1, 28, 28), 2.25)
    out = block(image)
    assert float(out.detach()[0, 0, 0, 0]) == pytest.approx(
        2.25 + {"sparse": 2.25, "cumulative": 3.75}[variant], rel=1e-5
    )
    out.sum().backward()
    assert torch.nonzero(block.measure.bias.grad).flatten().tolist() == reached


def test_the_block_comes_off_again():
    """What is released and exported is the announced network."""
    announced, shipped = made(LeNet5)
    values = announced.state_dict()
    plain = shipped.without_inserted()
    assert plain is shipped
    assert type(plain) is LeNet5
    assert announced.without_inserted() is announced
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in announced.named_parameters()]
    assert all(torch.equal(value, values[name]) for name, value in plain.state_dict().items())
