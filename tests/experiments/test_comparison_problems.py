"""What a comparison's author may get wrong, and what they are reported."""

import pytest
from comparison_kit import SMALL, problems_of, spec_of, write

from app.common.errors import UserError
from app.experiments.comparison import Comparison
from app.experiments.matrix import planned_runs
from app.experiments.parsing import parse_all
from app.experiments.reading import find_scale, read_spec

DEFENDED = {"defenses": ["none", "memdefense"], "seeds": [0, 1]}
CASES = {
    "unknown key": ({"metods": ["fedavg"]}, "no key 'metods'", "did you mean methods?"),
    "unknown key of an entry": (
        {"methods": {"fedavg": {"config": []}}},
        "methods.fedavg has no key 'config'",
        "configs",
    ),
    "unknown method": ({"methods": ["fedavgg"]}, "methods.fedavgg: no configuration 'fedavgg'", "did you mean fedavg"),
    "unknown defense": (
        {"defenses": ["none", "memdefence"]},
        "defenses.memdefence: no conf",
        "did you mean memdefense",
    ),
    "unknown attack": ({"attacks": ["membershp"]}, "attacks: no configuration", "membership"),
    "unknown base": ({"base": ["dem"]}, "base: no configuration 'dem'", "did you mean demo"),
    "dataset that is nearly a recipe": ({"datasets": ["memdefense-mnsit"]}, "memdefense-mnsit", "memdefense-mnist"),
    "two datasets of one meaning": ({"datasets": ["a", "b"]}, "datasets a and b both stand for", "name the recipes"),
    "name in exclude": ({"exclude": [{"method": "hetero"}]}, "exclude[1] names the method 'hetero'", "heterofl"),
    "name in include": ({"include": [{"method": "map-fl"}]}, "include[1] names the method 'map-fl'", "mapp-fl"),
    "name in baseline": ({"baseline": {"method": "fedav"}}, "baseline names the method 'fedav'", "fedavg"),
    "key in exclude": ({"exclude": [{"methd": "fedavg"}]}, "exclude[1] has no key 'methd'", "method"),
    "empty axis": ({"methods": []}, "methods is empty", "at least one"),
    "missing axis": ({"datasets": None}, "datasets is empty", "at least one"),
    "no seeds": ({"seeds": []}, "seeds is empty", "[0, 1, 2]"),
    "exclude without effect": ({**DEFENDED, "exclude": [{"seed": 9}]}, "{seed: 9} matches no run", "remove it"),
    "all excluded": ({"exclude": [{"dataset": "digits"}]}, "every run is excluded", "exclude less"),
    "already there": ({"include": [{"method": "fedavg"}]}, "{method: fedavg} is part of the matrix already", "remove"),
    "contradiction": (
        {**DEFENDED, "exclude": [{"defense": "memdefense"}], "include": [{"defense": "memdefense", "seed": 3}]},
        "include: {defense: memdefense, seed: 3} asks for runs that exclude: {defense: memdefense} leaves out",
        "remove one of the two",
    ),
    "duplicate seeds": ({"seeds": [0, 1, 0]}, "seeds names 0 more than once", "once"),
    "negative seed": ({"seeds": [0, -1]}, "seeds holds -1", "from 0 to 2^32 - 1"),
    "seed that is no number": ({"seeds": ["one", True]}, "seeds holds 'one', True", "whole numbers"),
    "defense without defense": ({"defenses": {"none": ["l2"]}}, "defenses.none stands for ['l2']", "another name"),
    "one name for two runs": (
        {"datasets": {"a": ["demo"], "a-b": ["demo"]}, "methods": {"b-c": ["fedavg"], "c": ["heterofl"]}},
        "(a, b-c, none) and (a-b, c, none) would both be called a-b-c-none-s0",
        "rename",
    ),
    "baseline that is not run": (
        {**DEFENDED, "exclude": [{"method": "fedavg", "defense": "none"}], "baseline": {"method": "fedavg"}},
        "no run has the method fedavg with the defense none",
        "include them",
    ),
    "no row without a defense": (
        {"defenses": ["l2", "dropout"]},
        "no row is without a defense, and no baseline is named",
        "`baseline: {method: fedavg, defense: l2}`, or add `none` to defenses",
    ),
    "defense among the methods": (
        {"methods": {"memdefense": None}},
        "methods.memdefense is the recipe of a defense",
        "below defenses",
    ),
    "attack among the defenses": (
        {"defenses": ["none", "membership"]},
        "defenses.membership is the recipe of an attack",
        "below attacks",
    ),
    "unknown method without settings": (
        {"methods": {"foo": None}},
        "methods.foo: no configuration 'foo'",
        "list recipes",
    ),
    "unknown defense without settings": (
        {"defenses": {"none": None, "foo": None}},
        "defenses.foo: no configuration",
        "list recipes",
    ),
    "seed as an option": ({"set": {"seed_everything": 3}}, "set sets seed_everything", "remove it"),
    "name that is no folder": ({"name": "../up"}, "the name of the comparison is '../up'", "letters"),
    "twice in a list": ({"methods": ["fedavg", "fedavg"]}, "methods names fedavg more than once", "once"),
    "name that is no text": ({"defenses": {False: None}}, "a name in defenses is False", "quotes"),
    "figures that are no list": ({"published": {"a": 1}}, "published is no list", "list of mappings"),
    "unknown key of a scale": ({"scales": {"quick": {"seed": [1]}}}, "scales.quick has no key 'seed'", "seeds"),
    "patterns that are no list": ({"exclude": {"method": "fedavg"}}, "exclude is {", "a list such as"),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake(case, tmp_path):
    """One mistake, one problem, with the cause and a way out."""
    changes, cause, remedy = CASES[case]
    [problem] = problems_of(tmp_path, **changes)
    assert cause in problem.splitlines()[0]
    assert remedy in problem.split("remedy: ")[1]


def test_a_dataset_without_settings_is_what_its_name_says(tmp_path):
    """`cifar10:` over a base of digits is refused; `digits-small:` is what it says, and own images have any name."""
    with pytest.raises(
        UserError, match=r"the dataset cifar10 has no settings of its own, and `base` says Digits"
    ) as error:
        Comparison(spec_of(tmp_path, datasets={"cifar10": None}), tmp_path)
    assert "call it digits" in error.value.problems[0].remedy
    for name, base in {"digits": "demo", "digits-small": "demo", "photos": "photos.yaml"}.items():
        (tmp_path / "photos.yaml").write_text("data: {class_path: ImageFolder}\n")
        Comparison(spec_of(tmp_path, datasets={name: None}, base=[base]), tmp_path)


def test_one_row_needs_no_baseline(tmp_path):
    assert len(planned_runs(spec_of(tmp_path, methods=["fedavg"], defenses=["l2"], seeds=[0, 1]))) == 2


def test_all_mistakes_at_once(tmp_path):
    """Five mistakes in one file are five problems."""
    wrong = {"metods": 1, "methods": ["fedavg", "fedprx"], "seeds": [-1], "exclude": [{"defense": "l3"}], "base": "dmo"}
    assert len(problems_of(tmp_path, **wrong)) == 5


def test_no_such_comparison():
    """The nearest name; for a recipe, the command that takes it."""
    with pytest.raises(UserError, match="did you mean demo"):
        read_spec("demoo")
    with pytest.raises(UserError, match="rampart fit --config overfitted"):
        read_spec("overfitted")


def test_no_such_scale(tmp_path):
    """The scales there are."""
    spec = spec_of(tmp_path, scales={"quick": {}, "full": {}})
    with pytest.raises(UserError, match=r"no scale 'quik'(.|\n)*did you mean quick"):
        find_scale(spec, "quik")


@pytest.mark.parametrize("text", ["methods: [", "- a\n- b\n", ""])
def test_files_that_hold_no_comparison(text, tmp_path):
    """Broken YAML, a list, nothing."""
    with pytest.raises(UserError, match=r"cannot read|holds no settings"):
        read_spec(str(write(tmp_path, text)))


def test_options_are_tried_before_anything_starts(tmp_path):
    """Two wrong options in different runs are two problems, each reported once with the runs that have it."""
    changes = {
        "defenses": {"none": None, "memdefense": {"set": {"defenses.memdefense.gama": 0.5}}},
        "methods": {"fedavg": None, "heterofl": {"set": {"model.capacities.lage": 2}}},
        "seeds": [0, 1],
    }
    with pytest.raises(UserError) as error:
        parse_all(planned_runs(spec_of(tmp_path, **changes)))
    causes = sorted(problem.cause for problem in error.value.problems)
    assert len(causes) == 2
    assert causes[0].startswith("digits-fedavg-memdefense")
    assert "gama" in causes[0]
    assert causes[1].startswith("digits-heterofl-none")
    assert "lage" in causes[1]


def test_option_of_a_defense_that_a_run_does_not_have(tmp_path):
    """The runs without the defense are named."""
    changes = {"defenses": ["none", "memdefense"], "set": {"defenses.memdefense.gamma": 0.5}}
    with pytest.raises(UserError) as error:
        parse_all(planned_runs(spec_of(tmp_path, **changes)))
    [problem] = error.value.problems
    assert problem.cause.startswith("digits-fedavg-none, digits-heterofl-none: --defenses.memdefense.gamma")


def test_recipes_of_a_run_that_contradict_each_other(tmp_path):
    """Two recipes that both say how wide clients are: reported before anything starts, with the runs."""
    with pytest.raises(UserError) as error:
        parse_all(planned_runs(spec_of(tmp_path, base=["overfitted"], set={"data.partition.clients": 4})))
    [problem] = error.value.problems
    assert problem.cause.startswith("digits-heterofl-none: capacities are given by large and by rates")


def test_a_width_that_is_taken_back_without_another_one(tmp_path):
    """A width of null is out of range, and is not compared with others before."""
    with pytest.raises(UserError) as error:
        parse_all(planned_runs(spec_of(tmp_path, set={"model.capacities.small": None})))
    assert [problem.cause.partition(": ")[2] for problem in error.value.problems] == [
        "--model.capacities.small is None"
    ]


def test_rounds_and_settings_of_good_runs(tmp_path):
    """The parser of `rampart fit` says what each combination is run with; nothing is built."""
    parsed = parse_all(planned_runs(spec_of(tmp_path, **{**SMALL, "set": {"trainer.max_epochs": 7}, "seeds": [0, 1]})))
    assert list(parsed) == [("digits", "fedavg", "none"), ("digits", "heterofl", "none")]
    run = parsed["digits", "fedavg", "none"]
    assert run.rounds == 7
    assert run.differs_in(run.config) == []
    changed = {**run.config, "seed_everything": 9, "model": {**run.config["model"], "workers": 3}}
    assert run.differs_in(changed) == []
    changed["data"] = {}
    assert run.differs_in({**changed, "trainer": {**run.config["trainer"], "max_epochs": 8}}) == [
        "data",
        "trainer.max_epochs",
    ]
