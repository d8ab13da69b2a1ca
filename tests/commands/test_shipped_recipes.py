"""Recipes and commands that come with the project can be used as they are."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from run_kit import command, exit_code, parsed

from app.attacks.membership.catalogue import ATTACKS, make_attack
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE, make_reconstruction
from app.commands.attack import FACTOR_RECOVERY, attack_parser, factor_parser, with_lists
from app.commands.finished import attack_names
from app.commands.reconstruct import reconstruction_parser, wants_reconstruction
from app.recipes import DEFAULTS, find_recipe, merge, shipped_recipes

ROOT = Path(__file__).parents[2]
RECIPES = shipped_recipes()


def commands_of(text, program="rampart fit"):
    """Every `rampart fit ...` in the fenced shell blocks of a page, as argument lists."""
    blocks = re.findall(r"```(?:bash|sh|console|shell)\n(.*?)```", text, flags=re.DOTALL)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(rf"(?:^|\s|/){program}\b([^|&;>]*)", line.split(" #")[0]) for line in commands]
    return [shlex.split(match.group(1)) for match in found if match and not line_is_comment(match)]


def line_is_comment(match):
    """Whether the command is only talked about."""
    return match.string.lstrip().startswith("#")


PAGE = (ROOT / "README.md").read_text()
README = commands_of(PAGE)


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A working folder with the files that the README tells its reader to write: modules, named as its commands do."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    for module, kind in re.findall(r"--[\w.]+ ([a-z_]+)\.([A-Z]\w+)", PAGE):
        [code] = [block for block in blocks if f"class {kind}(" in block]
        (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_is_understood(recipe):
    """The real parser takes every recipe, and what the recipe says is what the run gets."""
    config = parsed("--config", recipe.name)
    asked = yaml.safe_load(recipe.path.read_text())
    assert merge(config, with_defaults(asked, config)) == config


def with_defaults(asked, config):
    """What a recipe asks for; objects in its lists with the options that it leaves out, which merging does not add."""
    if isinstance(asked, dict) and isinstance(config, dict):
        return {key: with_defaults(value, config.get(key)) for key, value in asked.items()}
    if isinstance(asked, list) and isinstance(config, list) and len(asked) == len(config):
        pairs = zip(asked, config, strict=True)
        return [
            merge(filled, one) if isinstance(one, dict) and isinstance(filled, dict) else one for one, filled in pairs
        ]
    return asked


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_gives_its_reasons(recipe):
    """The first line tells the purpose; a value is explained beside it, above it, or by the purpose alone."""
    first, *rest = recipe.path.read_text().splitlines()
    assert first.startswith("# ")
    assert recipe.purpose
    values = [line for line in rest if re.search(r":\s+[^\s#]", line)]
    unexplained = [line for line in values if "#" not in line]
    # a class named in the purpose needs no second explanation
    assert all("class_path:" in line for line in unexplained), unexplained


def test_names_are_unique_and_lead_to_their_files():
    """A name stands for one recipe."""
    names = [recipe.name for recipe in RECIPES]
    assert len(names) == len(set(names)) > 0
    assert all(find_recipe(recipe.name).samefile(recipe.path) for recipe in RECIPES)
    assert DEFAULTS not in [recipe.path for recipe in RECIPES]


@pytest.mark.skipif(not README, reason="the README shows no rampart fit command")
@pytest.mark.parametrize("arguments", README, ids=" ".join)
@pytest.mark.usefixtures("user_folder")
def test_readme_command_is_understood(arguments):
    """What the README shows can be typed."""
    if {"--help", "--print_config"} & set(arguments):
        with pytest.raises(SystemExit) as end:
            parsed(*arguments)
        assert end.value.code == 0
    else:
        assert parsed(*arguments)["model"]


@pytest.mark.skipif("on_transcript" not in PAGE, reason="the README shows no extensions")
def test_readme_extensions_work_together(user_folder, monkeypatch, capsys):
    """The README's defense, attack and method in one run: the attack sees what the defense let through."""
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(user_folder)])  # the program adds it
    extensions = [
        *("--defenses.clip", "clip_update.ClipUpdate", "--defenses.clip.norm", "0.05"),
        *("--attacks.norms", "update_norms.UpdateNorms", "--config", "heterofl", "--model.method", "suffix.Suffix"),
    ]
    clients = ("--data.partition.clients", "10")
    assert exit_code("fit", *command(user_folder, "a", *extensions, *clients, rounds=2)) == 0
    moved = re.findall(r"client (\d+) moved by ([\d.]+)", capsys.readouterr().out)
    assert [int(client) for client, _ in moved] == list(range(10))
    assert all(0.04 < float(norm) <= 0.0505 for _, norm in moved)


def test_readme_commands_are_found():
    """Comments, continued lines, pipes and other commands do not confuse the search."""
    page = (
        "```bash\n$ rampart fit --config a \\\n  --b 'c d'  # why\nrampart list\n# rampart fit --not\n"
        "x=1 rampart fit | tail\n```\n`rampart fit --inline`\n"
    )
    assert commands_of(page) == [["--config", "a", "--b", "c d"], []]


def test_scripts_are_executable():
    """Every script, and every script that the README names."""
    named = re.findall(r"scripts/([\w-]+)", PAGE)
    for name in {"demo", "test", *named}:
        assert os.access(ROOT / "scripts" / name, os.X_OK), name


@pytest.mark.parametrize("arguments", commands_of(PAGE, "rampart attack"), ids=" ".join)
def test_attack_command_of_the_readme(arguments, user_folder):
    """The parser takes it, and all attacks exist."""
    given = list(with_lists(arguments))
    if wants_reconstruction(given):
        parser = reconstruction_parser()
        chosen = parser.instantiate_classes(parser.parse_args(given)).attacks
        assert all(make_reconstruction(attack) for attack in chosen)
    elif FACTOR_RECOVERY in attack_names(given):
        assert factor_parser().parse_args(given).run
    else:
        options = attack_parser().parse_args(given)
        assert options.protocol
        assert all(make_attack(name) for name in options.attacks or [])


def test_readme_names_every_attack():
    """No attack is a secret."""
    assert [name for name in (*ATTACKS, *ACTIVE, *PASSIVE) if f"`{name}`" not in PAGE] == []
