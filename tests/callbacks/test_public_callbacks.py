"""Every callback can be imported from `callbacks` and named on the command line without its module."""

import importlib
import inspect
import pkgutil

import pytest
from run_kit import parsed

import callbacks
from app.federation.hooks import FederatedCallback
from callbacks import attacks, defenses, recorders


def defined_callbacks():
    """Public callback classes of the three folders, where they are defined."""
    for folder in (attacks, defenses, recorders):
        for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            module = importlib.import_module(info.name)
            for name, kind in inspect.getmembers(module, inspect.isclass):
                if issubclass(kind, FederatedCallback) and kind.__module__ == info.name and not name.startswith("_"):
                    yield kind


def required_parameters(kind):
    """Names of the constructor's parameters without a default."""
    parameters = inspect.signature(kind).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


CALLBACKS = sorted(defined_callbacks(), key=lambda kind: kind.__name__)


def test_every_callback_is_exported():
    assert sorted(kind.__name__ for kind in CALLBACKS) == sorted(callbacks.__all__)
    assert all(getattr(callbacks, kind.__name__) is kind for kind in CALLBACKS)


def test_every_callback_has_a_short_name():
    """On the command line; those that need the run's folder are made by the program alone."""
    made = [kind for kind in CALLBACKS if not required_parameters(kind)]
    options = [text for place, kind in enumerate(made) for text in (f"--defenses.x{place}", kind.__name__)]
    config = parsed(*options)["defenses"]
    assert [config[f"x{place}"]["class_path"] for place in range(len(made))] == [
        f"callbacks.{kind.__name__}" for kind in made
    ]


@pytest.mark.parametrize("kind", CALLBACKS, ids=lambda kind: kind.__name__)
def test_every_callback_is_documented(kind):
    """An example, and a text for every option."""
    document = inspect.getdoc(kind)
    assert "Example::" in document
    assert all(f"    {name}: " in document for name in inspect.signature(kind).parameters)
