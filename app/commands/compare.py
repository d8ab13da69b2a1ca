"""`rampart compare`: run a matrix of methods, defenses, datasets and seeds, and tabulate what came out.

Every cell is an ordinary run of `rampart fit`. The same command goes on where an interrupted one stopped: finished runs
are kept, unfinished ones are resumed.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from app.errors import UserError, raise_all
from app.experiments.board import Board
from app.experiments.checks import name_problems
from app.experiments.folder import ComparisonFolder, State
from app.experiments.jobs import make_job
from app.experiments.local_engine import LocalEngine, default_workers, gpus, local_shares
from app.experiments.matrix import Combination, PlannedRun, baseline_of, planned_runs
from app.experiments.parsed import ParsedRun
from app.experiments.parsing import parse_all
from app.experiments.processes import Job, cores
from app.experiments.reading import find_scale, read_spec
from app.experiments.spec import ComparisonSpec
from app.experiments.stopping import StopRequest

INTERRUPTED = 130


class Engine(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs, tell the board, and stop when asked to."""


def compare_parser() -> ArgumentParser:
    """The options of the command."""
    parser = ArgumentParser("rampart compare", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "-c",
        "--config",
        required=True,
        metavar="FILE_OR_NAME",
        help="what to compare: a file, or one that comes with the program (`rampart list comparisons` shows them)",
    )
    parser.add_argument("--scale", metavar="NAME", help="size in which to make it, one of those that the file names")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1", help="these seeds instead of those of the file")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of all comparisons (default: runs)")
    parser.add_argument("--name", help="name of the comparison's folder (default: what the file says, or its own name)")
    parser.add_argument("--jobs", type=_jobs, metavar="N", help="runs at a time (default: one per GPU or two cores)")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where runs are made: by processes of this machine, or by a Ray cluster (default: local)",
    )
    parser.add_argument(
        "--address", help="an existing Ray cluster, such as auto or HOST:6379; else one is started here"
    )
    parser.add_argument("--dry", action="store_true", help="list the runs and what would be done, and stop")
    return parser


def compare(arguments: Sequence[str]) -> int:
    """Run a comparison; returns the exit code: 0 all runs finished, 1 some failed, 130 interrupted."""
    parser = compare_parser()
    options = parser.parse_args(list(arguments))
    if options.address and options.engine != "ray":
        parser.error("--address needs --engine ray")
    spec = asked_for(options)
    cells = planned_runs(spec)
    parsed = parse_all(cells)
    folder = ComparisonFolder((options.root / spec.name).resolve())
    if options.dry:
        _show_plan(spec, cells, parsed, folder)
        return 0
    folder.claim()
    with folder.locked():
        raise_all(folder.problems(cells, parsed))
        for name in folder.left_over(cells):
            print(f"note: {name} is no longer part of the comparison, but is still shown; delete {folder.run(name)}")
        folder.write(spec, cells)
        code = _run(cells, parsed, folder, spec.name, options)
    if code != INTERRUPTED:
        _show_results(folder)
    return code


def asked_for(options: Namespace) -> ComparisonSpec:
    """The comparison that the options ask for: the file's, at the scale, with the seeds and under the name given."""
    spec = read_spec(options.config)
    if options.scale is not None:
        spec = spec.at_scale(find_scale(spec, options.scale))
    if options.seeds is not None:
        spec = spec.with_seeds(options.seeds)
    if options.name is not None:
        spec = replace(spec, name=options.name)
    if not planned_runs(spec):
        raise UserError.of("no cell has these seeds", "there is nothing to run", "name other seeds, or exclude less")
    raise_all(name_problems(spec))
    return spec


def _run(
    cells: tuple[PlannedRun, ...],
    parsed: Mapping[Combination, ParsedRun],
    folder: ComparisonFolder,
    group: str,
    options: Namespace,
) -> int:
    todo = [cell for cell in cells if folder.state(cell.name) is not State.FINISHED]
    jobs = [make_job(cell, folder, parsed, group) for cell in todo]
    done = len(cells) - len(todo)
    print(f"comparison {folder.path}: {len(cells)} runs, {done} of them finished", flush=True)
    if not jobs:
        return 0
    with StopRequest() as stop:
        engine, workers = _engine(options, len(jobs))
        board = Board(folder, jobs, done, workers)
        engine.run(jobs, board, stop)
        board.close()
    print(board.status())
    if stop.asked:
        print("interrupted; the same command goes on from here")
        return INTERRUPTED
    if board.failures:
        names = ", ".join(failure.job.name for failure in board.failures)
        print(f"failed: {names}; the same command tries them again, all others are kept")
    return 1 if board.failures else 0


def _engine(options: Namespace, jobs: int) -> tuple[Engine, int]:
    """The engine and how many runs it makes at a time."""
    if options.engine == "ray":
        from app.experiments.ray_engine import RayEngine

        cluster = RayEngine(options.address, options.jobs)
        return cluster, cluster.workers
    devices = gpus()
    workers = min(options.jobs or default_workers(jobs, devices), jobs)
    return LocalEngine(local_shares(workers, cores(), devices)), workers


def _show_plan(
    spec: ComparisonSpec,
    cells: tuple[PlannedRun, ...],
    parsed: Mapping[Combination, ParsedRun],
    folder: ComparisonFolder,
) -> None:
    """Every run with its state, and what is wrong with those that are there."""
    method, defense = baseline_of(spec, cells)
    print(f"{spec.name}: {spec.purpose}\n{len(cells)} runs in {folder.path}, compared with {method} and {defense}")
    width = max(len(cell.name) for cell in cells)
    for cell in cells:
        print(f"  {cell.name:<{width}}  {folder.state(cell.name).value:<13}  {shlex.join(cell.arguments)}")
    for problem in folder.problems(cells, parsed):
        print(f"error: {problem}")


def _show_results(folder: ComparisonFolder) -> None:
    """The table of all finished runs, and where the report is."""
    from app.commands.report import make_report  # draws; not needed to start runs

    if not any((run / "summary.json").is_file() for run in folder.path.iterdir()):
        return
    make_report([folder.path])


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no list of whole numbers such as 0,1,2") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ArgumentTypeError(f"{text!r} has negative numbers, or a number more than once")
    return tuple(seeds)


def _jobs(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)
