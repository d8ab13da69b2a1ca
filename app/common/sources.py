"""Classes as their source files state them: listed without the seconds that importing them takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
"""The folder of all packages."""


@dataclass(frozen=True)
class SourceClass:
    """A class of ours; bases that are not ours, or lie outside of the packages that are read, are not followed."""

    name: str
    summary: str  # first line of its docstring
    bases: tuple[str, ...]
    constants: dict[str, object]  # values of plain assignments in its body
    defined: frozenset[str]  # names of its concrete methods and assignments
    abstract: frozenset[str]  # names of its abstract methods

    @classmethod
    def of(cls, node: ast.ClassDef) -> Self:
        """The class of a definition."""
        named = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        methods = {one for one in node.body if isinstance(one, ast.FunctionDef)}
        abstract = {
            one.name for one in methods if any("abstractmethod" in ast.dump(mark) for mark in one.decorator_list)
        }
        values = dict(_assignments(node))
        return cls(
            name=node.name,
            summary=(ast.get_docstring(node) or "").split("\n", 1)[0],
            bases=tuple(base.id for base in named if isinstance(base, ast.Name)),
            constants={name: value.value for name, value in values.items() if isinstance(value, ast.Constant)},
            defined=frozenset({*values, *(one.name for one in methods)} - abstract),
            abstract=frozenset(abstract),
        )


class Sources:
    """The classes of some packages by name.

    Args:
        packages: dotted names; packages and modules inside of them are read too.
    """

    def __init__(self, *packages: str) -> None:
        self._classes = {one.name: one for package in packages for one in _classes(package)}

    def concrete(self, base: str, package: str) -> list[SourceClass]:
        """All public classes of a package that derive from a base, or are it, and can be created; by name."""
        found = [one for one in _classes(package) if not one.name.startswith("_") and base in self._family(one.name)]
        return sorted((one for one in found if not self._abstract(one.name)), key=lambda one: one.name)

    def summary(self, name: str) -> str:
        """First line of a class's docstring, which it may inherit."""
        return next((one.summary for one in self._lineage(name) if one.summary), "")

    def constant(self, name: str, attribute: str) -> object:
        """Value of a class attribute, which may be inherited; None where it is none that the source spells out."""
        return next((one.constants[attribute] for one in self._lineage(name) if attribute in one.constants), None)

    def _lineage(self, name: str) -> Iterator[SourceClass]:
        """A class, then its bases."""
        if name in self._classes:
            yield self._classes[name]
            for base in self._classes[name].bases:
                yield from self._lineage(base)

    def _family(self, name: str) -> set[str]:
        return {one.name for one in self._lineage(name)}

    def _abstract(self, name: str) -> frozenset[str]:
        """Methods that a class leaves to its subclasses."""
        if name not in self._classes:
            return frozenset()
        one = self._classes[name]
        inherited = frozenset[str]().union(*map(self._abstract, one.bases))
        provided = one.defined.union(*(other.defined for base in one.bases for other in self._lineage(base)))
        return (inherited - provided) | one.abstract


def _mark(decorator: ast.expr) -> str:
    return decorator.id if isinstance(decorator, ast.Name) else ""


def exported(package: str) -> list[str]:
    """The names in the `__all__` of a package."""
    return [str(name) for name in ast.literal_eval(_assigned(f"{package}.__init__", "__all__"))]


def comprised(module: str, variable: str) -> list[str]:
    """Classes that a variable of a module is made from, by `for kind in (One, Another)`, in this order."""
    value = _assigned(module, variable)
    assert isinstance(value, ast.DictComp)
    return [node.id for node in ast.walk(value.generators[0].iter) if isinstance(node, ast.Name)]


def docstring(module: str) -> str:
    """What a module says about itself."""
    return ast.get_docstring(_tree(_file(module)), clean=False) or ""


def _assigned(module: str, variable: str) -> ast.expr:
    return dict(_assignments(_tree(_file(module))))[variable]


def _file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _assignments(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names and values of the assignments in a body."""
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        yield from ((target.id, value) for target in targets if isinstance(target, ast.Name) and value is not None)


@cache
def _classes(package: str) -> tuple[SourceClass, ...]:
    files = sorted(_file(package).with_suffix("").rglob("*.py"))
    trees = [_tree(file) for file in files if "\nclass " in file.read_text(encoding="utf-8")]
    return tuple(SourceClass.of(node) for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
