"""Everything public says what it does and which types it takes."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for package in ("app", "callbacks", "datamodules") for path in (ROOT / package).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(name):
    """Whether a name is meant for others."""
    return not name.startswith("_")


def definitions(path):
    """Public classes, functions and methods of a file with their names; what is nested in functions is not public."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, Function) and public(node.name):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and public(node.name):
            yield node.name, node
            for method in node.body:
                if isinstance(method, Function) and (public(method.name) or method.name == "__init__"):
                    yield f"{node.name}.{method.name}", method


def bare_parameters(function, method):
    """Parameters without a type."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in function.decorator_list)
    counted = every[1:] if method and not static else every
    counted += [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [argument.arg for argument in counted if argument.annotation is None]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_are_documented_and_typed(path):
    """A docstring for every module, public class and public function; a type for every parameter and result."""
    wrong = []
    tree = ast.parse(path.read_text())
    if tree.body and not ast.get_docstring(tree):
        wrong.append("the module has no docstring")
    for name, node in definitions(path):
        if "." not in name and not ast.get_docstring(node):
            wrong.append(f"{name} has no docstring")
        if isinstance(node, Function):
            if bare := bare_parameters(node, method="." in name):
                wrong.append(f"{name} leaves {', '.join(bare)} without a type")
            if node.returns is None:
                wrong.append(f"{name} has no return type")
    assert not wrong
