"""Numbers outside their ranges are refused before training, whether objects are made in Python or by the parser."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from dataclasses import is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest
from federation_kit import Blobs, run, small_federation

import app.attacks
import app.federation
import app.models
import callbacks
import datamodules
from app.attacks.membership.base import MembershipAttack
from app.attacks.membership.nasr import NasrSettings
from app.attacks.protocols.base import Protocol
from app.attacks.protocols.memdefense import MemDefensePaper
from app.attacks.protocols.taxonomy import Taxonomy
from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.attacks.reconstruction.base import ReconstructionAttack
from app.attacks.reconstruction.inversion.extraction import ImageExtraction, Matching
from app.attacks.shadows.shadow_store import ShadowSettings
from app.auditing import AttackSuite
from app.common.errors import UserError
from app.common.ranges import LARGEST, Count, Positive, Ranged, Seed, Share, declared_types, fits, range_problems
from app.federation.aggregation import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from app.federation.all_clients import Newcomers
from app.federation.capacities import Capacities
from app.federation.evaluation import Evaluation
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.federation.submodels import FjORD, SubmodelMethod
from app.federation.transcript import TranscriptSettings
from app.models import CNN, MLP, ConvNet, Factorised
from app.models.base import DataShape, ScalableNet
from callbacks import DPSGD, L2, GradientAscent, MaliciousServer, MembershipInference, Mixup, Representations, Tripwire
from datamodules import Digits, DirichletSizes, Iid, Natural, Shards
from datamodules.augmentation import CropFlip
from datamodules.base import FederatedDataModule
from datamodules.partitions import Partition
from datamodules.split import Holdout

BASES = {
    app.attacks: (MembershipAttack, Protocol, ReconstructionAttack, ImageExtraction),
    app.federation: (SubmodelMethod, ServerOptimizer, FederatedModule),
    app.models: (ScalableNet,),
    callbacks: (FederatedCallback,),
    datamodules: (FederatedDataModule, Partition),
}

SETTINGS = (
    *(LocalTraining, Evaluation, Newcomers, Capacities, TranscriptSettings, Holdout, CropFlip),
    *(ShadowSettings, NasrSettings, TrapWeights),
)

MADE_BY_THE_PROGRAM = {
    "MovedWindow": "a method that an attack puts in place of the run's",
}


def _subclasses(base: type) -> set[type]:
    return {base}.union(*(_subclasses(kind) for kind in base.__subclasses__()))


def catalogue() -> list[type]:
    """Every class that a configuration can name, and the settings that they take."""
    for package in BASES:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    kinds = {
        kind
        for bases in BASES.values()
        for base in bases
        for kind in _subclasses(base)
        if kind.__module__.startswith(tuple(package.__name__ for package in BASES))
        and not kind.__name__.startswith("_")
        and not kind.__module__.startswith("app.benchmarks")
    }
    named = [kind for kind in kinds if kind.__name__ not in MADE_BY_THE_PROGRAM]
    return sorted([*named, *SETTINGS], key=lambda kind: kind.__name__)


def unranged(hint: Any) -> bool:
    """Whether a type allows any number at all."""
    if get_origin(hint) in (Union, UnionType, list, tuple, dict) or hasattr(hint, "__args__"):
        return any(unranged(part) for part in get_args(hint) if not isinstance(part, list))
    return hint in (int, float)


def test_every_number_of_every_constructor_has_a_range():
    """Of all defenses, attacks, protocols, recorders, datasets, partitions, networks, methods and server optimisers."""
    kinds = catalogue()
    assert len(kinds) > 80
    loose = [
        f"{kind.__name__}.{name}: {hint}"
        for kind in kinds
        for name, hint in declared_types(kind).items()
        if name != "return" and unranged(hint)
    ]
    assert not loose


def test_every_declared_type_is_known():
    """A name that only type checkers import would hide the range of its argument."""
    for kind in catalogue():
        makers = [vars(base).get("__init__") for base in kind.__mro__]
        for maker in filter(inspect.isfunction, makers):
            if maker.__module__.split(".")[0] in ("app", "callbacks", "datamodules") or is_dataclass(kind):
                assert set(inspect.get_annotations(maker)) <= set(declared_types(kind)), kind


WRONG: dict[str, tuple[Any, str, str]] = {
    "count": (LocalTraining(epochs=0), "epochs is 0", "int >= 1"),
    "truth in place of a count": (LocalTraining(epochs=True), "epochs is True", "int >= 1"),
    "fraction of a count": (LocalTraining(batch_size=2.5), "batch_size is 2.5", "int >= 1"),
    "text in place of a count": (LocalTraining(batch_size="2"), "batch_size is 2", "int >= 1"),
    "nothing in place of a count": (LocalTraining(epochs=None), "epochs is None", "int >= 1"),
    "huge count": (Evaluation(every=10**21), f"every is {10**21}", "int >= 1"),
    "not a number": (LocalTraining(proximal=math.nan), "proximal is nan", "float >= 0"),
    "infinite": (LocalTraining(clip_norm=math.inf), "clip_norm is inf", "float > 0"),
    "huge whole number in place of a fraction": (L2(10**400), f"weight is {10**400}", "float >= 0"),
    "tuple in a tuple": (LocalTraining(lr_factors=((0.5, 0.0),)), "lr_factors is ((0.5, 0.0),)", "float > 0"),
    "list": (Capacities(rates=[1.0, 1.5]), "rates is [1.0, 1.5]", "float in (0, 1]"),
    "one number in place of a list": (Capacities(rates=0.5), "rates is 0.5", "a list of float in (0, 1]"),
    "one number or a list, the number": (Natural(0), "owners_per_client is 0", "int >= 1 or a list of int >= 1"),
    "one number or a list, the list": (Natural([2, 0]), "owners_per_client is [2, 0]", "int >= 1"),
    "number or word": (DirichletSizes(shuffle_seed=-1), "shuffle_seed is -1", "int in [0, 2^32 - 1]"),
    "seed": (Digits(seed=2**32), f"seed is {2**32}", "int in [0, 2^32 - 1]"),
    "argument of the base class": (Digits(label_noise=1.0), "label_noise is 1.0", "float in [0, 1)"),
    "partition of the data": (Digits(partition=Shards(shard_size=0)), "partition.shard_size is 0", "int >= 1"),
    "shares that are held out": (Digits(holdout=Holdout(shadow=1.0)), "holdout.shadow is 1.0", "float in [0, 1)"),
    "augmentation": (Digits(augment=CropFlip(-1)), "augment.padding is -1", "int >= 0"),
    "network": (partial(MLP, hidden=(8, 0)), "hidden is (8, 0)", "int >= 1"),
    "network in a network": (partial(Factorised, net=partial(CNN, u=0)), "net.u is 0", "int >= 1"),
    "mapping": (partial(Factorised, factors={"*": 0}), "factors is {'*': 0}", "int >= 1"),
    "server optimiser": (partial(FedAvg, lr=0.0), "lr is 0.0", "float in (0, 10]"),
    "server momentum": (partial(FedAvgM, momentum=1.0), "momentum is 1.0", "float in [0, 1)"),
    "pair": (partial(FedAdam, betas=(0.9, 1.0)), "betas is (0.9, 1.0)", "float in [0, 1)"),
    "method": (FjORD([0.5, 2.0]), "levels is [0.5, 2.0]", "float in (0, 1]"),
    "defense": (DPSGD(noise=1.0, clip=0.0), "clip is 0.0", "float > 0, inf for none"),
    "check of a defense": (Tripwire(repeated=1.5), "repeated is 1.5", "float in (0, 1]"),
    "trap weights": (TrapWeights(scale=1.5), "scale is 1.5", "float in (0, 1]"),
    "rounds between attacks": (MembershipInference(every=-1), "every is -1", "int >= 0"),
    "rounds of an attack": (GradientAscent(rounds=[3, 0]), "rounds is [3, 0]", "int >= 1"),
    "round of an attack": (MaliciousServer(round=0), "round is 0", "int >= 1"),
    "ascent": (GradientAscent(samples=3), "samples is 3", "int >= 4"),
    "recorder": (Representations(9), "samples is 9", "int >= 10"),
    "kept rounds": (TranscriptSettings(rounds=[0]), "rounds is [0]", "int >= 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_objects_made_in_python_are_refused(case):
    """With option, value and range."""
    made, cause, allowed = WRONG[case]
    [problem] = range_problems(made, "model")
    option = cause.split(" is ")[0]
    assert problem.cause == f"--model.{cause}"
    assert problem.consequence == f"it must be {allowed}"
    assert problem.remedy == f"set --model.{option} in that range"


SOUND = {
    "bounds": LocalTraining(epochs=1, steps=LARGEST, batch_size=1, lr_factors=((1, 1e-9),), proximal=0, clip_norm=None),
    "whole numbers in place of fractions": Capacities(rates=[1, 0.5], shares=[1, 2]),
    "numbers of NumPy": Mixup(np.float32(0.5)),
    "counts of NumPy": Iid(np.int64(3), samples=np.int32(4)),
    "a list as a tuple": Natural((1, 2)),
    "a word": DirichletSizes(shuffle_seed="run"),
    "largest seed": Digits(seed=2**32 - 1),
    "no bound": DPSGD(noise=0.0, clip=math.inf),
    "checks switched off": Tripwire(repeated=None, variation=None),
    "network": partial(Factorised, net=partial(ConvNet, channels=[1]), factors={"*": 1}, alpha=None),
}


@pytest.mark.parametrize("case", SOUND)
def test_numbers_in_range_pass(case):
    """Those at the ends of the ranges, too."""
    assert not list(range_problems(SOUND[case], "model"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(DataShape(1, 4, 4, 2), hidden=(0,)), "--model.net.hidden is (0,)"),
        (lambda: Iid(0).assign(np.zeros(9, dtype=np.int64), None, 0), "--data.partition.clients is 0"),
        (lambda: Digits(test_fraction=1.0).setup(), "--data.test_fraction is 1.0"),
        (lambda: Taxonomy(shadows=0), "shadows of taxonomy is 0"),
        (lambda: MemDefensePaper(settings=NasrSettings(kernels=0)), "kernels of NasrSettings is 0"),
        (lambda: ConvergenceRate(tolerance=0.0), "tolerance of convergence-rate is 0.0"),
        (lambda: RollingModel(traps=TrapWeights(sigma=0.0)), "sigma of TrapWeights is 0.0"),
        (lambda: Matching(steps=0), "steps of Matching is 0"),
        (lambda: MembershipInference(rounds=[0]), "rounds of AuditSettings is (0,)"),
        (lambda: MembershipInference(shadows=ShadowSettings(count=1)), "count of ShadowSettings is 1"),
        (lambda: AttackSuite([GradientAscent(steps=0)]), "steps of GradientAscent is 0"),
    ],
)
def test_objects_that_are_used_alone_refuse(make, message):
    """Where they are made, or where they are used."""
    with pytest.raises(UserError) as error:
        make()
    assert error.value.problems[0].cause == message


def test_all_that_is_out_of_range_is_refused_before_the_first_round():
    """Of the federation, its data and its callbacks, in one error."""
    federation = small_federation(local=LocalTraining(epochs=0))
    wrong = [L2(-1.0), MembershipInference(every=-1)]
    with pytest.raises(UserError) as error:
        run(federation, Blobs(), 1, wrong)
    causes = [problem.cause for problem in error.value.problems]
    assert causes == [
        "--model.local.epochs is 0",
        "--defenses.NAME.weight is -1.0 (L2)",
        "--attacks.NAME.every is -1 (MembershipInference)",
    ]


def test_values_are_plain_numbers():
    """A type checks a number and leaves it an int or a float."""
    assert (Share.read("1"), Count.read("3")) == (1.0, 3)
    assert (type(Share.checked(1)), type(Count.checked(np.int64(3)))) == (float, int)
    assert not fits(Count, "3")
    assert [fits(Seed, value) for value in (0, 2**32 - 1, -1, 2**32, 1.0, True, None)] == [True] * 2 + [False] * 5
    assert [fits(Positive, value) for value in (1e-300, 0, -1, math.nan, math.inf)] == [True] + [False] * 4
    assert issubclass(Share, Ranged)
