"""`rampart compare`: run a matrix of datasets, methods, defenses and seeds, and tabulate the results.

Every entry of the matrix is an ordinary run of `rampart fit`. The same command continues after an interruption:
finished runs are kept, unfinished ones are resumed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from app.commands.fit import quieten
from app.commands.options import compare_parser
from app.common.wording import counted
from app.experiments.comparison import Comparison, Engines, requested_spec
from app.experiments.matrix import baseline_of
from app.results.text_table import text_table

INTERRUPTED = 130


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
    if (tuner := comparison.tuner) is not None:
        print(f"before them, {tuner.plan()}")
        lines = [
            (row.name, each.option, str(each.span), str(each.recipe)) for row in tuner.rows for each in row.searched
        ]
        print(text_table(("row", "searched", "range", "recipe"), lines, left=range(4), indent="  "))
        for problem in tuner.problems():
            print(f"error: {problem}")
    for problem in folder.problems(runs, comparison.parsed):
        print(f"error: {problem}")
