"""Finished tiny runs of several kinds of networks, and their models as the federation itself evaluates them."""

import csv
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_kit import leave_out_figures, train
from sklearn.datasets import load_digits

from app import load_run
from app.federation.evaluation import statistics_context
from datamodules import MNIST

LEARNING = ("--model.local.epochs", "4", "--model.evaluation.clients", "false")
NARROW = ("--model.capacities", "[1.0, 0.5, 0.5, 1.0]")
CNN = ("--model.net", "CNN", "--model.net.u", "2", *NARROW)
WAFFLE = ("--model.net", "Factorised", "--model.net.net", "MLP", "--model.net.factors", '{"layers.hidden1": 6}')
KINDS = {
    "private-head": (*NARROW, "--model.local.epochs", "8", "--model.personal", '["*classifier*"]'),
    # in double precision: torch's own kernel rounds the statistics of a batch to 4e-5 of a logit
    "by-batch": (*CNN, "--model.net.statistics", "batch", "--trainer.precision", "64-true"),
    "posthoc": (*CNN, "--model.net.statistics", "posthoc"),
    "running": (*CNN, "--model.net.statistics", "running"),
    "sampled-factors": (*WAFFLE, "--model.local.epochs", "6", "--model.net.evaluation", "sample"),
    "padded": ("--data", "trained_kit.SmallMNIST", "--data.pad", "2"),
}
"""Options of the runs by name: submodels, private parts, and what networks keep of batches."""


class SmallMNIST(MNIST):
    """The embedded digits as bytes in the place of MNIST's files; MNIST's own code pads them."""

    def open(self, train, download=False):
        """Every fifth digit is for the test."""
        bundle = load_digits()
        chosen = (np.arange(len(bundle.target)) % 5 > 0) == train
        images = torch.from_numpy(bundle.images[chosen] * 255 / 16).round().byte()
        classes = [f"{digit} - as a word" for digit in range(10)]
        return SimpleNamespace(data=images, targets=bundle.target[chosen].tolist(), classes=classes)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folder of a run of the named kind, trained when it is asked for first."""
    root, folders = tmp_path_factory.mktemp("trained"), {}

    def folder(kind):
        if kind not in folders:
            with pytest.MonkeyPatch.context() as patch:
                leave_out_figures(patch)
                folders[kind] = train(root, kind, *LEARNING, *KINDS[kind], rounds=2)
        return folders[kind]

    return folder


@pytest.fixture(scope="session")
def loaded(trained):
    """The run of the named kind, opened once: using its models changes nothing in it."""
    return functools.cache(lambda kind: load_run(trained(kind), trust=True))


def images_of(run, samples=None):
    """Images (batch, channels, height, width) on the 0..1 scale of a loaded run, by default its common test set."""
    data = run.run.data
    images = data.store.images[data.common_test if samples is None else samples].movedim(-1, 1)
    return images / 255 if images.dtype == torch.uint8 else images


def released_logits(run, images=None):
    """Logits of the server's network, as the run computes them, for normalised images or the common test set."""
    federation, data = run.run.federation, run.run.data
    members = torch.cat([data.train_indices(client) for client in range(data.clients)])
    if images is None:
        images, _ = data.store.batch(data.common_test, next(federation.net.parameters()).dtype)
    federation.net.eval()
    with torch.no_grad(), statistics_context(federation.net, data.store, members, federation.evaluation.batch_size):
        return federation.net(images).double()


def recorded_accuracies(folder):
    """Accuracy of every client on its own test set, as the run wrote it."""
    with (folder / "everyone.csv").open(newline="") as file:
        return {int(row["client"]): float(row["own"]) for row in csv.DictReader(file)}
