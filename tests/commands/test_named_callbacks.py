"""Defenses and attacks by name: their recipes are loaded, each stands where it belongs, and none stands there twice."""

import pytest
import run_kit
from run_kit import command, exit_code, parsed

from app.common.errors import UserError
from app.experiments.matrix import planned_runs
from app.experiments.parsing import parse_all
from app.experiments.reading import read_spec
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.recipes import layered
from app.results.run.description import described_run
from app.results.run.labels import labels_of
from app.run import Run, build_run
from callbacks import MembershipInference, MemDefense
from datamodules import Digits


class Watcher(FederatedCallback):
    """An attack of the user's own."""

    kind = "attack"


run_kit.Watcher = Watcher

WRITTEN = {
    "null": {"defenses": {"memdefense": None}},
    "empty": {"defenses": {"memdefense": {}}},
    "list": {"defenses": ["memdefense"]},
    "name": {"defenses": "memdefense"},
}


@pytest.mark.parametrize("form", WRITTEN)
def test_a_named_defense_is_its_recipe(form):
    """In all forms in which a file may name it, as `compare` does."""
    assert layered([WRITTEN[form]]) == layered(["memdefense"])


@pytest.mark.parametrize("arguments", [["--defenses", "memdefense"], ["--defenses.memdefense"]])
def test_a_named_defense_on_the_command_line(arguments):
    """Without a class, it is the recipe of that name."""
    assert parsed(*arguments) == parsed("--config", "memdefense")


def test_a_recipe_comes_with_its_other_settings_and_its_order():
    """DP-SGD brings a network without batch norm; hyphens and underscores are alike; two are in their order."""
    assert layered([{"defenses": {"dp_sgd": None}}]) == layered(["dp-sgd"])
    assert list(parsed("--defenses", "memdefense,dp-sgd")["defenses"]) == ["memdefense", "dp_sgd"]
    assert layered([{"attacks": ["membership"]}]) == layered(["membership"])


def test_options_over_the_recipe():
    """With or without `init_args`, also where the recipe calls it something else."""
    for options in ({"gamma": 0.5}, {"init_args": {"gamma": 0.5}}):
        assert layered([{"defenses": {"memdefense": options}}])["defenses"]["memdefense"]["init_args"]["gamma"] == 0.5
    named = layered([{"defenses": {"nbafl-weight-clip": {"epsilon": 3}}}])["defenses"]
    assert named["nbafl"]["init_args"] == {
        **layered(["nbafl-weight-clip"])["defenses"]["nbafl"]["init_args"],
        "epsilon": 3,
    }


def test_null_still_removes_what_is_there():
    """A layer below has it; a list of names adds, and removes nothing."""
    assert not layered(["memdefense", {"defenses": {"memdefense": None}}]).get("defenses")
    assert layered(["memdefense", {"defenses": ["memdefense"]}]) == layered(["memdefense"])
    assert not parsed("--config", "memdefense", "--defenses", "null")["defenses"]


REFUSED = {
    "no recipe": (["--defenses.lira"], "no 'lira' among the defenses", "memdefense"),
    "an attack's name": (["--attacks", "lira"], "no 'lira' among the attacks", "membership"),
    "a slip": (["--defenses", "memdefnse"], "memdefnse", "did you mean memdefense"),
    "a number": (["--defenses", "3"], "defenses is 3", "[NAME, NAME]"),
    "a list": (["--defenses", "{a: [1]}"], "defenses.a is [1]", "class_path"),
    "options beside the class": (
        ["--defenses", "{a: {class_path: MemDefense, gamma: 1}}"],
        "defenses.a has gamma",
        "init_args",
    ),
    "a defense that attacks": (
        ["--attacks.m", "MemDefense"],
        "--attacks.m is MemDefense",
        "--defenses.NAME MemDefense",
    ),
    "an attack that defends": (["--defenses.m", "MembershipInference"], "whose kind is 'attack'", "--attacks.NAME"),
    "a recorder that defends": (["--defenses.m", "Representations"], "whose kind is 'recorder'", "--attacks.NAME"),
    "an attack of one's own": (["--defenses.m", "run_kit.Watcher"], "whose kind is 'attack'", "--attacks.NAME Watcher"),
    "a defense of the trainer": (
        ["--trainer.callbacks+=callbacks.MemDefense"],
        "whose kind is 'defense'",
        "--defenses.",
    ),
    "the base class": (["--defenses.m", "app.FederatedCallback"], "FederatedCallback", "CLASS"),
    "a defense called none": (["--defenses.none", "MemDefense"], "called none", "something else"),
    "another's name": (["--defenses.dp-sgd", "MemDefense"], "not DPSGD", "something else"),
    "equal defenses": (["--defenses.a", "run_kit.Scale", "--defenses.b", "run_kit.Scale"], "a and b", "leave one"),
    "two of a class": (
        ["--defenses", "memdefense", "--defenses.b", "MemDefense", "--defenses.b.gamma", "0.5"],
        "memdefense and b are both MemDefense",
        "keep one",
    ),
    "equal attacks": (["--attacks.a", "run_kit.Watcher", "--attacks.b", "run_kit.Watcher"], "a and b", "leave one"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_refused_with_a_remedy(mistake):
    """Before anything is made."""
    arguments, cause, remedy = REFUSED[mistake]
    with pytest.raises(UserError) as refusal:
        parsed(*arguments)
    [problem] = refusal.value.problems
    assert cause in problem.cause
    assert remedy in problem.remedy
    assert problem.consequence


def test_two_of_a_class_of_ones_own_with_different_settings():
    """Only the user knows what they do."""
    config = parsed("--defenses.a", "run_kit.Scale", "--defenses.b", "run_kit.Scale", "--defenses.b.factor", "3")
    assert list(config["defenses"]) == ["a", "b"]


def test_sections_in_python():
    """`Run` takes them where they belong."""
    for wrong in ({"defenses": [MembershipInference()]}, {"attacks": {"m": MemDefense()}}):
        with pytest.raises(UserError, match="whose kind is"):
            Run(FederatedModule(), Digits(), **wrong)


def test_a_run_is_labelled_by_what_acts():
    """Also where a defense reaches the trainer by another way, and with the options of the command line."""
    run = Run(FederatedModule(), Digits(), trainer={"callbacks": [MemDefense()]})
    assert labels_of(described_run(run.federation, run.data, run.trainer)).defense == "memdefense"
    single = Run(FederatedModule(), Digits(), trainer={"callbacks": MemDefense()})
    assert any(isinstance(callback, MemDefense) for callback in single.trainer.callbacks)
    assert labels_of(parsed("--defenses.memdefense")).defense == "memdefense"


def test_comparison_of_local_with_defenses_of_uploads():
    """Named for all defenses at once, before any run; DP-SGD acts on training and stays."""
    names = ["none", "memdefense", "nbafl", "dp-sgd"]
    spec = read_spec({"datasets": ["digits"], "methods": ["local"], "defenses": names})
    with pytest.raises(UserError) as refusal:
        parse_all(planned_runs(spec))
    assert [problem.cause.partition(":")[0] for problem in refusal.value.problems] == [
        f"digits-local-{name}" for name in names[1:-1]
    ]


@pytest.mark.parametrize("shared", [{"base": ["memdefense"]}, {"set": {"defenses.m": "MemDefense"}}])
def test_comparison_whose_undefended_rows_are_defended(shared):
    """A defense of every run would be reported as none."""
    with pytest.raises(UserError, match="also those under none"):
        read_spec({"datasets": ["digits"], "methods": ["fedavg"], **shared})


BEFORE_TRAINING = {
    "everything spared": (["--defenses", "memdefense", "--defenses.memdefense.spare", "['*']"], "spares every"),
    "nothing sent": (["--config", "local", "--defenses", "memdefense"], "MemDefense where every weight stays"),
    "noise on nothing": (["--config", "local", "--defenses", "nbafl"], "NbAFL where every weight stays"),
    "round of the transcript": (["--transcript.rounds", "[99]"], "round 99 is to be kept"),
    "round of an attack": (
        ["--attacks", "membership", "--attacks.membership.rounds", "[9]"],
        "round 9 is to be attacked",
    ),
    "attack every so often": (["--attacks", "membership", "--attacks.membership.every", "9"], "round 9"),
    "no targets": (["--attacks", "membership", "--attacks.membership.targets", "[]"], "the list of targets is empty"),
    "no attacks": (["--attacks", "membership", "--attacks.membership.attacks", "[]"], "the list of attacks is empty"),
    "attack twice": (["--attacks", "membership", "--attacks.membership.attacks", "[yeom, yeom]"], "more than once"),
    "images twice": (
        ["--attacks.i", "ImageReconstruction", "--attacks.i.attacks", "[mi-face, mi-face]"],
        "more than once",
    ),
}


@pytest.mark.parametrize("mistake", BEFORE_TRAINING)
def test_refused_before_the_first_round(mistake, tmp_path, capsys):
    """Exit code 2 with cause and remedy."""
    arguments, cause = BEFORE_TRAINING[mistake]
    assert exit_code("fit", *command(tmp_path, "a", *arguments)) == 2
    said = capsys.readouterr().err
    assert cause in said
    assert "remedy:" in said
    assert "Traceback" not in said


def test_build_run_takes_names(tmp_path):
    """The function behind `fit` reads layers likewise."""
    run = build_run({"defenses": ["memdefense"]}, **{"run.root": str(tmp_path), "tracking": "disabled"})
    assert list(run.config["defenses"]) == ["memdefense"]
