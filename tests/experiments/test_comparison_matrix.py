"""Cells of a comparison: how many, in which order, under which names, with which arguments."""

import pytest
from comparison_kit import SMALL, spec_of, write

from app.experiments.matrix import baseline_of, leaders_first, planned_runs, run_name
from app.experiments.reading import find_scale, read_spec
from app.recipes import shipped_comparisons
from app.results.run.labels import RunLabels

WIDE = {
    "datasets": {"digits": None, "sizes": {"configs": ["demo"]}},
    "methods": {"fedavg": None, "heterofl": {"set": {"model.capacities.large": 2}}},
    "defenses": {"none": None, "memdefense": None, "strong": {"configs": ["dp-sgd", "l2"]}},
    "seeds": [0, 1, 2],
}


def names(spec):
    """Names of all runs."""
    return [planned.name for planned in planned_runs(spec)]


def test_product_of_the_axes_in_their_order(tmp_path):
    """2 datasets, 2 methods, 3 defenses and 3 seeds are 36 runs, the last axis changing fastest."""
    every = names(spec_of(tmp_path, **WIDE))
    assert len(every) == len(set(every)) == 36
    assert every[:4] == [
        *(f"digits-fedavg-none-s{seed}" for seed in (0, 1, 2)),
        "digits-fedavg-memdefense-s0",
    ]
    assert every[9] == "digits-heterofl-none-s0"
    assert every[18] == "sizes-fedavg-none-s0"
    assert every[-1] == "sizes-heterofl-strong-s2"


def test_the_first_run_of_every_dataset_and_seed_is_made_first(tmp_path):
    """It trains the shadow models that the others share; the rest keeps its order."""
    runs = planned_runs(spec_of(tmp_path, **WIDE))
    made = [planned.name for planned in leaders_first(runs)]
    leaders = [f"{dataset}-fedavg-none-s{seed}" for dataset in ("digits", "sizes") for seed in (0, 1, 2)]
    assert made == leaders + [planned.name for planned in runs if planned.name not in leaders]


def test_arguments_of_a_run(tmp_path):
    """Recipes from base to attacks, options of the entries, then those of everything, then the seed."""
    spec = spec_of(tmp_path, **WIDE, attacks=["membership"], set={"trainer.max_epochs": 5, "tracking": "disabled"})
    arguments = {planned.name: planned.arguments for planned in planned_runs(spec)}
    assert arguments["sizes-heterofl-strong-s1"] == (
        *("--config", "demo", "--config", "demo", "--config", "heterofl", "--config", "dp-sgd", "--config", "l2"),
        *("--config", "membership", "--model.capacities.large", "2", "--trainer.max_epochs", "5"),
        *("--tracking", "disabled", "--seed_everything", "1"),
    )
    assert arguments["digits-fedavg-none-s0"][:6] == (
        "--config",
        "demo",
        "--config",
        "fedavg",
        "--config",
        "membership",
    )


def test_values_are_written_as_on_a_command_line(tmp_path):
    """Texts as they are, everything else as JSON."""
    options = {"a": "text", "b": [1.0, 0.5], "c": True, "d": None, "--e": {"f": 1}}
    arguments = planned_runs(spec_of(tmp_path, set=options))[0].arguments[4:-2]
    assert arguments == ("--a", "text", "--b", "[1.0, 0.5]", "--c", "true", "--d", "null", "--e", '{"f": 1}')


def test_exclude_removes_what_matches(tmp_path):
    """One combination with all seeds and datasets, one seed of another."""
    exclude = [{"method": "fedavg", "defense": "memdefense"}, {"dataset": "sizes", "seed": 2}]
    left = names(spec_of(tmp_path, **WIDE, exclude=exclude))
    # 6 of the first; of 6 combinations of the second with seed 2, one is excluded already
    assert len(left) == 36 - 6 - 5
    assert not [
        name for name in left if "fedavg-memdefense" in name or (name.startswith("sizes") and name.endswith("2"))
    ]


def test_include_adds_runs_in_their_place(tmp_path):
    """A new method with all seeds and datasets, but only without defense; a further seed of one run."""
    include = [{"method": "mapp-fl", "defense": "none"}, {"dataset": "digits", "method": "fedavg", "seed": 7}]
    every = names(spec_of(tmp_path, **WIDE, include=include))
    assert len(every) == 36 + 6 + 3
    assert every[3] == "digits-fedavg-none-s7"
    assert [name for name in every if "mapp-fl" in name] == [
        f"{dataset}-mapp-fl-none-s{seed}" for dataset in ("digits", "sizes") for seed in (0, 1, 2)
    ]
    assert every.index("digits-mapp-fl-none-s0") < every.index("sizes-fedavg-none-s0")


def test_include_may_describe_what_is_new(tmp_path):
    """A method of another name with options of its own."""
    include = [{"method": {"wide": {"configs": ["heterofl"], "set": {"model.capacities.large": 4}}}}]
    runs = planned_runs(spec_of(tmp_path, include=include))
    assert [planned.name for planned in runs][-1] == "digits-wide-none-s0"
    assert runs[-1].arguments[2:6] == ("--config", "heterofl", "--model.capacities.large", "4")


def test_without_axis_of_defenses_there_is_none(tmp_path):
    """The empty defense."""
    assert names(spec_of(tmp_path)) == ["digits-fedavg-none-s0", "digits-heterofl-none-s0"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("fedavg", "none")),
        ({"defenses": ["l2", "none"]}, ("fedavg", "none")),
        ({"defenses": ["l2"], "methods": ["heterofl"]}, ("heterofl", "l2")),
        ({"defenses": ["l2"], "baseline": {"method": "heterofl", "defense": "l2"}}, ("heterofl", "l2")),
        ({"baseline": {"method": "heterofl"}}, ("heterofl", "none")),
    ],
)
def test_baseline(changes, expected, tmp_path):
    """As stated, else the first method without defense, else the only row."""
    spec = spec_of(tmp_path, **changes)
    assert baseline_of(spec, planned_runs(spec)) == expected


def test_names_are_safe_for_files():
    """No separators or spaces, and no hidden folder."""
    assert run_name(RunLabels("../a b", "c/d", "e:f", 3)) == "_a_b-c_d-e_f-s3"
    assert run_name(RunLabels("digits", "heterofl", "memdefense", 0)) == "digits-heterofl-memdefense-s0"


def test_scale_and_seeds(tmp_path):
    """A scale has a folder and options of its own; one that changes nothing is the comparison itself."""
    scales = {"quick": {"seeds": [1], "configs": ["l2"], "set": {"trainer.max_epochs": 3}}, "full": {}}
    spec = spec_of(tmp_path, seeds=[0, 1], scales=scales, set={"trainer.max_epochs": 20})
    quick = spec.at_scale(find_scale(spec, "quick"))
    assert (quick.name, quick.scale, names(quick)) == (
        "mine-quick",
        "quick",
        ["digits-fedavg-none-s1", "digits-heterofl-none-s1"],
    )
    assert planned_runs(quick)[0].arguments[-4:] == ("--trainer.max_epochs", "3", "--seed_everything", "1")
    assert "l2" in planned_runs(quick)[0].arguments
    assert spec.at_scale(find_scale(spec, "full")) == spec
    assert names(spec.with_seeds((5,))) == ["digits-fedavg-none-s5", "digits-heterofl-none-s5"]


def test_name_purpose_and_published_figures(tmp_path):
    """The file's name and first line, and figures as they stand."""
    spec = read_spec(str(write(tmp_path, {**SMALL, "published": [{"method": "fedavg", "accuracy": 0.9}]})))
    assert (spec.name, spec.purpose) == ("mine", "What it is for.")
    assert spec.published == ({"method": "fedavg", "accuracy": 0.9},)


def test_files_beside_the_comparison(tmp_path):
    """A recipe of one's own may lie in the same folder."""
    (tmp_path / "own.yaml").write_text("trainer: {max_epochs: 2}\n")
    spec = spec_of(tmp_path, base=["own.yaml"])
    assert spec.base == (str(tmp_path / "own.yaml"),)


@pytest.mark.parametrize("comparison", shipped_comparisons(), ids=lambda one: one.name)
def test_shipped_comparison_is_understood(comparison):
    """Each can be read, at each of its scales, and says what it is for."""
    spec = read_spec(comparison.name)
    assert spec.purpose
    assert planned_runs(spec)
    assert all(planned_runs(spec.at_scale(scale)) for scale in spec.scales)
