"""Targets that are trained once for all tests of attacks."""

from dataclasses import replace

import attack_kit
import numpy as np
import pytest
import torch
from attack_kit import memorised_case, noisy_case

from app.attacks.controls import TWIN_CLIENT
from app.federation.execution import recorded_step


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """The networks are so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _recordings():
    """As outside of tests: shadows take thousands of steps of few kinds, which are worth recording."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_step, "WORTHWHILE", 16)
        yield


@pytest.fixture(scope="session")
def toy(_one_thread):
    """Random labels, one model that has memorised its members and one that was never trained."""
    return attack_kit.toy()


@pytest.fixture(scope="session")
def shadow_folder(tmp_path_factory):
    """Of shadows that several cases share."""
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(scope="session")
def memorised(toy, shadow_folder):
    """The memorised model with 16 shadows of each kind."""
    return memorised_case(16, shadow_folder)


@pytest.fixture(scope="session")
def twins(toy, memorised):
    """Members against their own images with wrong labels."""
    samples, target = toy.audited[TWIN_CLIENT], replace(memorised.target, client=TWIN_CLIENT)
    return replace(memorised, target=target, samples=samples, truth=np.isin(samples, toy.members))


@pytest.fixture(scope="session")
def noisy(_one_thread):
    """A partly learnable problem whose model fits its noisy labels: samples differ in how hard they are."""
    return noisy_case()
