"""An accelerator simulated on the CPU: its tensors name the device `sim:0`, and what CUDA refuses fails on it.

Values are kept and computed on the CPU, so a run on it ends where one on the CPU does, bit for bit. It is built on
torch's experimental Python backend; `AVAILABLE` is False where torch has none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten
AVAILABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
NAME = "sim"
CPU = torch.device("cpu")
TRANSFERS = (aten._to_copy.default, aten.copy_.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
"""Operations that take indices on the CPU for a tensor on the device, as CUDA's do."""
FACTORIES = ("rand", "randn", "randint", "randperm", "normal")
DRAWS = ("uniform_", "normal_", "bernoulli_", "random_", "exponential_")
LOWERED = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "conv1d", "conv2d", "convolution")
"""Operations that autocast computes in the lower precision."""


WAITING = (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default)
"""Operations whose result, or its size, the host needs before it can go on."""

NOTED = frozenset({*TRANSFERS, *INDEXED, *WAITING})
"""Operations that may be traffic."""

TRAFFIC: Counter[str] = Counter()
"""Transfers `to host` and `to device` since the start of the process, and times that the host `waits` for a result."""


class DeviceTensor(torch.Tensor):
    """A tensor of the simulated device; `values` holds its values on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "DeviceTensor":
        """A tensor without memory of its own, described like `values`."""
        like = {"dtype": values.dtype, "layout": values.layout, "device": torch.device(NAME, 0)}
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, values.size(), **layout, **like)
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Compute on the CPU what CUDA would compute with these arguments."""
        options = options or {}
        foreign: list[Tensor] = []
        values = _taken(arguments, foreign)
        there = {name: _taken(one, foreign) for name, one in options.items()}
        if foreign:
            refuse_mixed(operation, arguments, options)
        if operation in NOTED:
            _note(operation, arguments, options)
        if operation is aten.copy_.default:
            values[0].copy_(values[1])
            return arguments[0]
        if "device" in options:
            there["device"] = CPU
        result = operation(*values, **there)
        if "device" in options and torch.device(options["device"] or NAME).type == "cpu":
            return result
        result = DeviceTensor(result) if isinstance(result, Tensor) else _mapped(DeviceTensor, result)
        return return_and_correct_aliasing(operation, arguments, options, result) if _aliases(operation) else result

    @property
    def data(self) -> Tensor:
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, other: "DeviceTensor") -> None:
        torch.Tensor.data.__set__(self, other)
        self.values = other.values

    def tolist(self) -> Any:
        """Plain numbers; torch would convert below the level at which this class is asked."""
        TRAFFIC["to host"] += 1
        return self.values.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused as by CUDA's tensors, except by force."""
        if force:
            return self.values.numpy(force=True)
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first")

    def __repr__(self, **_: Any) -> str:
        """The values, and where they are."""
        return f"DeviceTensor({self.values}, device='{self.device}')"

    def __format__(self, form: str) -> str:
        """As the values on the CPU."""
        return format(self.values, form)

    def __reduce_ex__(self, protocol: int) -> Any:
        """Saved as a tensor of the CPU, where checkpoints are opened."""
        return self.values.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy on the device; parameters remain parameters."""
        copy: Tensor = DeviceTensor(self.values.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        return memo.setdefault(id(self), copy.requires_grad_(self.requires_grad))


def _values(tensor: Tensor) -> Tensor:
    return tensor.values if isinstance(tensor, DeviceTensor) else tensor


def _taken(nested: Any, foreign: list[Tensor]) -> Any:
    """The values of nested arguments; tensors of the CPU among them are added to `foreign`."""
    if isinstance(nested, DeviceTensor):
        return nested.values
    if isinstance(nested, Tensor):
        foreign.append(nested)
    elif isinstance(nested, (list, tuple)):
        return type(nested)([_taken(one, foreign) for one in nested])
    return nested


def _mapped(function: Any, nested: Any) -> Any:
    """`function` of all tensors in nested arguments; quicker than torch's own for the few kinds there are."""
    if isinstance(nested, torch.Tensor):
        return function(nested)
    if isinstance(nested, (list, tuple)):
        return type(nested)(_mapped(function, one) for one in nested)
    return {name: _mapped(function, one) for name, one in nested.items()} if isinstance(nested, dict) else nested


@cache
def _aliases(operation: Any) -> bool:
    """Whether an operation returns views, or what it has written to."""
    return any(returned.alias_info is not None for returned in operation._schema.returns)


@cache
def _written_places(operation: Any) -> tuple[int, ...]:
    """Places of the arguments that an operation writes to."""
    arguments = enumerate(operation._schema.arguments)
    return tuple(place for place, one in arguments if one.alias_info is not None and one.alias_info.is_write)


def refuse_mixed(operation: Any, arguments: Any, options: Mapping[str, Any]) -> None:
    """Raise where CUDA would: tensors of both devices meet, but for numbers in elementwise operations and indices."""
    if operation in TRANSFERS:
        return
    written = [arguments[place] for place in _written_places(operation) if place < len(arguments)]
    if operation in INDEXED:
        arguments = (arguments[0], *(value for value in arguments[2:3] if value.dim()))
    foreign = list(_on_cpu((arguments, options)))
    if torch.Tag.pointwise in operation.tags or operation is aten.masked_fill.Tensor:
        foreign = [tensor for tensor in foreign if tensor.dim()]
    for tensor in (*foreign, *_on_cpu(written)):
        shape = tuple(tensor.shape)
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {operation} got {shape} on cpu beside {NAME}"
        )


def _on_cpu(nested: Any) -> Iterator[Tensor]:
    """Tensors of the CPU in nested arguments."""
    if isinstance(nested, (list, tuple, dict)):
        for one in nested.values() if isinstance(nested, dict) else nested:
            yield from _on_cpu(one)
    elif isinstance(nested, torch.Tensor) and not isinstance(nested, DeviceTensor):
        yield nested


class SimulatedGenerator(torch.Generator):
    """Random numbers of the simulated device; it gives those of a CPU generator with the same seed."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        """A generator of the device, or a usual one of the CPU."""
        if torch.device(device).type == "cpu":
            return torch._C.Generator(device)
        return super().__new__(cls, "cpu")

    @property
    def device(self) -> torch.device:
        """Where it draws."""
        return torch.device(NAME, 0)


class SimulatedAccelerator(Accelerator):
    """Lightning's view of the device."""

    def setup_device(self, device: torch.device) -> None:
        """There is nothing to set up."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """No statistics."""
        return {}

    def teardown(self) -> None:
        """There is nothing to free."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Their number."""
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """All of them."""
        return [torch.device(NAME, number) for number in range(int(devices))]

    @staticmethod
    def auto_device_count() -> int:
        """There is one."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Always."""
        return True

    @staticmethod
    def name() -> str:
        """As in `--trainer.accelerator`."""
        return NAME


@contextmanager
def simulated_device() -> Iterator[str]:
    """Within it, `sim` is an accelerator like `gpu`; gives its name."""
    register()
    choose, precision = _AcceleratorConnector._choose_strategy, _AcceleratorConnector._check_and_init_precision

    def chosen_strategy(connector: Any) -> Any:
        ours = connector._accelerator_flag == NAME
        return SingleDeviceStrategy(torch.device(NAME, 0)) if ours else choose(connector)

    def chosen_precision(connector: Any) -> Any:
        plugin = precision(connector)
        if isinstance(plugin, MixedPrecision) and connector._accelerator_flag == NAME:
            plugin.device = NAME
        return plugin

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_AcceleratorConnector, "_choose_strategy", chosen_strategy)
        patch.setattr(_AcceleratorConnector, "_check_and_init_precision", chosen_precision)
        for name in FACTORIES:
            patch.setattr(torch, name, _checked(getattr(torch, name)))
        for name in DRAWS:
            patch.setattr(torch.Tensor, name, _checked(getattr(torch.Tensor, name)))
        patch.setattr(torch, "Generator", SimulatedGenerator)
        yield NAME


def _checked(draw: Any) -> Any:
    """A function that draws, and refuses a generator of another device."""

    def drawn(*arguments: Any, **options: Any) -> Any:
        generator = options.get("generator")
        target = arguments[0].device if arguments and isinstance(arguments[0], torch.Tensor) else options.get("device")
        place = torch.device(target or "cpu").type
        if generator is not None and generator.device.type != place:
            raise RuntimeError(f"Expected a '{place}' device type for generator but found '{generator.device.type}'")
        return draw(*arguments, **options)

    return drawn


class _Backend(backend_registration._DummyBackendModule if AVAILABLE else object):
    """What torch asks of the module of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        """That of the CPU, on which the device draws."""
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: torch seeds the CPU itself."""

    def _is_in_bad_fork(self) -> bool:
        return False


_LIBRARIES: list[Any] = []
"""Registered operations, which last as long as these objects."""


def register() -> None:
    """Make the device known to torch and to Lightning, once per process, before its first backward pass.

    Autograd counts the devices then, and knows no later ones.
    """
    if _LIBRARIES or not AVAILABLE:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in LOWERED:
        library.impl(name, _lowered(getattr(aten, name).default), "AutocastPrivateUse1")
    _LIBRARIES.extend((library, everything))
    AcceleratorRegistry.register(NAME, SimulatedAccelerator)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def _note(operation: Any, arguments: Any, options: Mapping[str, Any]) -> None:
    """Count a transfer, or an operation that the host waits for."""
    if operation is aten.copy_.default:
        _note_copy(arguments[1], arguments[0])
    elif operation is aten._to_copy.default and options.get("device") == CPU:
        TRAFFIC["to host"] += 1
    elif operation in WAITING or (operation in INDEXED and _masked(arguments[1])):
        TRAFFIC["waits"] += 1
    elif operation in INDEXED:
        TRAFFIC["to device"] += sum(1 for _ in _on_cpu(arguments[1]))


def _note_copy(source: Tensor, target: Tensor) -> None:
    places = [isinstance(tensor, DeviceTensor) for tensor in (source, target)]
    if places != [True, True]:
        TRAFFIC["to device" if places[1] else "to host"] += 1


def _masked(indices: Any) -> bool:
    """Whether a tensor is indexed by a mask, whose true values CUDA must count first."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _note_copy(source, target)
    _values(target).copy_(_values(source))
    return target


def _lowered(operation: Any) -> Any:
    """An operation under autocast: its floating arguments are cast to the lower precision."""

    def cast(tensor: Tensor) -> Tensor:
        wanted = torch.get_autocast_dtype(NAME)
        return tensor.to(wanted) if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) else tensor

    def computed(*arguments: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return operation(*_mapped(cast, arguments), **options)

    return computed
