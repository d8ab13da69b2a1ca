"""Odd inputs: every one ends in success or in an error with cause and remedy, never in a traceback."""

import contextlib
import functools
import io
import os
import random
import warnings
from collections.abc import Iterator

import pytest
from run_kit import exit_code

from app.configuration import run_parser
from app.option_errors import options_of
from app.results.run.folder import NAME_VARIABLE

QUICK = (
    *("--tracking", "disabled", "--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"),
    *("--model.net", "MLP", "--model.net.hidden", "[4]", "--model.executor", "sequence"),
    *("--data.partition", "Iid", "--data.partition.clients", "3", "--data.partition.samples", "20"),
)
"""A run of a second."""

SCENES = {
    "plain": ((), {"data.partition": "datamodules.Iid", "data": "datamodules.Digits", "model.net": "app.models.MLP"}),
    "server": (
        ("--model.server", "app.federation.aggregation.FedAdam"),
        {"model.server": "app.federation.aggregation.FedAdam"},
    ),
    "dirichlet": (
        ("--data.partition", "DirichletLabels", "--data.partition.clients", "3"),
        {"data.partition": "datamodules.DirichletLabels"},
    ),
    "optimiser": (("--model.local.optimizer", "torch.optim.SGD"), {"model.local.optimizer": "torch.optim.SGD"}),
    **{
        recipe: (("--config", recipe), {f"defenses.{recipe.replace('-', '_')}": f"callbacks.{kind}"})
        for recipe, kind in {
            "memdefense": "MemDefense",
            "dp-sgd": "DPSGD",
            "dp-fedavg": "DPFedAvg",
            "nbafl": "NbAFL",
            "dropout": "Dropout",
            "l2": "L2",
            "mixup": "Mixup",
            "label-smoothing": "LabelSmoothing",
            "secure-aggregation": "SecureAggregation",
        }.items()
    },
    "membership": (
        ("--attacks.membership", "MembershipInference", "--attacks.membership.attacks", "[yeom]"),
        {"attacks.membership": "callbacks.MembershipInference"},
    ),
}
"""Recipes and options that the odd ones are added to, and the classes whose options are tried."""

VALUES = (
    *("", "null", "true", "-1", "0", "1", "2", "0.5", "1.5", "-0.0", "1e21", "1" + "0" * 30, "nan", ".inf", "-.inf"),
    *("x", "'1'", "[]", "{}", "[0]", "[[1]]", "[null]", "{a: 1}", "{1: 2}", "2020-01-01", "[1, ", "&a [*a]", "*"),
    *("{a: 1, a: 2}", "!!python/object:os.system {}", "é漢🙂", "\x00", "\n", "y" * 5000, "../..", "/", "[" * 300),
)

USUAL = ("0", "1", "2", "3", "0.1", "0.5", "0.9", "1.0", "true", "false", "null", "[1]", "[0.5]", "all")
"""Values that many options take."""

LEFT_OUT = {
    *("trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.accelerator"),  # would start processes
    *("trainer.profiler", "trainer.logger"),  # write to the terminal, or outside the folder
}


@functools.cache
def options(scene: str) -> tuple[str, ...]:
    """Options of the parser, and those of the classes of a scene."""
    own = [f"{prefix}.{name}" for prefix, path in SCENES[scene][1].items() for name in options_of(path)]
    return tuple(dict.fromkeys([*own, *general()] if scene == "plain" else own))


@functools.cache
def general() -> tuple[str, ...]:
    """Options that the parser itself knows, by name."""
    strings = (string.removeprefix("--") for action in run_parser()._actions for string in action.option_strings)
    words = ("help", "config", "print_config", "c", "h")
    return tuple(
        name
        for name in strings
        if name.rpartition(".")[2] not in words and name.removesuffix("+") not in LEFT_OUT and name[0] != "-"
    )


def command_lines(scene: str) -> Iterator[list[str]]:
    """Every option of a scene, one to three at a time, with values that others take and then with odd ones."""
    drawn = random.Random(scene)
    for values, most in ((USUAL, 2), (VALUES, 3)):
        names = drawn.sample(options(scene), len(options(scene)))
        while names:
            odd = [f"--{names.pop()}={drawn.choice(values)}" for _ in names[: drawn.randint(1, most)]]
            yield [*QUICK, *SCENES[scene][0], *odd]


def outcome(arguments) -> tuple[int, str]:
    """Exit code and what is printed about errors."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.pop(NAME_VARIABLE, None)  # which a run leaves for the processes that it starts
        code = exit_code("fit", *arguments)
    return code, errors.getvalue()


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A folder deep enough for `../..`."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("odd") / "a" / "b" / "c"
        folder.mkdir(parents=True)
        patch.chdir(folder)
        yield


@pytest.mark.usefixtures("quick", "no_figures")
@pytest.mark.parametrize("scene", SCENES)
def test_odd_options_end_in_success_or_in_an_error_with_a_remedy(scene):
    """Exit code 0, or 2 with cause and remedy; any exception but SystemExit fails."""
    for arguments in command_lines(scene):
        code, errors = outcome(arguments)
        assert code in (0, 2), (arguments, errors)
        if code == 2:
            assert errors.startswith("error: "), arguments
            assert "remedy: " in errors, arguments
        assert "Traceback" not in errors, arguments


SGD = ("--model.local.optimizer", "torch.optim.SGD")

REFUSED = {
    "clipping to nothing": (["--model.local.clip_norm", "0"], "--model.local.clip_norm is 0", "float > 0"),
    "number of a CPU": (
        ["--trainer.accelerator", "cpu", "--trainer.devices", "[1]"],
        "the trainer refuses its settings",
        "--trainer",
    ),
    "narrow server": (["--model.net.rate", "0.5"], "the server's network has 0.5 of its width", "--model.capacities"),
    "server that stands still": (["--model.server.lr", "0"], "--model.server.lr is 0", "(0, 10]"),
    "server that leaps": (["--model.server.lr", "1000"], "--model.server.lr is 1000", "(0, 10]"),
    "learning rate of zero": ([*SGD, "--model.local.optimizer.lr", "0"], "learning rate", "optimizer"),
    "negative learning rate": ([*SGD, "--model.local.optimizer.lr", "-1"], "learning rate", "optimizer"),
    "unfair q": (
        ["--model.server", "app.federation.aggregation.QFFL", "--model.server.q", "-1"],
        "--model.server.q is -1",
        "float >= 0",
    ),
    "momentum of one": (
        ["--model.server", "app.federation.aggregation.FedAvgM", "--model.server.momentum", "1"],
        "--model.server.momentum is 1",
        "[0, 1)",
    ),
    "FedAdam without tau": (
        ["--model.server", "app.federation.aggregation.FedAdam", "--model.server.tau", "0"],
        "--model.server.tau is 0",
        "float > 0",
    ),
    "no worker": (["--model.workers", "0"], "--model.workers is 0", "int >= 1"),
    "no capacities": (["--model.capacities", "[]"], "0 capacities for 3 clients", "--model.capacities.rates"),
    "unknown round of the transcript": (["--transcript.rounds", "[99]"], "round 99", "--transcript.rounds"),
    "attack after the end": (
        ["--attacks.m", "MembershipInference", "--attacks.m.rounds", "[99]"],
        "round 99",
        "--attacks.m.rounds",
    ),
    "attack on nothing": (["--attacks.m", "MembershipInference", "--attacks.m.targets", "[]"], "targets", "leave"),
    "attack twice": (
        ["--attacks.m", "MembershipInference", "--attacks.m.attacks", "[yeom, yeom]"],
        "more than once",
        "once",
    ),
    "two equal attacks": (["--attacks.a", "MembershipInference", "--attacks.b", "MembershipInference"], "equal", "out"),
    "no round": (["--trainer.max_epochs", "0"], "--trainer.max_epochs is 0", "1 or more"),
    "endless rounds": (["--trainer.max_epochs", "-1"], "--trainer.max_epochs is -1", "1 or more"),
    "half of the clients' blocks": (["--trainer.limit_train_batches", "0.5"], "limit_train_batches", "participation"),
    "steps and epochs": (
        ["--model.local.steps", "3", "--model.local.epochs", "2"],
        "local.steps is 3 and local.epochs is 2",
        "--model.local.steps",
    ),
    "warm-up longer than the run": (
        ["--config", "adversarial-regularisation", "--defenses.adversarial_regularisation.warmup", "5"],
        "warms up for 5",
        "warmup",
    ),
    "MemDefense that spares all": (
        ["--config", "memdefense", "--defenses.memdefense.spare", "['*']"],
        "spares every parameter",
        "spare",
    ),
    "noise on uploads that nobody sends": (["--config", "local", "--config", "nbafl"], "NbAFL", "remedy"),
    "encryption of nothing": (["--config", "local", "--config", "paillier-simulated"], "Paillier", "remedy"),
    "defense among attacks": (["--attacks.m", "MemDefense"], "--attacks.m is MemDefense", "--defenses.NAME MemDefense"),
    "defense among Lightning's": (
        ["--trainer.callbacks+=callbacks.MemDefense"],
        "MemDefense",
        "--defenses.NAME MemDefense",
    ),
    "attack among defenses": (
        ["--defenses.m", "MembershipInference"],
        "--defenses.m is MembershipInference",
        "--attacks.NAME MembershipInference",
    ),
    "run name that leaves the root": (["--run.name", ".."], "--run.name", "letters"),
    "absolute run name": (["--run.name", "/tmp/x"], "--run.name", "letters"),
    "optimiser that wants a closure": (["--model.local.optimizer", "torch.optim.LBFGS"], "LBFGS", "optimizer"),
    "schedule that wants a metric": (
        ["--model.local.lr_schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau"],
        "ReduceLROnPlateau",
        "lr_schedule",
    ),
    "schedule of no step": (
        ["--model.local.lr_schedule", "torch.optim.lr_scheduler.StepLR", "--model.local.lr_schedule.step_size", "0"],
        "schedule cannot be followed",
        "lr_schedule",
    ),
    "no validation": (["--trainer.check_val_every_n_epoch", "0"], "check_val_every_n_epoch", "1 or more"),
    "averaged weights": (
        ["--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.1"],
        "StochasticWeightAveraging",
        "remedy",
    ),
    "unknown metric": (
        ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=server/acuracy"],
        "server/acuracy",
        "server/accuracy",
    ),
    "network beyond the memory": (["--model.net.hidden", "[2000000, 2000000]"], "GB", "--model.net"),
}
"""Options, words of the cause, and words of consequence or remedy."""


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_training(case, quick):
    """Exit code 2; the option and its value are named, and what to do instead; no round was trained."""
    arguments, cause, remedy = REFUSED[case]
    code, errors = outcome([*QUICK, *arguments])
    assert code == 2, errors
    assert cause in errors
    assert remedy in errors[errors.index(cause) :]
    assert "remedy: " in errors
    assert "round 1/" not in errors
