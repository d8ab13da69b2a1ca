"""How many GPUs a run gets: several, one, or a part of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from app.common.errors import UserError


def gpus() -> tuple[str, ...]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return tuple(named[:count] if named else map(str, range(count)))


def check_per_run(per_run: float) -> None:
    """Refuse numbers of GPUs above 0 that no run can have."""
    if per_run > 1 and per_run != int(per_run):
        raise UserError.of(
            f"--gpus_per_run is {per_run:g}",
            "a run trains on whole GPUs, or shares one GPU with other runs",
            "give a whole number such as 2, or a part of one such as 0.5",
        )


def runs_at_a_time(per_run: float, machines: Sequence[int]) -> int:
    """Runs that machines with so many GPUs each can make at a time; a run does not span two machines.

    Raises:
        UserError: where no machine has enough GPUs for one run.
    """
    check_per_run(per_run)
    runs = sum(int(count // per_run) if per_run >= 1 else count * int(1 / per_run + 1e-9) for count in machines)
    if not runs:
        most = max(machines, default=0)
        raise UserError.of(
            f"--gpus_per_run is {per_run:g}, and no machine has {f'more than {most} GPUs' if most else 'a GPU'}",
            "no run could start",
            f"give {most} or less" if most else "leave the option out: runs then train on the CPU",
        )
    return runs


def dealt_gpus(part: int, devices: Sequence[str], per_run: float | None) -> str | None:
    """GPUs of one of the runs at a time, as CUDA_VISIBLE_DEVICES names them; None where there are none."""
    if not devices:
        return None
    if per_run is None or per_run < 1:
        return devices[part % len(devices)]
    return ",".join(devices[part * int(per_run) : (part + 1) * int(per_run)])


def trained_on(per_run: float | None) -> int | None:
    """Devices that a run's trainer is to use; None to leave that to its settings."""
    return None if per_run is None else max(1, int(per_run))
