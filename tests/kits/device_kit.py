"""Tiny runs of recipes on a device and on the CPU, and what of them must agree."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from app.configuration import expand, run_parser
from app.run import Run, run_of
from datamodules import Digits
from datamodules.base import RawData

CONFIGS = Path("app/configs")
SMALL: dict[str, Any] = {
    "tracking": "disabled",
    "data": "device_kit.FewDigits",
    "data.partition": "Iid",
    "data.partition.clients": 3,
    "model.local.epochs": 1,
    "model.local.batch_size": 48,
    "model.workers": 1,
    "model.evaluation.every": 2,
    "trainer.max_epochs": 2,
    "trainer.check_val_every_n_epoch": 2,
    "trainer.devices": 1,
    "trainer.enable_progress_bar": False,
    "trainer.enable_checkpointing": False,
}
"""Three clients with about forty digits each, two rounds of one step, evaluated after the second."""

MLP = {"model.net": "MLP", "model.net.hidden": [8]}
CNN = {"model.net": "CNN", "model.net.u": 2}


EXECUTOR_CHOICE = "app.federation.execution.executors._prefers_vectorised"
"""Whether clients are trained in one vectorised call where that is possible, as on a GPU."""


DRAWING = "app.results.run.results._draw"
"""Figures of results."""


class FewDigits(Digits):
    """The first 300 of the embedded digits."""

    def load(self) -> RawData:
        """Fifty of them are the common test set."""
        return _few_digits()


@cache  # reading them takes a fifth of a run
def _few_digits() -> RawData:
    raw = Digits().load()
    cut = {"images": raw.images[:250], "labels": raw.labels[:250]}
    return replace(raw, **cut, test_images=raw.test_images[:50], test_labels=raw.test_labels[:50])


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


def outcomes(places: Sequence[str], folder: Path, *layers: Any, **options: Any) -> Iterator[Outcome]:
    """Train a tiny run on every device; its options are parsed once, which takes as long as the run."""
    parser, parsed = run_parser(), {**SMALL, "run.root": str(folder), **options}
    arguments = [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in parsed.items()]
    config = parser.parse_args(expand(arguments, layers))
    for place in places:
        config.trainer.accelerator = config.run.name = place
        with pytest.MonkeyPatch.context() as patch:
            if place == "cpu":  # whose numbers are compared, not its figures
                patch.setattr(DRAWING, lambda *_: {})
            run = run_of(parser, config.clone()).fit()
        yield _outcome(run, folder / place)


def outcome(accelerator: str, folder: Path, *layers: Any, **options: Any) -> Outcome:
    """Train a tiny run on a device."""
    return next(outcomes([accelerator], folder, *layers, **options))


def _outcome(run: Run, folder: Path) -> Outcome:
    assert (folder / "summary.json").is_file()
    return Outcome(
        run,
        run.federation.space.read(run.federation.net).cpu(),
        (folder / "metrics.jsonl").read_text(),
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
    there, here = outcomes((device, "cpu"), folder, *layers, **options)
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
