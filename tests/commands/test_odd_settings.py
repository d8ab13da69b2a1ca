"""Settings that no run can be made of: one clear error each, in files, in comparisons and on the command line."""

import pytest
from run_kit import exit_code, parsed

from app.common.errors import UserError
from app.common.reading import RepeatedKeyError, load_yaml
from app.configuration import expand
from app.experiments.reading import read_spec
from app.recipes import layered

DEEP = 600

FILES = {
    "repeated key": ("model: {}\ntrainer: {}\nmodel: {}", "the key 'model' is there twice, in lines 1 and 3"),
    "repeated inner key": ("model:\n  local: {epochs: 1, epochs: 2}", "the key 'epochs' is there twice"),
    "holds itself": ("model: &a {local: *a}", "it holds itself"),
    "deep list": (f"model: {'[' * DEEP}{']' * DEEP}", "nested too deeply"),
    "whole number as a name": ("1: 2", "the name of a setting is 1"),
    "number as an inner name": ("model: {local: {0.5: 2}}", "the name of a setting in model.local is 0.5"),
    "date for a number": ("model: {local: {epochs: 2020-01-01}}", "2020-01-01"),
    "null for a number": ("model: {local: {batch_size: null}}", "model.local.batch_size"),
    "null for pairs": ("model: {local: {lr_factors: null}}", "model.local.lr_factors"),
    "null in a defense": ("defenses: {memdefense: {gamma: null}}", "--defenses.memdefense.gamma is null"),
    "null in an optimiser": (
        "model: {local: {optimizer: {class_path: torch.optim.SGD, init_args: {lr: null}}}}",
        "--model.local.optimizer.lr is null",
    ),
    "null for a group": ("run: null", "--run is null"),
    "number for a group": ("model: {local: 2}", "--model.local is 2"),
    "huge size": ("model: {local: {batch_size: 1e21}}", "model.local.batch_size"),
    "no number": ("model: {local: {batch_size: .nan}}", "model.local.batch_size"),
    "endless": ("model: {local: {epochs: .inf}}", "model.local.epochs"),
    "number of 5000 digits": (f"seed_everything: {'9' * 5000}", "none of its kind"),
    "object of Python": ("model: !!python/object:os.system {}", "python/object"),
    "bytes": ("model: {personal: [!!binary aGVsbG8=]}", "binary"),
    "wrong tag": ("seed_everything: !!int many", "many"),
    "list": ("- 1", "holds no settings"),
    "empty": ("", "holds no settings"),
    "tab": ("model:\n\tlocal: 3", "cannot start any token"),
    "two documents": ("seed_everything: 1\n---\nseed_everything: 2", "another document"),
    "other encoding": ("model: {personal: ['é']}".encode("latin-1"), "byte 21 is no UTF-8 text"),
}


def refusal(*arguments):
    """The only problem of a command line."""
    with pytest.raises(UserError) as error:
        parsed(*arguments)
    [problem] = error.value.problems
    return problem


@pytest.mark.parametrize("case", FILES)
def test_file_is_refused(case, tmp_path):
    """The cause names the place, and there is a remedy."""
    content, cause = FILES[case]
    path = tmp_path / "odd.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    problem = refusal("--config", str(path))
    assert cause in problem.cause
    assert problem.remedy
    assert "Traceback" not in str(problem)


@pytest.mark.parametrize(
    "case", ["repeated key", "holds itself", "deep list", "bytes", "list", "tab", "other encoding"]
)
def test_comparison_file_is_refused(case, tmp_path):
    """In the same words."""
    content, cause = FILES[case]
    path = tmp_path / "odd.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read_spec(str(path))
    assert cause in str(error.value)


OPTIONS = {
    "holds itself": (["--model.local", "{a: &a [*a]}"], "--model.local {a: &a [*a]}: it holds itself"),
    "attack that holds itself": (["--attacks.m.rounds", "{a: &a [*a]}"], "it holds itself"),
    "deep": (["--model.capacities", "[" * DEEP + "]" * DEEP], "nested too deeply"),
    "repeated key": (["--model.local", "{epochs: 1, epochs: 2}"], "the key 'epochs' is there twice"),
    "broken": (["--defenses.a.b", "[1"], "cannot read --defenses.a.b [1"),
    "null": (["--model.local.epochs", "null"], "model.local.epochs"),
    "number for options": (
        ["--attacks.m", "MembershipInference", "--attacks.m.shadows", "2"],
        "--attacks.m.shadows is 2",
    ),
    "defense out of range": (["--defenses", "memdefense", "--defenses.memdefense.gamma", "2"], "memdefense.gamma is 2"),
    "class not chosen": (["--data.partition.clients", "3"], "--data.partition.clients is set, and no class"),
    "negative seed": (["--seed_everything", "-1"], "seed_everything"),
    "huge seed": (["--seed_everything", str(2**32)], "seed_everything"),
    "endless path": (["--config", "x" * 5000], "no configuration"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option_is_refused(case):
    """On the command line, where jsonargparse would meet some of them with errors of its own."""
    arguments, cause = OPTIONS[case]
    with pytest.raises(UserError) as error:
        parsed(*arguments)
    [problem] = error.value.problems
    assert cause in problem.cause
    assert problem.remedy


@pytest.mark.parametrize("value", ["abc", "-1", "4294967296", "1.5"])
def test_seed_of_the_environment(value, monkeypatch):
    """Lightning's own variable."""
    monkeypatch.setenv("PL_GLOBAL_SEED", value)
    problem = refusal("--seed_everything", "true")
    assert f"PL_GLOBAL_SEED is '{value}'" in problem.cause
    assert "2^32 - 1" in problem.remedy


def test_date_where_text_is_due(tmp_path):
    """A name may look like one; a byte-order mark is no part of the first key."""
    path = tmp_path / "date.yaml"
    path.write_bytes(b"\xef\xbb\xbfproject: 2020-01-01\n")
    assert parsed("--config", str(path))["project"] == "2020-01-01"


def test_merged_keys_do_not_repeat():
    """YAML's `<<` overrides on purpose."""
    assert load_yaml("a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b}")["c"] == {"x": 2}
    with pytest.raises(RepeatedKeyError, match="lines 1 and 2"):
        load_yaml("a: 1\n'a': 2")


def test_layers_of_python_that_are_no_plain_data():
    """A layer that holds itself, or an object, ends in an error of ours with the cause behind it."""
    endless = {}
    endless["model"] = endless
    with pytest.raises(UserError, match="nested too deeply"):
        expand([], [endless])
    with pytest.raises(UserError, match="not JSON serializable") as error:
        expand([], [{"model": {"seed": object()}}])
    assert isinstance(error.value.__cause__, TypeError)
    assert layered([{"trainer": {"max_epochs": 3}}])["trainer"]["max_epochs"] == 3


def test_debugging_shows_the_place(monkeypatch, capsys):
    """Only where it is asked for."""
    assert exit_code("fit", "--model.local.epochs", "null") == 2
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("RAMPART_DEBUG", "1")
    assert exit_code("fit", "--model.local.epochs", "null") == 2
    assert "Traceback" in capsys.readouterr().err


WRONG_NAMES = {
    "option of a defense": (
        ["--defenses.m", "MemDefense", "--defenses.m.gama", "0.5"],
        "MemDefense has no option gama",
        "gamma",
    ),
    "option of a network": (["--model.net", "CNN", "--model.net.nrm", "group"], "CNN has no option nrm", "norm"),
    "option of the partition": (
        ["--data.partition", "Iid", "--data.partition.clint", "5"],
        "Iid has no option clint",
        "clients",
    ),
    "option": (["--model.nett", "CNN"], "--model.nett", "--model.net"),
    "group of a file": ({"model": {"lcal": {"epochs": 3}}}, "no option model.lcal.epochs", "model.local.epochs"),
    "section of a file": ({"modl": {"local": {"epochs": 3}}}, "no option modl.local.epochs", "model.local.epochs"),
    "defense of a file": ({"defenses": {"memdefense": {"gama": 1}}}, "MemDefense has no option gama", "gamma"),
}


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_wrong_name_has_the_nearest(case, tmp_path):
    """The class or the group is named as well."""
    written, cause, nearest = WRONG_NAMES[case]
    if isinstance(written, dict):
        (tmp_path / "a.yaml").write_text(str(written))
        written = ["--config", str(tmp_path / "a.yaml")]
    problem = refusal(*written)
    assert cause in problem.cause
    assert f"did you mean {nearest}" in problem.remedy


COMMANDS = {
    "command": (["fti"], "'fti'", "did you mean fit"),
    "part of the list": (["list", "defences"], "'defences'", "did you mean defenses"),
    "option of compare": (["compare", "--confg", "demo"], "--config", "did you mean --config"),
    "choice of compare": (["compare", "-c", "demo", "--engine", "locl"], "'locl'", "did you mean local"),
    "option of report": (["report", "runs", "--outptu", "x"], "--outptu", "did you mean --output"),
    "nothing to export": (["export"], "RUN, FILE", "rampart export --help"),
    "option of plan": (
        ["plan", "--model.local.epoch", "3"],
        "--model.local.epoch",
        "did you mean --model.local.epochs",
    ),
    "option of cost": (
        ["cost", "--model.local.epoch", "3"],
        "--model.local.epoch",
        "did you mean --model.local.epochs",
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_mistake_of_a_command_has_a_remedy(case, capsys):
    """Exit code 2, in the form of `fit`'s errors."""
    arguments, cause, remedy = COMMANDS[case]
    assert exit_code(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert cause in said
    assert remedy in said[said.index("remedy:") :]


def test_help_lists_what_belongs_to_a_section(capsys):
    """Defenses with a line each among the defenses, attacks among the attacks, and how to write them."""
    assert exit_code("fit", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    _, _, text = text.partition("--defenses DEFENSES")
    defenses, _, text = text.partition("--attacks ATTACKS")
    attacks, _, _ = text.partition("--defense_order")
    assert "MemDefense: Zeroes the fraction" in defenses
    assert "--defenses.NAME.OPTION VALUE" in defenses
    assert "MembershipInference: Tells members" in attacks
    assert "MembershipInference" not in defenses
    assert "MemDefense" not in attacks


def test_help_of_a_named_defense(capsys):
    """By its recipe, or by the class it was given."""
    assert exit_code("fit", "--defenses.memdefense.help") == 0
    assert "gamma" in capsys.readouterr().out
    assert exit_code("fit", "--defenses.a", "run_kit.Scale", "--defenses.a.help") == 0
    assert "factor" in capsys.readouterr().out


def test_all_numbers_out_of_range_at_once():
    """Also those of classes that are made later: the server's optimiser and the network."""
    wrong = {"model.net.hidden": "[0]", "model.server.lr": "50", "model.local.epochs": "0"}
    with pytest.raises(UserError) as error:
        parsed("--model.net", "MLP", *(f"--{option}={value}" for option, value in wrong.items()))
    assert {problem.cause.split()[0] for problem in error.value.problems} == {f"--{option}" for option in wrong}
