"""Every attack on a device finds what it finds on the CPU."""

import pytest
from device_kit import CNN, EXECUTOR_CHOICE, MLP, assert_as_on_cpu, protocol, recipes

from app.attacks.membership.catalogue import ATTACKS

SGD = {"model.local.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}}
"""Adam hides the gradient from attacks on updates."""
INVERSION = "app.attacks.reconstruction.inversion"
FEW = {"attacks.membership.controls": "skip", "attacks.membership.shadows.count": 2}
QUICK = {
    "trajectory": {"attack_epochs": 2, "student_epochs": 2},
    "trajectory-uploads": {"attack_epochs": 2},
    "nasr": {"epochs": 1, "kernels": 4},
}
"""Settings of attacks that would take long."""

RECIPES = {
    "attack-memdefense": protocol("memdefense.MemDefensePaper", clients=1, settings={"epochs": 1, "kernels": 4}),
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
    "membership-adaptive": {**FEW, "attacks.membership.attacks": ["yeom"], "transcript.last": 2},
    "membership-white-box": {
        **FEW,
        "attacks.membership.attacks": [
            "yeom",
            {"class_path": "app.attacks.membership.nasr.Nasr", "init_args": {"epochs": 1}},
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

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.parametrize("recipe", recipes("attacks"))
def test_attack_recipe(device, tmp_path, recipe):
    """Membership inference, the papers' evaluations, malicious servers, inversions, factors, representations."""
    layers = (*LAYERS.get(recipe, ("heterofl",)), recipe)
    there = assert_as_on_cpu(device, tmp_path, *layers, **{**NETS.get(recipe, MLP), **RECIPES.get(recipe, {})})
    assert all(result.numbers for result in there.run.results), "every attack has a result"


@pytest.fixture(scope="module")
def all_membership_attacks(device, tmp_path_factory):
    """One run that ends with all of them, on the released model and on uploads."""
    named = [
        {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": QUICK.get(name, {})}
        for name, kind in ATTACKS.items()
    ]
    options = {**MLP, **FEW, "attacks.membership.attacks": named, "attacks.membership.shadows.count": 6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EXECUTOR_CHOICE, lambda context: True)
        return assert_as_on_cpu(device, tmp_path_factory.mktemp("membership"), "heterofl", "membership", **options)


@pytest.mark.parametrize("attack", ATTACKS)
def test_membership_attack(all_membership_attacks, attack):
    """Every attack has results, which are those of the CPU."""
    own = [result for result in all_membership_attacks.run.results if result.label.startswith(f"{attack}.")]
    assert own
    assert all("auc" in result.numbers for result in own)
