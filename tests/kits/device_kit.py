"""Tiny runs of recipes on a device and on the CPU, and what of them must agree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from app.run import Run, build_run
from datamodules import Digits
from datamodules.base import RawData

CONFIGS = Path("app/configs")
SMALL: dict[str, Any] = {
    "tracking": "disabled",
    "data": "device_kit.FewDigits",
    "data.partition": "Iid",
    "data.partition.clients": 4,
    "model.local.epochs": 1,
    "model.local.batch_size": 32,
    "model.workers": 1,
    "trainer.max_epochs": 2,
    "trainer.devices": 1,
    "trainer.enable_progress_bar": False,
    "trainer.enable_checkpointing": False,
}
"""Four clients with about thirty digits each, two rounds of one step."""

MLP = {"model.net": "MLP", "model.net.hidden": [8]}
CNN = {"model.net": "CNN", "model.net.u": 2}


EXECUTOR_CHOICE = "app.federation.execution.executors._prefers_vectorised"
"""Whether clients are trained in one vectorised call where that is possible, as on a GPU."""


class FewDigits(Digits):
    """The first 300 of the embedded digits."""

    def load(self) -> RawData:
        """Fifty of them are the common test set."""
        raw = super().load()
        return RawData(
            raw.images[:250],
            raw.labels[:250],
            raw.test_images[:50],
            raw.test_labels[:50],
            raw.class_names,
            raw.mean,
            raw.std,
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run has left."""

    run: Run
    vector: Tensor  # the server's final vector, on the CPU
    metrics: str  # of every round, as they were written
    numbers: dict[str, float]  # of all results


def recipes(folder: str) -> list[str]:
    """Names of the shipped recipes in a folder."""
    return sorted(path.stem for path in CONFIGS.joinpath(folder).glob("*.yaml"))


def protocol(name: str, **settings: Any) -> dict[str, Any]:
    """Options for a paper's evaluation, by its class, with settings that make it short."""
    chosen = {"class_path": f"app.attacks.protocols.{name}", "init_args": settings}
    return {"attacks.membership.protocol": chosen}


def outcome(accelerator: str, folder: Path, *layers: Any, **options: Any) -> Outcome:
    """Train a tiny run on a device."""
    place = {"trainer.accelerator": accelerator, "run.root": str(folder), "run.name": accelerator}
    run = build_run(*layers, **{**SMALL, **place, **options}).fit()
    assert (folder / accelerator / "summary.json").is_file()
    return Outcome(
        run,
        run.federation.space.read(run.federation.net).cpu(),
        (folder / accelerator / "metrics.jsonl").read_text(),
        {
            f"{one.label}/{name}": value
            for one in run.results
            for name, value in one.numbers.items()
            if name != "seconds"
        },
    )


def assert_as_on_cpu(device: str, folder: Path, *layers: Any, exact: bool = True, **options: Any) -> Outcome:
    """Train on a device and on the CPU; metrics, results and the final model are the same.

    On the simulated device bit for bit, or nearly where not `exact`. A GPU adds in another order and draws other random
    numbers: there, the same numbers must exist.
    """
    there, here = (outcome(place, folder, *layers, **options) for place in (device, "cpu"))
    assert not [result.label for result in there.run.results if result.failed]
    assert there.numbers.keys() == here.numbers.keys()
    assert torch.isfinite(there.vector).all()
    if device == "sim" and exact:
        assert torch.equal(there.vector, here.vector)
        assert there.metrics == here.metrics
        assert there.numbers == pytest.approx(here.numbers, rel=0, abs=0, nan_ok=True)
    elif device == "sim":
        torch.testing.assert_close(there.vector, here.vector, rtol=0, atol=0.02)
    return there
