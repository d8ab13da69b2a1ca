"""The table of what goes together: each rule fires where it should, and nowhere else."""

from itertools import pairwise

import pytest

from app.privacy.compatibility import RULES, clashes
from app.privacy.traits import Component


def found(*parts):
    """Codes of the rules that apply."""
    return [clash.rule.code for clash in clashes(parts)]


def part(name, *traits, place=None):
    """A part of a run."""
    return Component(name, frozenset(traits), place)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_fires_on_its_own_traits(rule):
    """With names filled in, in whatever order the parts are listed, and only in its own order where that matters."""
    first, second = part("Alpha", rule.first, place=0), part("Beta", rule.second, place=1)
    assert rule.code in found(first, second)
    problem = next(clash.problem for clash in clashes([first, second]) if clash.rule is rule)
    texts = (problem.cause, problem.consequence, problem.remedy)
    assert all("{" not in text for text in texts)
    assert problem.consequence
    assert rule.severity == "note" or problem.remedy
    turned = found(part("Alpha", rule.first, place=1), part("Beta", rule.second, place=0))
    assert (rule.code in turned) != rule.ordered


def test_codes_are_unique():
    """A code names one rule."""
    codes = sorted(rule.code for rule in RULES)
    assert all(one != other for one, other in pairwise(codes))


def test_no_rule_fires_on_one_part_alone():
    """A defense does not clash with itself."""
    every = {trait for rule in RULES for trait in (rule.first, rule.second)}
    assert not found(part("All", *every, place=0))


def test_every_pair_once():
    """Three channels are three clashes."""
    names = [part(name, "channel", place=place) for place, name in enumerate("abc")]
    assert found(*names) == ["two-channels"] * 3


def test_sound_stack():
    """Noise first and pruning after it is post-processing."""
    stack = [part("DP", "sample-dp", place=0), part("Mem", "pruned-uploads", place=1)]
    assert {clash.rule.severity for clash in clashes(stack)} == {"note"}
