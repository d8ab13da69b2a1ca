"""The memory of a device, and how much of it the training of one more client takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from app.federation.client import Batch, ClientModule
from app.federation.local_training import LocalTraining

USABLE = 0.8
"""Share of the free memory that a stack of clients may fill; the rest is for what kernels need while they run."""

COPIES = 6
"""Copies of a client's vector in a stack: received, stacked, values, gradients (also of a part), and the result."""


def free_memory(device: torch.device) -> int | None:
    """Free bytes of a device, those included that torch keeps for itself; None where they are not known.

    The memory of a CPU is not asked for: the system can take it from elsewhere.
    """
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    free, _ = module.mem_get_info(device)
    return int(free + module.memory_reserved(device) - module.memory_allocated(device))


def release_cached(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device."""
    release = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if release is not None:
        release()


def bytes_of_training(client: ClientModule, batch: Batch) -> int:
    """Bytes that the client takes in a vectorised step: copies of its vector, optimiser state, and activations.

    Activations are what one forward pass saves for the backward pass, and twice the largest of them, which the backward
    pass holds as gradients at one time.
    """
    activations = _saved_bytes(client, batch)
    parameters = sum(parameter.nbytes for parameter in client.net.parameters())
    copies = COPIES + bool(client.local.proximal) + client.local.scaffold + optimiser_copies(client.local)
    return parameters * copies + sum(activations) + 2 * max(activations, default=0)


def optimiser_copies(local: LocalTraining) -> int:
    """Tensors of a parameter's size that the optimiser keeps for it: 2 for Adam, 1 for SGD with momentum."""
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = local.optimizer([parameter])
    parameter.grad = torch.zeros(2)
    optimizer.step()
    state = optimizer.state[parameter].values()
    return sum(isinstance(value, Tensor) and value.shape == parameter.shape for value in state)


def _saved_bytes(client: ClientModule, batch: Batch) -> list[int]:
    """Bytes of every block of memory that the forward pass saves; the parameters themselves do not count."""
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        loss = client.training_step(batch)
    for parameter in client.net.parameters():
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    del loss  # until here it holds what was saved, so that no two tensors have one address
    return list(saved.values())
