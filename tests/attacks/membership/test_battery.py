"""Every membership attack: memorised members are found, nothing is found where there is nothing, results repeat."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from attack_kit import area, chance_bound, memorised_toy

from app.attacks.membership.catalogue import ATTACKS
from app.attacks.model_query import ModelQuery


@dataclass(frozen=True)
class Bounds:
    """What one attack must reach on the memorised toy.

    Attributes:
        memorised: smallest AUC on memorised members.
        options: of the attack.
        quick: further options where only repetition is tested.
        small: whether it runs on 4 shadows instead of 16, since it trains a network.
    """

    memorised: float = 0.9
    options: dict = field(default_factory=dict)
    quick: dict = field(default_factory=dict)
    small: bool = False


BOUNDS = {name: Bounds() for name in ATTACKS} | {
    "shokri": Bounds(options={"shadows_used": 8}, quick={"shadows_used": 2}),
    "trajectory-uploads": Bounds(0.98, {"attack_epochs": 20}, {"attack_epochs": 3}, small=True),
    "trajectory-distilled": Bounds(
        0.98, {"attack_epochs": 20, "epochs": 10}, {"attack_epochs": 3, "epochs": 2}, small=True
    ),
    "nasr": Bounds(0.95, {"kernels": 4}, {"epochs": 2}, small=True),
}
every_attack = pytest.mark.parametrize("name", ATTACKS)
every_attack_without_network = pytest.mark.parametrize("name", [name for name in ATTACKS if not BOUNDS[name].small])


@cache
def made(name):
    """One attack for several tests, so that its networks are trained once."""
    return ATTACKS[name](**BOUNDS[name].options)


@pytest.fixture
def case(name, memorised):
    """The memorised toy, with as many shadows as the attack is tested with."""
    return memorised_toy() if BOUNDS[name].small else memorised


@every_attack
def test_memorised_samples_are_found(name, case):
    """Random labels that the model fits perfectly."""
    assert case.auc(made(name)) >= BOUNDS[name].memorised


@every_attack
def test_nothing_to_find(name, case, toy):
    """An untrained model, and the memorised one with permuted membership: chance."""
    bound = chance_bound(case.truth)
    assert abs(case.auc(made(name), toy.untrained) - 0.5) <= bound
    permuted = np.random.default_rng(0).permutation(case.truth)
    assert abs(case.auc(made(name), truth=permuted) - 0.5) <= bound


@every_attack_without_network
def test_labels_matter_where_the_attack_says_so(name, twins, memorised):
    """Trained images with wrong labels are no members; attacks that use no label cannot know."""
    source = memorised.source if ATTACKS[name].shadows == "out" else None
    found = area(twins.scores(made(name), source=source), twins.truth)
    assert found >= 0.9 if ATTACKS[name].uses_labels else found < 0.6


@every_attack
def test_same_scores_again_and_no_random_state_touched(name, case):
    """A new attack with new queries; all randomness is keyed, and the global generators stay as they are."""
    options = BOUNDS[name].options | BOUNDS[name].quick
    first = case.scores(ATTACKS[name](**options) if BOUNDS[name].quick else made(name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        context = case.context()
        context.query = ModelQuery(case.knowledge)
        again = ATTACKS[name](**options).scores(case.target, case.samples, context)
        assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert np.array_equal(first, again)
