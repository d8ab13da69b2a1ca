"""Runs a script that Lightning starts again for a second process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


def python_path(*folders: Path) -> str:
    """`PYTHONPATH` of a started process: the product, the kits, and more folders."""
    return os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "kits", *folders)))


def on_two_processes(script: Path, place: Path, *options: str) -> None:
    """Run `script 2 place options`; a deadlock ends in a timeout."""
    ours = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    inherited = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(script), "2", str(place), *options],
        env={**inherited, **ours},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
