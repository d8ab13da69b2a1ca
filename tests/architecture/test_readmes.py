"""What README files show can be typed, run and followed."""

import os
import re
import sys
import tomllib

import pytest
import yaml
from readme_kit import FOLDERS, ROOT, Page, code_in, commands_of, readmes
from run_kit import command, exit_code, fast_runs, no_figures, no_run_name, records  # noqa: F401

import app
import callbacks
from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.auditing import AttackSuite
from app.benchmarks.__main__ import SUBJECTS
from app.catalogue import CATALOGUE
from app.commands.attack import attack_parser, with_lists
from app.commands.cost import CostSettings
from app.commands.listing import list_choices
from app.commands.options import compare_parser, completion_parser, report_parser, validate_parser
from app.commands.plan import PlanSettings
from app.common.renamed import CLASSES, MODULES
from app.configuration import expand, run_parser
from app.experiments.comparison import requested_spec
from app.experiments.matrix import planned_runs
from app.experiments.parsing import parse_all
from app.experiments.reading import read_spec
from app.federation.hooks import FederatedCallback
from app.finished import load_run
from app.recipes import FOLDER, find_recipe, shipped_recipes

PAGES = readmes()
BY_NAME = {page.name: page for page in PAGES}
LONGEST = 10_000
"""Bytes of the front page."""

WITH_COMMANDS = {
    *("README.md", "callbacks/README.md", "datamodules/README.md", "app/attacks/README.md", "app/configs/README.md"),
    *("app/experiments/README.md", "app/federation/README.md", "app/models/README.md", "app/results/README.md"),
}
WITH_CODE = {
    *("README.md", "callbacks/README.md", "datamodules/README.md"),
    *("app/attacks/README.md", "app/federation/README.md", "app/models/README.md"),
}
COMMANDS = [(page.name, arguments) for page in PAGES for arguments in page.commands()]
CODE = [(page.name, block) for page in PAGES for block in page.blocks("python")]
YAML = [(page.name, block) for page in PAGES for block in page.blocks("yaml")]
TRANSCRIPTS = [(page.name, block) for page in PAGES for block in page.blocks("console")]


def shown(case):
    """Name of a test case."""
    return case if isinstance(case, str) else " ".join(case)


# ---- which pages there are -----------------------------------------------------------------------------------------


def test_every_larger_folder_has_a_page():
    """Packages of the first two levels with more than five modules, and the tests."""
    packages = [ROOT / name for name in ("callbacks", "datamodules", "tests")]
    packages += [path for path in (ROOT / "app").iterdir() if path.is_dir()]
    large = {path for path in packages if len(list(path.rglob("*.py"))) > 5}
    assert len(large) > 10
    assert sorted(str(path.relative_to(ROOT)) for path in large if not (path / "README.md").exists()) == []


def test_pages_show_what_they_should():
    """Without commands or code there would be nothing to check, and every test below would pass."""
    assert {name for name, _ in COMMANDS} >= WITH_COMMANDS
    assert {name for name, _ in CODE} >= WITH_CODE
    assert YAML
    assert TRANSCRIPTS


def test_front_page_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= LONGEST


def test_blocks_have_a_known_language():
    """A block in another language would be checked by nobody."""
    languages = [re.findall(r"^```(.*)$", page.text, flags=re.MULTILINE)[::2] for page in PAGES]
    assert {language for page in languages for language in page} <= {"bash", "python", "yaml", "console"}


@pytest.mark.parametrize("name", [*BY_NAME, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    """Files, images and headings."""
    page = Page(ROOT / name)
    for file, anchor in page.links():
        target = (page.path.parent / file).resolve() if file else page.path
        assert target.exists(), f"{name} links to {file}"
        assert not anchor or anchor in Page(target).anchors(), f"{name} links to {file}#{anchor}"


def test_front_page_leads_to_all_others():
    linked = {file for file, _ in BY_NAME["README.md"].links()}
    assert {page.name for page in PAGES[1:]} <= linked


def test_scripts_exist():
    """Every script that a page names can be executed, and `scripts/bench` knows the subjects that pages name."""
    for name in {"demo", "test"}.union(*(page.scripts() for page in PAGES)):
        assert os.access(ROOT / "scripts" / name, os.X_OK), name
    subjects = [subject for page in PAGES for subject in re.findall(r"scripts/bench ([a-z]+)", page.text)]
    assert set(subjects) <= set(SUBJECTS)


# ---- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A working folder with the files that pages tell their reader to save, and a finished run's configuration."""
    for page in PAGES:
        for name, content in page.files():
            (tmp_path / name).write_text(content)
    saved = tmp_path / "runs" / "heterofl-cifar10" / "config.yaml"
    saved.parent.mkdir(parents=True)
    saved.write_text((FOLDER / "demo.yaml").read_text())
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def understood(arguments, **further):
    """Whether the options of a run are, and those of a command that looks at it; nothing is built."""
    return bool(run_parser(**further).parse_args(expand(arguments)))


def understood_attack(arguments):
    """Whether the options are, and all attacks exist."""
    parser = attack_parser()
    options = parser.instantiate_classes(parser.parse_args(list(with_lists(arguments))))
    chosen = {name: value for name, value in vars(options).items() if name not in ("run", "trust")}
    return bool(AttackSuite(**chosen).callbacks)


def understood_comparison(arguments):
    """Whether the comparison exists and has runs."""
    options = compare_parser().parse_args(arguments)
    return bool(planned_runs(requested_spec(options.config, options.scale, options.seeds, options.name)))


PARSERS = {
    "fit": understood,
    "plan": lambda arguments: understood(arguments, plan=PlanSettings),
    "cost": lambda arguments: understood(arguments, cost=CostSettings),
    "attack": understood_attack,
    "compare": understood_comparison,
    "report": lambda arguments: bool(report_parser().parse_args(arguments).folders),
    **dict.fromkeys(
        ("export", "validate", "predict"),
        lambda arguments: bool(validate_parser().parse_known_args(arguments)[0].run),
    ),
    "list": lambda arguments: list_choices(arguments) == 0,
    "completion": lambda arguments: bool(completion_parser().parse_args(arguments)),
}


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=shown)
@pytest.mark.usefixtures("user_folder")
def test_command_is_understood(page, arguments):
    """By the program's own parser."""
    name, *options = arguments
    if {"--help", "--print_config"} & set(options):
        with pytest.raises(SystemExit) as end:
            PARSERS[name](options)
        assert end.value.code == 0
    else:
        assert PARSERS[name](options), page


@pytest.mark.parametrize(("page", "block"), TRANSCRIPTS, ids=[name for name, _ in TRANSCRIPTS])
@pytest.mark.usefixtures("user_folder")
def test_shown_output_is_what_the_command_prints(page, block, capsys):
    """Lines may be wrapped, and `...` stands for what was left out."""
    first, output = block.split("\n", 1)
    [arguments] = commands_of(first)
    options = ("--trainer.accelerator", "cpu", "--trainer.devices", "1", "--tracking", "disabled")
    assert exit_code(*arguments, *options) == 2, page
    printed = " ".join(capsys.readouterr().err.split())
    for part in output.split("..."):
        assert " ".join(part.split()) in printed


def test_commands_are_found():
    """Comments, continued lines, pipes and other commands do not confuse the search."""
    block = (
        "$ rampart fit --config a \\\n  --b 'c d'  # why\n# rampart fit --not\nx=1 rampart fit | tail\nother rampart\n"
    )
    assert commands_of(block) == [["fit", "--config", "a", "--b", "c d"], ["fit"]]


# ---- code ----------------------------------------------------------------------------------------------------------


DEFINING = [(name, block) for name, block in CODE if name != "README.md"]


@pytest.mark.parametrize(("page", "block"), DEFINING, ids=[f"{name}-{at}" for at, (name, _) in enumerate(DEFINING)])
@pytest.mark.usefixtures("user_folder")
def test_code_runs(page, block):
    """As it stands; the front page trains a federation, which `tests/api` does where the package is installed."""
    exec(compile(block, page, "exec"), {"__name__": "readme"})


def test_extensions_work_together(user_folder, monkeypatch):
    """A defense, an attack and a method of the pages in one run: the attack sees what the defense let through."""
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(user_folder)])  # the program adds it
    extensions = [
        *("--defenses.clip", "clip_update.ClipUpdate", "--defenses.clip.norm", "0.05"),
        *("--attacks.norms", "update_norms.UpdateNorms", "--config", "heterofl", "--model.method", "suffix.Suffix"),
    ]
    clients = ("--data.partition.clients", "10")
    assert exit_code("fit", *command(user_folder, "a", *extensions, *clients, rounds=2)) == 0
    (norms,) = load_run(user_folder / "a").record.measurements
    moved = norms.rows
    assert [client for client, _ in moved] == list(range(10))
    assert all(0.04 < float(norm) <= 0.0505 for _, norm in moved)


@pytest.mark.usefixtures("no_figures")
def test_own_data_and_network(user_folder):
    """The dataset and the network of the pages: stripes are learnt, by clients of two widths."""
    names = ("--data", "stripes.Stripes", "--model.net", "two_layers.TwoLayers", "--config", "heterofl")
    quiet = ("--tracking", "disabled", "--trainer.accelerator", "cpu", "--trainer.devices", "1")
    where = ("--run.root", str(user_folder), "--run.name", "a", "--trainer.max_epochs", "10")
    assert exit_code("fit", *names, *quiet, *where) == 0
    assert records(user_folder / "a")[-1]["server/accuracy"] > 0.9


# ---- recipes and names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "block"), YAML, ids=[name for name, _ in YAML])
@pytest.mark.usefixtures("user_folder")
def test_recipe_is_one_that_exists(page, block):
    """A block is a shipped file as it stands, or the comparison that the reader saves, which is parsed run by run."""
    if block in [path.read_text() for path in FOLDER.rglob("*.yaml")]:
        return
    assert yaml.safe_load(block), page
    assert all(parsed.config for parsed in parse_all(planned_runs(read_spec("mine.yaml"))).values())


def listed(what):
    """Names that `rampart list` shows under a heading."""
    return {name for name, _ in CATALOGUE[what][1]()}


def is_recipe(name, page):
    return find_recipe(name).is_file()


def is_test(name, page):
    path, _, function = name.partition("::")
    return (ROOT / path).is_file() and f"def {function}(" in (ROOT / path).read_text()


CHECKS = {
    "recipe": is_recipe,
    "fixed, submatrix": is_recipe,
    "fixed, random": is_recipe,
    "resampled, submatrix": is_recipe,
    "resampled, random": is_recipe,
    "attack": lambda name, page: name in listed("attacks"),
    "class": lambda name, page: name in callbacks.__all__,
    "hook": lambda name, page: hasattr(FederatedCallback, name),
    "subject": lambda name, page: name in SUBJECTS,
    "`--data`": lambda name, page: name in listed("datasets"),
    "`--data.partition`": lambda name, page: name in listed("partitions"),
    "`--model.net`": lambda name, page: name in listed("models"),
    "file": lambda name, page: (page.path.parent / name).exists(),
    "folder": lambda name, page: (page.path.parent / name).exists(),
    "file or folder": lambda name, page: (page.path.parent / name).exists(),
    "shown by": is_test,
}
"""By the head of a column, what the names in its cells must be."""


@pytest.mark.parametrize("name", BY_NAME)
def test_names_in_tables_exist(name):
    page = BY_NAME[name]
    for table in page.tables():
        for column, head in enumerate(table.head):
            for row in table.rows if head in CHECKS else ():
                assert [code for code in code_in(row[column]) if not CHECKS[head](code, page)] == []


def test_tables_are_checked():
    """Every kind of name is in some table."""
    heads = {head for page in PAGES for table in page.tables() for head in table.head}
    assert set(CHECKS) <= heads


def test_pages_name_everything():
    """No attack, defense or dataset is missing from the page of its folder."""
    attacks, defenses = BY_NAME["app/attacks/README.md"].text, BY_NAME["callbacks/README.md"].text
    assert [name for name in (*ATTACKS, *ACTIVE, *PASSIVE) if f"`{name}`" not in attacks] == []
    recipes = [recipe.name for recipe in shipped_recipes() if recipe.kind == "defense"]
    assert [name for name in recipes if f"`{name}`" not in defenses] == []
    assert [name for name in listed("datasets") if f"`{name}`" not in BY_NAME["datamodules/README.md"].text] == []


def test_changelog_names_every_moved_class():
    page = (ROOT / "CHANGELOG.md").read_text()
    moved = [
        f"| `{old}{end}` | `{new}{end}` |"
        for end, names in ((".*", MODULES), ("", CLASSES))
        for old, new in names.items()
    ]
    assert [row for row in moved if row not in page] == []


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == app.__version__ == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert len(citation["references"]) == 5


def test_nothing_needs_the_pages():
    """No module reads a README: installations have none."""
    modules = [path for folder in FOLDERS[:3] for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in modules if "README.md" in path.read_text()] == []
