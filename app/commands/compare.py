"""`rampart compare`: run a matrix of datasets, methods, defenses and seeds, and tabulate the results.

Every entry of the matrix is an ordinary run of `rampart fit`. The same command continues after an interruption:
finished runs are kept, unfinished ones are resumed.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from app.commands.fit import quieten
from app.commands.parser import CommandParser
from app.common.ranges import Count, Positive, Seed, ranged_option
from app.common.wording import counted
from app.experiments.comparison import Comparison, Engines, requested_spec
from app.experiments.matrix import baseline_of
from app.experiments.shards import Shard
from app.results.text_table import text_table

INTERRUPTED = 130


def compare_parser() -> CommandParser:
    """The options of the command."""
    parser = CommandParser(
        "rampart compare", description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    what = "what to compare: a file, or one that comes with the program (`rampart list comparisons` shows them)"
    parser.add_argument("-c", "--config", required=True, metavar="FILE_OR_NAME", help=what)
    parser.add_argument("--scale", metavar="NAME", help="size in which to make it, one of those that the file names")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1", help="these seeds instead of those of the file")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of all comparisons (default: runs)")
    parser.add_argument("--name", help="name of the comparison's folder (default: what the file says, or its own name)")
    jobs = "runs at a time (default: one per GPU or two cores)"
    parser.add_argument("--jobs", type=ranged_option("--jobs", Count), metavar="N", help=jobs)
    gpus = "GPUs of each run: 2, or 0.5 where two runs share one (default: 1 where there are any, as many runs as GPUs)"
    parser.add_argument("--gpus_per_run", type=ranged_option("--gpus_per_run", Positive), metavar="N", help=gpus)
    where = "where runs are made: by processes of this machine, or by a Ray cluster (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=where)
    cluster = "an existing Ray cluster, such as auto or HOST:6379; else one is started here"
    parser.add_argument("--address", help=cluster)
    part = "run this part of several, such as 2/4; all write to one folder, so each job of an array can run one of them"
    parser.add_argument("--shard", type=Shard.of, metavar="I/N", help=part)
    parser.add_argument("--dry", action="store_true", help="list the runs and what would be done, and stop")
    return parser


def compare(arguments: Sequence[str]) -> int:
    """Run a comparison; returns the exit code: 0 all runs finished, 1 some failed, 130 interrupted."""
    quieten()
    parser = compare_parser()
    options = parser.parse_args(list(arguments))
    if options.address and options.engine != "ray":
        parser.error("--address needs --engine ray")
    spec = requested_spec(options.config, options.scale, options.seeds, options.name)
    comparison = Comparison(spec, options.root, options.shard)
    if options.dry:
        _show_plan(comparison)
        return 0
    comparison.run(Engines(options.jobs, options.engine, options.address, options.gpus_per_run))
    if comparison.interrupted:
        print("interrupted; the same command goes on from here")
        return INTERRUPTED
    if comparison.failed:
        print(f"failed: {', '.join(comparison.failed)}; the same command tries them again, all others are kept")
    if options.shard is not None and comparison.missing:
        _name_missing(comparison)
    elif any(comparison.folder.path.glob("*/summary.json")):
        print(comparison.report().text(), flush=True)
    return 1 if comparison.failed else 0


def _name_missing(comparison: Comparison) -> None:
    """Runs that other shards have yet to make; the last shard to end makes the report."""
    missing, place = comparison.missing, shlex.quote(str(comparison.folder.path))
    print(f"{len(missing)} of {len(comparison.runs)} runs are not finished: {', '.join(missing)}")
    print(f"the shard that finishes the last one makes the report; rampart report {place} makes one of those there are")


def _show_plan(comparison: Comparison) -> None:
    """Every run with its state, and the problems of existing runs."""
    spec, runs, folder = comparison.spec, comparison.part, comparison.folder
    method, defense = baseline_of(spec, comparison.runs)
    print(f"{spec.name}: {spec.purpose}")
    print(f"{counted(len(runs), 'run')} in {folder.path}, compared with {method} and {defense}")
    rows = [(planned.name, folder.state(planned.name).value, shlex.join(planned.arguments)) for planned in runs]
    print(text_table((), rows, left=range(3), indent="  "))
    for problem in folder.problems(runs, comparison.parsed):
        print(f"error: {problem}")


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(map(ranged_option("--seeds", Seed), text.split(",")))
    if len(set(seeds)) < len(seeds):
        raise ArgumentTypeError(f"{text!r} has a number more than once")
    return seeds
