"""Every method, server optimiser, executor and precision on a device: it ends where the same run on the CPU does."""

import pytest
from device_kit import CNN, DRAWING, MLP, assert_as_on_cpu, recipes

NETS = {
    "fedbn": {**CNN, "model.net.norm": "batch", "model.net.statistics": "running"},
    "waffle": {"model.net.net.hidden": [8], "model.net.factors": {"*hidden1": 6}},
    "waffle-literal": {"model.net.net": "MLP", "model.net.net.hidden": [8], "model.net.factors": {"*hidden1": 6}},
    "waffle-lenet": {"model.net.net.padding": 4},
    "waffle-convnet": {"model.net.factors": {"*conv": 3}},
}
"""Networks of methods that have their own, as small as digits allow."""

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.parametrize("method", recipes("methods"))
def test_method(device, tmp_path, method):
    """Rounds, evaluation and summary of every method."""
    assert_as_on_cpu(device, tmp_path, method, **NETS.get(method, MLP))


@pytest.mark.parametrize("executor", ["sequence", "threads", "vectorised"])
def test_executor(device, tmp_path, executor):
    """Convolutions, batch norm and dense layers of unequal widths, evaluated in every round."""
    every = {"model.evaluation.every": 1, "trainer.check_val_every_n_epoch": 1}
    assert_as_on_cpu(device, tmp_path, "heterofl", **CNN, **every, **{"model.executor": executor, "model.workers": 2})


@pytest.mark.parametrize(
    "options",
    [
        {"model.net.statistics": "running"},  # which cannot be vectorised, unlike the others
        {
            **{"model.net.statistics": "posthoc", "data.augment": "CropFlip", "data.augment.padding": 1},
            **{"model.local.mask_labels": True, "model.uncovered_cells": "zero"},
        },
        {
            **{"model.net.norm": "group", "model.net.channels_per_group": 2, "model.net.u": 4},
            **{"model.newcomers.clients": 1, "model.newcomers.visits": 1, "model.personal": ["*classifier*"]},
            "model.local.channels_last": True,
        },
    ],
    ids=lambda options: ",".join(options),
)
def test_option(device, tmp_path, options):
    """Augmentation, kinds of normalisation, memory layout, masked labels, newcomers."""
    assert_as_on_cpu(device, tmp_path, "heterofl", **(CNN | options))


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "64-true"])
def test_precision(device, tmp_path, precision, monkeypatch):
    """Parameters or products in another precision than single, with an attack on the released model and uploads.

    Autocast chooses the operations by device, so numbers of mixed precision are near those of the CPU, not the same.
    """
    monkeypatch.setattr(DRAWING, lambda *_: {})
    there = assert_as_on_cpu(
        device,
        tmp_path,
        "heterofl",
        "membership",
        exact=not precision.endswith("mixed"),
        **MLP,
        **{
            "trainer.precision": precision,
            "data.partition.clients": 2,
            "model.capacities.large": 1,
            "attacks.membership.attacks": ["yeom", "lira-offline"],
            "attacks.membership.shadows.count": 2,
            "attacks.membership.controls": "skip",
        },
    )
    assert all("auc" in result.numbers for result in there.run.results if "." in result.label)
