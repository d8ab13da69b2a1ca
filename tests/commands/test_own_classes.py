"""Classes of the user's own, from the folder the command is called in."""

import os
import subprocess
import sys

from process_kit import ROOT
from run_kit import exit_code

from app.cli import Command

PROBE = """
import contextlib
from importlib.util import find_spec
from app.cli import main
with contextlib.suppress(SystemExit):
    main(["list", "models"])
print(*(find_spec(name).origin for name in ("datamodules", "callbacks", "suffix")), sep="\\n")
"""


def test_folders_of_the_same_name_do_not_shadow_ours(tmp_path):
    """A project with `datamodules` and `callbacks` of its own can call the command, and name its own modules."""
    for name in ("datamodules", "callbacks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "suffix.py").touch()
    # -P keeps the folder out of the path that Python itself makes, as the console script does
    command = [sys.executable, "-P", "-c", PROBE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    ours = [str(ROOT / name / "__init__.py") for name in ("datamodules", "callbacks")]
    assert found.stdout.splitlines()[-3:] == [*ours, str(tmp_path / "suffix.py")]


def test_the_folder_is_in_reach_after_ours_were_loaded(tmp_path, monkeypatch):
    """An editable installation is searched after all folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    seen = []

    def loaded(command):
        seen.append(str(tmp_path) in sys.path)
        return lambda options: seen.append(sys.path[-1] == str(tmp_path)) or 0

    monkeypatch.setattr(Command, "load", loaded)
    assert exit_code("fit") == 0
    assert seen == [False, True]
