"""The simulated device refuses what CUDA refuses and takes what CUDA takes, with the CPU's numbers."""

import copy

import numpy as np
import pytest
import torch
from simulated_device import AVAILABLE, NAME, simulated_device

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this torch has no backends in Python")


@pytest.fixture(scope="module", autouse=True)
def sim():
    """The device."""
    with simulated_device():
        yield


@pytest.fixture
def there():
    """1, 2, 3 on the device."""
    return torch.tensor([1.0, 2.0, 3.0], device=NAME)


HERE = torch.ones(3)
PLACE = torch.tensor([1])

REFUSED = {
    "sum": lambda there: there + HERE,
    "sum in place": lambda there: HERE.add_(there),
    "number changed in place": lambda there: torch.zeros(()).add_(there[0]),
    "concatenation": lambda there: torch.cat([there, HERE]),
    "stack of numbers": lambda there: torch.stack([there[0], HERE[0]]),
    "comparison": lambda there: torch.equal(there, HERE),
    "choice": lambda there: torch.where(HERE > 0, there, there),
    "selection": lambda there: there.index_select(0, PLACE),
    "gathering": lambda there: there.gather(0, PLACE),
    "addition by index": lambda there: there.index_add_(0, PLACE, there[:1]),
    "index from the device": lambda there: HERE[PLACE.to(NAME)],
    "assignment by index from the device": lambda there: HERE.__setitem__(PLACE.to(NAME), 0.0),
    "network": lambda there: torch.nn.Linear(3, 1)(there),
    "generator of the CPU": lambda there: torch.rand(3, device=NAME, generator=torch.Generator()),
    "generator of the device": lambda there: torch.rand(3, generator=torch.Generator(NAME)),
    "generator in place": lambda there: there.uniform_(generator=torch.Generator()),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_refused(there, operation):
    """Tensors of both devices in one operation."""
    with pytest.raises(RuntimeError, match=r"same device|device type for generator"):
        REFUSED[operation](there)


def test_not_an_array(there):
    """CUDA's tensors are copied to the CPU first."""
    for convert in (lambda tensor: tensor.numpy(), np.asarray):
        with pytest.raises(TypeError, match="can't convert"):
            convert(there)
    assert np.array_equal(there.cpu().numpy(), [1, 2, 3])


def test_taken(there):
    """Numbers on the CPU, indices on the CPU, and transfers."""
    assert (there + torch.tensor(1.0)).tolist() == [2, 3, 4]
    assert there[PLACE].tolist() == [2]
    assert there[HERE > 0].tolist() == [1, 2, 3]
    there[PLACE] = torch.tensor(5.0)
    there[1:].mul_(2)
    assert there.tolist() == [1, 10, 6]
    assert HERE.clone().copy_(there).tolist() == [1, 10, 6]


def test_same_numbers_as_on_the_cpu():
    """Generators, gradients, optimisers, copies and vectorised calls."""
    drawn = [torch.rand(3, device=place, generator=torch.Generator(place).manual_seed(3)) for place in ("cpu", NAME)]
    assert torch.equal(drawn[0], drawn[1].cpu())
    here = torch.nn.Linear(3, 2)
    there = copy.deepcopy(copy.deepcopy(here).to(NAME))
    for net, values in zip((here, there), drawn, strict=True):
        torch.func.vmap(net)(values.expand(4, 3)).square().sum().backward()
        torch.optim.Adam(net.parameters(), lr=0.1).step()
    assert there.weight.device.type == NAME
    assert torch.equal(here.weight, there.to("cpu").weight)


def test_autocast():
    """Products are computed in the lower precision."""
    with torch.autocast(NAME, dtype=torch.bfloat16):
        product = torch.ones(2, 2, device=NAME) @ torch.ones(2, 2, device=NAME)
    assert product.dtype is torch.bfloat16
