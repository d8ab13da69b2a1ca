"""The installed package, outside the repository: the README's lines, the examples and the command."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from process_kit import Preloaded
from readme_kit import Page

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "scripts" / "examples").glob("*.py"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Python of an environment that holds the built wheel, and of this one only what others have made."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in tracked.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, check=True, text=True).stdout.strip())
    # a path file is not read for path files of its own, so that the editable installation here stays out
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def environment():
    """Variables that do not lead to the repository."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}


@pytest.fixture(scope="module")
def run_there(installed, environment):
    """Runs a program of the environment in a folder outside the repository, and returns its output."""
    preloaded = Preloaded("short", python=installed, home=installed.parent, **environment)

    def run(folder, *arguments):
        out = folder / "out"
        program = preloaded.start(*arguments, environment=environment, out=out, home=folder)
        assert program.wait() == 0, out.read_text()
        return out.read_text()

    return run


def test_package_is_the_installed_one(installed, run_there, tmp_path):
    """Nothing comes from the repository."""
    (tmp_path / "places.py").write_text("import app, callbacks, datamodules\nprint(app.__file__, callbacks.__file__)")
    for place in run_there(tmp_path, tmp_path / "places.py").split():
        assert Path(place).is_relative_to(installed.parents[1])


def test_version_of_the_installed_command(installed, environment, tmp_path):
    """In a process that has loaded nothing before."""
    rampart = [installed.parent / "rampart", "--version"]
    done = subprocess.run(rampart, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rampart 0.")


def test_lines_of_the_readme(run_there, tmp_path):
    """The Python code of the README runs as it is written."""
    blocks = Page(ROOT / "README.md").blocks("python")
    assert blocks
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    assert "yeom" in run_there(tmp_path, tmp_path / "readme.py")


def shortened(code):
    """The code with one round and one seed in the place of several."""
    code, changes = re.subn(r'(max_epochs"?[=:] ?)\d+', r"\g<1>1", code)
    assert changes
    return code.replace('"seeds": [0, 1]', '"seeds": [0]')


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(run_there, tmp_path, example):
    """Both examples run to their end and leave what they say; here with one round and one seed instead of several."""
    assert len(EXAMPLES) == 2
    (tmp_path / example.name).write_text(shortened(example.read_text()))
    run_there(tmp_path, tmp_path / example.name)
    assert list(tmp_path.glob("runs/*/summary.json")) or list(tmp_path.glob("runs/*/*/summary.json"))


def test_command(installed, run_there, tmp_path):
    """The command trains, attacks and reports."""
    options = ["--data.partition.clients", "4", "--model.net", "MLP", "--trainer.max_epochs", "1"]
    rampart = installed.parent / "rampart"
    partition = ["--data.partition", "Iid", *options]
    run_there(tmp_path, rampart, "fit", "--run.name", "mine", *partition, "--tracking", "disabled")
    run_there(tmp_path, rampart, "attack", "runs/mine", "--attacks", "yeom", "--targets", "global")
    run_there(tmp_path, rampart, "report", "runs/mine")
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
