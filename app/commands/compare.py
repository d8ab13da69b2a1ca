"""`rampart compare`: run a matrix of datasets, methods, defenses and seeds, and tabulate the results.

Every entry of the matrix is an ordinary run of `rampart fit`. The same command continues after an interruption:
finished runs are kept, unfinished ones are resumed.
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
from app.experiments.local_engine import LocalEngine, default_workers, gpus, local_shares
from app.experiments.matrix import Combination, PlannedRun, baseline_of, planned_runs
from app.experiments.parsing import ParsedRun, parse_all
from app.experiments.processes import Job, StopRequest, cores
from app.experiments.reading import find_scale, read_spec
from app.experiments.spec import ComparisonSpec
from app.results.text_table import text_table

INTERRUPTED = 130


class Engine(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs, report to the board, and stop on request."""


def compare_parser() -> ArgumentParser:
    """The options of the command."""
    parser = ArgumentParser("rampart compare", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    what = "what to compare: a file, or one that comes with the program (`rampart list comparisons` shows them)"
    parser.add_argument("-c", "--config", required=True, metavar="FILE_OR_NAME", help=what)
    parser.add_argument("--scale", metavar="NAME", help="size in which to make it, one of those that the file names")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1", help="these seeds instead of those of the file")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of all comparisons (default: runs)")
    parser.add_argument("--name", help="name of the comparison's folder (default: what the file says, or its own name)")
    parser.add_argument("--jobs", type=_jobs, metavar="N", help="runs at a time (default: one per GPU or two cores)")
    where = "where runs are made: by processes of this machine, or by a Ray cluster (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=where)
    cluster = "an existing Ray cluster, such as auto or HOST:6379; else one is started here"
    parser.add_argument("--address", help=cluster)
    parser.add_argument("--dry", action="store_true", help="list the runs and what would be done, and stop")
    return parser


def compare(arguments: Sequence[str]) -> int:
    """Run a comparison; returns the exit code: 0 all runs finished, 1 some failed, 130 interrupted."""
    parser = compare_parser()
    options = parser.parse_args(list(arguments))
    if options.address and options.engine != "ray":
        parser.error("--address needs --engine ray")
    spec = requested_spec(options)
    runs = planned_runs(spec)
    parsed = parse_all(runs)
    folder = ComparisonFolder((options.root / spec.name).resolve())
    if options.dry:
        _show_plan(spec, runs, parsed, folder)
        return 0
    folder.claim()
    with folder.locked():
        raise_all(folder.problems(runs, parsed))
        for name in folder.left_over(runs):
            print(f"note: {name} is no longer part of the comparison, but is still shown; delete {folder.run(name)}")
        folder.write(spec, runs)
        code = _run(runs, parsed, folder, spec.name, options)
    if code != INTERRUPTED:
        _show_results(folder)
    return code


def requested_spec(options: Namespace) -> ComparisonSpec:
    """The comparison of the file, at the scale, with the seeds and under the name that the options give."""
    spec = read_spec(options.config)
    if options.scale is not None:
        spec = spec.at_scale(find_scale(spec, options.scale))
    if options.seeds is not None:
        spec = spec.with_seeds(options.seeds)
    if options.name is not None:
        spec = replace(spec, name=options.name)
    if not planned_runs(spec):
        raise UserError.of("no run has these seeds", "there is nothing to run", "name other seeds, or exclude less")
    raise_all(name_problems(spec))
    return spec


def _run(
    runs: tuple[PlannedRun, ...],
    parsed: Mapping[Combination, ParsedRun],
    folder: ComparisonFolder,
    group: str,
    options: Namespace,
) -> int:
    unfinished = [planned for planned in runs if folder.state(planned.name) is not State.FINISHED]
    jobs = [folder.job(planned, parsed[planned.combination], group) for planned in unfinished]
    done = len(runs) - len(jobs)
    print(f"comparison {folder.path}: {len(runs)} runs, {done} of them finished", flush=True)
    if not jobs:
        return 0
    with StopRequest() as stop:
        engine, workers = _engine(options, len(jobs))
        board = Board(folder, jobs, done, workers)
        engine.run(jobs, board, stop)
        board.close()
    print(board.status())
    if stop.requested:
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
    runs: tuple[PlannedRun, ...],
    parsed: Mapping[Combination, ParsedRun],
    folder: ComparisonFolder,
) -> None:
    """Every run with its state, and the problems of existing runs."""
    method, defense = baseline_of(spec, runs)
    print(f"{spec.name}: {spec.purpose}\n{len(runs)} runs in {folder.path}, compared with {method} and {defense}")
    rows = [(planned.name, folder.state(planned.name).value, shlex.join(planned.arguments)) for planned in runs]
    print(text_table((), rows, left=range(3), indent="  "))
    for problem in folder.problems(runs, parsed):
        print(f"error: {problem}")


def _show_results(folder: ComparisonFolder) -> None:
    from app.commands.report import make_report  # draws; not needed to start runs

    if any(folder.path.glob("*/summary.json")):
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
