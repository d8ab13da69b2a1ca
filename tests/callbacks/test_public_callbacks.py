"""Every callback can be imported from `callbacks` and named on the command line without its module."""

import importlib
import inspect
import pkgutil

import pytest
from run_kit import parsed

import callbacks
from app.federation.hooks import FederatedCallback
from app.federation.transcript_recorder import TranscriptRecorder
from callbacks import attacks, defenses, recorders


def defined_callbacks():
    """Public callback classes of the three folders, where they are defined."""
    for folder in (attacks, defenses, recorders):
        for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            module = importlib.import_module(info.name)
            for name, kind in inspect.getmembers(module, inspect.isclass):
                if issubclass(kind, FederatedCallback) and kind.__module__ == info.name and not name.startswith("_"):
                    yield kind


def parameters(kind):
    """Of the constructor; none where it has none of its own."""
    return [] if kind.__init__ is object.__init__ else list(inspect.signature(kind).parameters.values())


CALLBACKS = sorted([*defined_callbacks(), TranscriptRecorder], key=lambda kind: kind.__name__)
"""With the recorder of the transcript, which the federation itself needs."""


def test_every_callback_is_exported():
    assert sorted(kind.__name__ for kind in CALLBACKS) == sorted(callbacks.__all__)
    assert all(getattr(callbacks, kind.__name__) is kind for kind in CALLBACKS)


def test_every_callback_has_a_short_name():
    """On the command line, but for the one that cannot do without a folder."""
    required = {kind for kind in CALLBACKS for one in parameters(kind) if one.default is one.empty}
    assert required == {callbacks.RunRecorder}
    made = [kind for kind in CALLBACKS if kind not in required]
    sections = ["defenses" if kind.kind == "defense" else "attacks" for kind in made]
    options = [f"--{section}.{kind.__name__}={kind.__name__}" for section, kind in zip(sections, made, strict=True)]
    config = parsed(*options)
    assert [config[section][kind.__name__]["class_path"] for section, kind in zip(sections, made, strict=True)] == [
        f"callbacks.{kind.__name__}" for kind in made
    ]


@pytest.mark.parametrize("kind", CALLBACKS, ids=lambda kind: kind.__name__)
def test_every_callback_is_documented(kind):
    """An example, and a text for every option."""
    document = inspect.getdoc(kind)
    assert "Example::" in document
    assert all(f"    {name}: " in document for name in (one.name for one in parameters(kind)))
