"""Classes of the user's own, from the folder the command is called in."""

import subprocess
import sys


def test_folders_of_the_same_name_do_not_shadow_ours(tmp_path):
    """A project with `datamodules` and `callbacks` of its own can call the command, and name its own modules."""
    for name in ("datamodules", "callbacks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "suffix.py").write_text(
        "from app.federation.submodels import Prefix\nclass Suffix(Prefix):\n    '''Mine.'''\n"
    )
    command = [sys.executable, "-m", "app.cli", "fit", "--model.method", "suffix.Suffix", "--print_config"]
    # -P keeps the folder out of the path that Python itself makes, as the console script does
    command.insert(1, "-P")
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert printed.returncode == 0, printed.stderr
    assert "suffix.Suffix" in printed.stdout
    assert "datamodules.Digits" in printed.stdout
