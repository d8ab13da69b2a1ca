"""Recipes add up layer by layer."""

import pytest
import yaml
from run_kit import parsed

from app.common.errors import UserError
from app.configuration import expand
from app.federation.submodels import PRESETS
from app.recipes import find_recipe, layered, merge


@pytest.mark.parametrize("code", PRESETS)
def test_recipes_of_the_taxonomy_by_code(code):
    """`--config GFM`, in any case, is the recipe with that code's three axes."""
    for written in (code, code.lower()):
        chosen = yaml.safe_load(find_recipe(written).read_text())["model"]["method"]["init_args"]
        assert (chosen["grouping"], chosen["dynamics"], chosen["policy"]) == PRESETS[code]


def layer(folder, name, text):
    """A recipe file; returns its path as written after --config."""
    path = folder / f"{name}.yaml"
    path.write_text(f"# {name}\n{text}")
    return str(path)


@pytest.fixture
def stack(tmp_path):
    """A method, two defenses and an attack suite, as a user would lay them over each other."""
    return [
        *("--config", "fedavgm"),
        *("--config", layer(tmp_path, "scale", "defenses: {scale: {class_path: run_kit.Scale}}")),
        *(
            "--config",
            layer(tmp_path, "shift", "defenses: {shift: {class_path: run_kit.Shift, init_args: {by: 0.5, note: a}}}"),
        ),
        *("--config", layer(tmp_path, "suite", "attacks: {witness: {class_path: run_kit.Witness}}")),
    ]


def test_method_defenses_and_attacks_add_up_in_order(stack):
    """Every layer is in the configuration, defenses in the order of the layers."""
    config = parsed(*stack)
    assert config["model"]["server"]["class_path"].endswith("FedAvgM")
    assert list(config["defenses"]) == ["scale", "shift"]
    assert list(config["attacks"]) == ["witness"]
    reverse = [*stack[4:6], *stack[2:4]]
    assert list(parsed(*reverse)["defenses"]) == ["shift", "scale"]


def test_later_layers_win_and_options_win_over_layers(tmp_path):
    """The last word on a value is the command line's, then the last layer's, wherever --config stands."""
    low, high = (layer(tmp_path, f"l{rounds}", f"trainer: {{max_epochs: {rounds}}}") for rounds in (5, 7))
    assert parsed("--config", low, "--config", high)["trainer"]["max_epochs"] == 7
    assert parsed("--config", high, "--config", low)["trainer"]["max_epochs"] == 5
    assert parsed("--trainer.max_epochs", "9", "--config", low, f"--config={high}")["trainer"]["max_epochs"] == 9


def test_null_removes_a_defense(stack, tmp_path):
    """A later layer or option takes a defense away; an option also one that is not there."""
    without = layer(tmp_path, "without", "defenses: {scale: null}")
    assert list(parsed(*stack, "--config", without)["defenses"]) == ["shift"]
    assert list(parsed(*stack, "--defenses.shift", "null", "--defenses.absent", "null")["defenses"]) == ["scale"]


def test_same_class_is_merged_and_another_replaces():
    """Options of an object survive only under the same class."""
    below = {"noise": {"class_path": "callbacks.Shift", "init_args": {"by": 1, "note": "kept"}}}
    same = merge(below, {"noise": {"class_path": "Shift", "init_args": {"by": 2}}})
    assert same["noise"]["init_args"] == {"by": 2, "note": "kept"}
    other = merge(below, {"noise": {"class_path": "Scale", "init_args": {"factor": 3}}})
    assert other["noise"] == {"class_path": "Scale", "init_args": {"factor": 3}}
    assert below["noise"]["init_args"] == {"by": 1, "note": "kept"}, "the layer below is untouched"


def test_lists_are_replaced():
    """A list is one value."""
    assert merge({"a": [1, 2], "b": 1}, {"a": [3]}) == {"a": [3], "b": 1}


def test_options_reach_into_a_named_defense(stack):
    """--defenses.NAME.OPTION changes one option and keeps the others, in any of the accepted spellings."""
    config = parsed(*stack, "--defenses.shift.by=2.5", "--defenses.scale.init_args.factor", "-3")
    assert config["defenses"]["shift"]["init_args"] == {"by": 2.5, "note": "a"}
    assert config["defenses"]["scale"]["init_args"] == {"factor": -3.0}


def test_a_defense_can_be_added_on_the_command_line():
    """--defenses.NAME CLASS, then its options."""
    config = parsed("--defenses.mine", "run_kit.Scale", "--defenses.mine.factor", "2")
    assert config["defenses"]["mine"]["init_args"] == {"factor": 2.0}


def test_option_of_an_unknown_defense_is_refused(stack):
    """The message lists the defenses that are there."""
    with pytest.raises(UserError, match="no 'shfit' among the defenses") as refusal:
        expand([*stack, "--defenses.shfit.by", "2"])
    assert "present: scale, shift" in str(refusal.value)
    with pytest.raises(UserError, match="present: none"):
        expand(["--attacks.x.by", "2"])


def test_unknown_recipe_names_the_nearest():
    """A slip of the finger is recognised."""
    with pytest.raises(UserError, match="did you mean heterofl"):
        find_recipe("heterfl")


def test_all_broken_layers_are_named_at_once(tmp_path):
    """Broken YAML, a list, an empty file and a missing file, each with its own problem."""
    broken = layer(tmp_path, "broken", "a: [1\nb: }")
    listed = layer(tmp_path, "listed", "- 1\n- 2\n")
    empty = layer(tmp_path, "empty", "")
    missing = str(tmp_path / "missing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError) as refusal:
        layered([broken, "demo", listed, empty, missing, str(binary)])
    causes = [problem.cause for problem in refusal.value.problems]
    assert len(causes) == 5
    for cause, path in zip(causes, (broken, listed, empty, missing, str(binary)), strict=True):
        assert path in cause
    assert all(problem.remedy for problem in refusal.value.problems)


def test_config_without_a_value_is_refused():
    """--config at the end, or before another option."""
    for arguments in (["--config"], ["--config", "--tracking", "disabled"], ["--defenses"], ["--defenses.x.y"]):
        with pytest.raises(UserError, match="has no value"):
            expand(arguments)


def test_printed_config_replays_to_itself(stack, tmp_path, capsys):
    """--print_config prints a file that gives the same configuration."""
    options = [*stack, "--model.net", "MLP", "--model.net.hidden", "[8, 4]", "--seed_everything", "3"]
    with pytest.raises(SystemExit) as end:
        parsed(*options, "--print_config")
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert isinstance(yaml.safe_load(printed), dict)
    (tmp_path / "printed.yaml").write_text(printed)
    assert parsed("--config", str(tmp_path / "printed.yaml")) == parsed(*options)


def test_a_marked_key_gives_way_to_what_was_chosen_below():
    """A defense that needs another default network must not replace the one that was asked for."""
    offered = {"model": {"net?": {"class_path": "app.models.CNN", "init_args": {"norm": "group"}}}}
    plain = {"model": {"net": offered["model"]["net?"]}}
    assert merge({}, offered) == plain
    assert merge({"model": {"seed": 1}}, offered) == {"model": {"seed": 1, **plain["model"]}}
    wide = {"model": {"net": {"class_path": "app.models.CNN", "init_args": {"u": 8}}}}
    assert merge(wide, offered)["model"]["net"]["init_args"] == {"u": 8, "norm": "group"}
    other = {"model": {"net": {"class_path": "app.models.Factorised", "init_args": {"speed": 1}}}}
    assert merge(other, offered) == other
    assert merge(plain, other) == other, "what is chosen later counts"


def test_dp_sgd_keeps_a_network_without_batch_norm():
    """`--config waffle --config dp-sgd` is WAFFLe under DP-SGD."""
    assert layered(["waffle", "dp-sgd"])["model"]["net"] == layered(["waffle"])["model"]["net"]
    assert layered(["dp-sgd"])["model"]["net"]["init_args"] == {"norm": "group"}
