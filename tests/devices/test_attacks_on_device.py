"""Every attack on a device finds what it finds on the CPU."""

from functools import partial

import pytest
from device_kit import CNN, DRAWING, EXECUTOR_CHOICE, MLP, assert_as_on_cpu, protocol, recipes

from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.inversion.evaluator import train_evaluator

SGD = {"model.local.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}}
"""Adam hides the gradient from attacks on updates."""
INVERSION = "app.attacks.reconstruction.inversion"
UNWATCHED = {"model.evaluation.clients": False}
"""Clients are evaluated on the device in the tests of methods."""
FEW = {
    **{"attacks.membership.controls": "skip", "attacks.membership.shadows.count": 2},
    **{"data.partition.clients": 2, "model.capacities.large": 1},
}
"""One client of each width."""
QUICK = {
    "shokri": {"shadows_used": 2},
    "trajectory-distilled": {"attack_epochs": 2, "epochs": 2},
    "trajectory-uploads": {"attack_epochs": 2},
    "nasr": {"epochs": 1, "kernels": 4},
}
"""Settings of attacks that would take long."""

RECIPES = {
    "attack-memdefense": protocol("memdefense.MemDefensePaper", clients=1, settings={"epochs": 1, "kernels": 4}),
    "attack-memdefense-collusion": protocol(
        "collusion.MemDefenseCollusion", colluders=[0, 1], clients=1, settings={"epochs": 1, "kernels": 4}
    ),
    "attack-taxonomy": protocol(
        "taxonomy.Taxonomy", shadows=2, shadow_size=40, shadow_epochs=1, student_epochs=2, attack_epochs=1
    ),
    "attack-waffle": protocol("waffle.WafflePaper", clients=1),
    "convergence-rate": SGD,
    "gradient-inversion": {
        **SGD,
        "attacks.reconstruction.attacks": [
            "dense-inversion",
            {"class_path": f"{INVERSION}.uploads.GradientInversion", "init_args": {"steps": 2}},
        ],
    },
    "membership": {**FEW, "attacks.membership.attacks": ["yeom", "lira-offline", "rmia-offline"]},
    "membership-augmented": {
        **FEW,
        "attacks.membership.attacks": [
            {"class_path": "app.attacks.membership.lira.LiRAOffline", "init_args": {"queries": 2}},
        ],
        "data.augment": {"class_path": "datamodules.CropFlip", "init_args": {"padding": 1, "flip": False}},
    },
    "membership-fedmia": {**FEW, "data.partition.clients": 3},
    "membership-large": FEW,
    "membership-adaptive": {**FEW, "attacks.membership.attacks": ["yeom"], "transcript.last": 2},
    "membership-white-box": {
        **FEW,
        "attacks.membership.attacks": [
            "yeom",
            {"class_path": "app.attacks.membership.nasr.Nasr", "init_args": {"epochs": 1, "kernels": 4}},
        ],
    },
    "model-inversion": {
        "attacks.reconstruction.attacks": [
            {"class_path": f"{INVERSION}.released_model.{name}", "init_args": {"steps": 2}}
            for name in ("ModelInversion", "DeepInversionAttack")
        ],
    },
    "model-inversion-uploads": {
        "attacks.reconstruction.attacks": [
            {"class_path": f"{INVERSION}.released_model.ModelInversion", "init_args": {"steps": 2, "target": "uploads"}}
        ],
    },
    "representations": {"attacks.representations.samples": 20},
    "rolling-model": SGD,
    "trap-weights": SGD,
}
"""Settings under which every recipe has a result, and has it soon."""

LAYERS = {
    "factor-recovery": ("waffle",),
    "membership-adaptive": ("heterofl", "memdefense", "nbafl", "membership"),
}
"""Method and defenses that attacks need; HeteroFL for all others."""

NETS = {
    "factor-recovery": {"model.net.net.hidden": [8], "model.net.factors": {"*hidden1": 6}},
    "model-inversion": {**CNN, "model.net.statistics": "running"},
}
"""Networks that attacks need; two dense layers for all others."""

pytestmark = pytest.mark.usefixtures("no_figures", "short_inversions")


@pytest.fixture
def short_inversions(monkeypatch):
    """Two epochs of the independent classifier, and two images in a figure."""
    monkeypatch.setattr(f"{INVERSION}.released_model.train_evaluator", partial(train_evaluator, epochs=2))
    monkeypatch.setattr("app.results.attacks.reconstruction_figures.MOST_IMAGES", 2)


@pytest.mark.parametrize("recipe", recipes("attacks"))
def test_attack_recipe(device, tmp_path, recipe):
    """Membership inference, the papers' evaluations, malicious servers, inversions, factors, representations."""
    layers = (*LAYERS.get(recipe, ("heterofl",)), recipe)
    options = {**UNWATCHED, **NETS.get(recipe, MLP), **RECIPES.get(recipe, {})}
    there = assert_as_on_cpu(device, tmp_path, *layers, **options)
    assert all(result.numbers for result in there.run.results), "every attack has a result"


@pytest.fixture(scope="module")
def all_membership_attacks(device, tmp_path_factory):
    """One run that ends with all of them, on the released model and on uploads."""
    named = [
        {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": QUICK.get(name, {})}
        for name, kind in ATTACKS.items()
    ]
    few = {**FEW, "attacks.membership.shadows.count": 4, "data.partition.clients": 3}
    options = {**UNWATCHED, **MLP, **few, "attacks.membership.attacks": named}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EXECUTOR_CHOICE, lambda context: True)
        patch.setattr(DRAWING, lambda *_: {})
        return assert_as_on_cpu(device, tmp_path_factory.mktemp("membership"), "heterofl", "membership", **options)


@pytest.mark.parametrize("attack", ATTACKS)
def test_membership_attack(all_membership_attacks, attack):
    """Every attack has results, which are those of the CPU."""
    own = [result for result in all_membership_attacks.run.results if result.label.startswith(f"{attack}.")]
    assert own
    # FedMIA compares uploads, and has no other target
    assert all(
        "auc" in result.numbers for result in own if not result.label.startswith("fedmia") or ".uploads" in result.label
    )
