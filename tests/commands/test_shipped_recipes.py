"""Recipes that come with the project can be used as they are."""

import re

import pytest
import yaml
from run_kit import parsed

from app.common.trust import refuse_foreign
from app.recipes import DEFAULTS, find_recipe, merge, shipped_recipes

RECIPES = shipped_recipes()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_is_understood(recipe):
    """The real parser takes every recipe, and what the recipe says is what the run gets.

    The run needs no trust: complete configurations name defaults, too, such as objects of our modules."""
    config = parsed("--config", recipe.name)
    refuse_foreign(config, "it")
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
