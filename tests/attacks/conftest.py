"""Worlds that are trained once for all tests of attacks."""

import numpy as np
import pytest
import torch
from attack_kit import World, noisy_world

from app.attacks.controls import make_toy
from app.attacks.model_query import ModelQuery
from app.attacks.shadows.shadow_store import CentralShadows


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """The networks are so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toy(_one_thread):
    """Random labels, one model that has memorised its members and one that was never trained."""
    return make_toy(0)


@pytest.fixture(scope="session")
def shadow_folder(tmp_path_factory):
    """Where shadows are kept that several worlds share."""
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(scope="session")
def memorised(toy, shadow_folder):
    """The memorised model with 16 shadows of each kind."""
    source = CentralShadows(toy.knowledge, toy.audited, 16, shadow_folder)
    return World(toy.knowledge, toy.memorised, toy.samples, toy.truth, source, ModelQuery(toy.knowledge))


@pytest.fixture(scope="session")
def twins(toy, memorised, shadow_folder):
    """Members against their own images with wrong labels."""
    samples = np.concatenate([toy.members, toy.twins])
    source = CentralShadows(toy.knowledge, toy.audited_with_twins, 16, shadow_folder)
    return World(toy.knowledge, toy.memorised, samples, np.isin(samples, toy.members), source, memorised.query)


@pytest.fixture(scope="session")
def noisy(_one_thread):
    """A partly learnable problem whose model fits its noisy labels: samples differ in how hard they are."""
    return noisy_world()
