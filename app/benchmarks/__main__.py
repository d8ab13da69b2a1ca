"""`python -m app.benchmarks SUBJECT [--quick] [--json FILE]`: measure and print tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from app.benchmarks.audit import audit_tables
from app.benchmarks.defenses import defense_tables
from app.benchmarks.federation import federation_tables
from app.benchmarks.measurements import Table
from app.benchmarks.paillier import paillier_tables
from app.benchmarks.scale import scale_tables
from app.benchmarks.shadows import shadow_tables
from app.benchmarks.waffle import waffle_tables
from app.federation.execution.executors import available_cores

SUBJECTS: dict[str, Callable[[bool], Iterator[Table]]] = {
    "audit": audit_tables,
    "defenses": defense_tables,
    "federation": federation_tables,
    "paillier": paillier_tables,
    "scale": scale_tables,
    "shadows": shadow_tables,
    "waffle": waffle_tables,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure one subject and print its tables."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Speed and memory, side by side in one run.")
    parser.add_argument("subject", choices=sorted(SUBJECTS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute: for a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to FILE")
    options = parser.parse_args(arguments)
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    tables = []
    for table in SUBJECTS[options.subject](options.quick):
        print(f"\n{table}", flush=True)
        tables.append(table.as_json())
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "tables": tables}, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """Properties of the machine that the measurements depend on."""
    return {
        "cores": available_cores(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


if __name__ == "__main__":
    main()
