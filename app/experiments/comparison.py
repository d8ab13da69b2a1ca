"""Comparisons: a matrix of datasets, methods, defenses and seeds, run and then reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from app.common.errors import UserError, raise_all
from app.common.ranges import Count, Positive, range_problems
from app.common.wording import counted
from app.experiments.board import Board
from app.experiments.checks import name_problems
from app.experiments.engines.gpus import check_per_run, gpus
from app.experiments.engines.local_engine import LocalEngine, local_shares, workers_for
from app.experiments.engines.processes import Job, StopRequest, cores
from app.experiments.folder import ComparisonFolder, State
from app.experiments.locks import at_work, others_at_work, turn
from app.experiments.matrix import Combination, leaders_first, planned_runs
from app.experiments.parsing import ParsedRun, misnamed_datasets, parse_all
from app.experiments.reading import find_scale, read_spec
from app.experiments.shards import Shard
from app.experiments.spec import ComparisonSpec
from app.experiments.tuning.tuner import Tuner, tuned_runs
from app.results.report.report import Report, report
from app.results.run.naming import named_folder


class Engine(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Sequence[Job], board: Board, stop: StopRequest) -> None:
        """Run all jobs, report to the board, and stop on request."""


@dataclass(frozen=True)
class Engines:
    """Where runs are made.

    Attributes:
        jobs: runs at a time; by default one per GPU or two cores.
        engine: processes of this machine, or a Ray cluster.
        address: an existing Ray cluster, such as `auto` or `HOST:6379`; else one is started here.
        gpus_per_run: GPUs of each run, such as 2, or 0.5 where two share one; by default one where there are any.
    """

    jobs: Count | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    gpus_per_run: Positive | None = None

    def __post_init__(self) -> None:
        raise_all(range_problems(self))
        if self.gpus_per_run is not None:
            check_per_run(self.gpus_per_run)


class Comparison:
    """A planned comparison in its folder.

    Attributes:
        spec: what is compared.
        runs: all runs of the matrix.
        part: those of them that are run here: all, or those of a shard.
        parsed: the configuration of every combination, as far as rows are tuned with the settings chosen.
        tuner: of the rows that are run here; None where they are not tuned.
        folder: where the runs are kept.
        failed: names of the runs that failed.
        interrupted: whether it was stopped before its end.
    """

    def __init__(self, spec: ComparisonSpec, root: Path, shard: Shard | None = None) -> None:
        """Plan a comparison and check the configurations of all runs; nothing is run or written.

        Raises:
            UserError: with the problems of all combinations.
        """
        self.spec, self.runs = spec, planned_runs(spec)
        self.parsed: Mapping[Combination, ParsedRun] = parse_all(self.runs)
        raise_all(misnamed_datasets(spec, self.parsed))
        self.shard = shard
        tuned = spec.tune is not None
        self.part = self.runs if shard is None else shard.part(self.runs, self.parsed, by_row=tuned)
        self.folder = ComparisonFolder(named_folder(root, spec.name, "--root", "--name").resolve())
        self.tuner = None if spec.tune is None else Tuner(spec, spec.tune, self.part, self.parsed, self.folder)
        self._tuned = self.part  # with the settings chosen
        self.failed: list[str] = []
        self.interrupted = False

    def run(self, engines: Engines) -> None:
        """Run what is not finished yet."""
        self.folder.claim()
        with at_work(self.folder.path, self.shard):
            if self.tuner is not None:
                raise_all(self.tuner.problems())
                self._take_settings(self.tuner)
            with turn(self.folder.path):
                self._register()
            if self.tuner is None or self._tune(self.tuner, engines):
                self._run(engines)

    @property
    def missing(self) -> list[str]:
        """Names of the runs of the whole comparison that are not finished."""
        return [planned.name for planned in self.runs if self.folder.state(planned.name) is not State.FINISHED]

    def report(self) -> Report:
        """The report of the finished runs, made by one process at a time."""
        with turn(self.folder.path):
            return report(self.folder.path)

    def _register(self) -> None:
        """Write `comparison.json`, or check that another shard has written the same."""
        if self.shard is not None and self.folder.holds(self.spec, self.runs):
            raise_all(self.folder.problems(self.part, self.parsed))
            return
        others = others_at_work(self.folder.path, self.shard)
        if others:
            raise UserError.of(
                f"shards {', '.join(map(str, others))} are at work on {self.folder.path} with other runs or settings",
                "the table would mix two experiments",
                "start all shards with the same file and options, or choose another --name",
            )
        raise_all(self.folder.problems(self.runs, self.parsed))
        for name in self.folder.left_over(self.runs):
            place = self.folder.run(name)
            print(f"note: {name} is no longer part of the comparison, but is still shown; delete {place}")
        self.folder.write(self.spec, self.runs)

    def _take_settings(self, tuner: Tuner) -> None:
        """Give the rows that are tuned already the settings that were chosen."""
        self._tuned = tuned_runs(self.spec, self.part, chosen := tuner.chosen())
        self.parsed = {**self.parsed, **parse_all(run for run in self._tuned if run.combination in chosen)}

    def _tune(self, tuner: Tuner, engines: Engines) -> bool:
        """Choose the settings of the rows that are not tuned yet; returns whether all of them are tuned now."""

        def work(folder: ComparisonFolder, jobs: Sequence[Job]) -> Board | None:
            board = self._work(folder, jobs, 0, engines)
            return None if self.interrupted else board

        if not tuner.run(work):
            self.failed = tuner.unfinished
            return False
        self._take_settings(tuner)
        raise_all(self.folder.problems(self.part, self.parsed))
        return True

    def _run(self, engines: Engines) -> None:
        folder, runs = self.folder, self._tuned
        unfinished = [planned for planned in leaders_first(runs) if folder.state(planned.name) is not State.FINISHED]
        jobs = [folder.job(planned, self.parsed[planned.combination], self.spec.name) for planned in unfinished]
        done = len(runs) - len(jobs)
        which = "" if self.shard is None else f"shard {self.shard} with {len(runs)} of "
        print(f"comparison {folder.path}: {which}{counted(len(self.runs), 'run')}, {done} of them finished", flush=True)
        if jobs:
            board = self._work(folder, jobs, done, engines)
            self.failed = [] if self.interrupted else [failure.job.name for failure in board.failures]

    def _work(self, folder: ComparisonFolder, jobs: Sequence[Job], done: int, engines: Engines) -> Board:
        """Make runs; `done` of the same kind were finished before."""
        with StopRequest() as stop:
            engine, workers = _engine(engines, len(jobs))
            if lowered := _lowered(engines, len(jobs), workers):
                print(lowered, flush=True)
            board = Board(folder, jobs, done, workers)
            engine.run(jobs, board, stop)
            board.close()
        print(board.status())
        self.interrupted = stop.requested
        return board


def compare(
    config: str | Path | Mapping[str, Any],
    scale: str | None = None,
    seeds: Sequence[int] | None = None,
    root: str | Path = "runs",
    name: str | None = None,
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    gpus_per_run: float | None = None,
    shard: str | None = None,
) -> Report:
    """Run a comparison, or what is left of it, and report its runs.

    Example::

        compare({"datasets": ["digits"], "methods": ["heterofl"], "defenses": ["none", "memdefense"], "seeds": [0, 1]})

    Args:
        config: a file, the name of a shipped comparison, or the content of such a file.
        scale: size in which to make it, one of those that the file names.
        seeds: these instead of those of the file.
        root: folder of all comparisons.
        name: name of the comparison's folder; by default what the file says, or the file's own name.
        jobs: runs at a time; by default one per GPU or two cores.
        engine: where runs are made: by processes of this machine, or by a Ray cluster.
        address: an existing Ray cluster; else one is started here.
        gpus_per_run: GPUs of each run, such as 2, or 0.5 where two share one; by default one where there are any.
        shard: run one of several parts only, such as `2/4`; the report is of what all of them have finished so far.

    Raises:
        UserError: where settings are wrong, no run has finished, or runs failed; those that finished are kept.
        KeyboardInterrupt: where it was interrupted; the same call goes on from there.
    """
    part = None if shard is None else Shard.of(shard)
    engines = Engines(jobs, engine, address, gpus_per_run)
    comparison = Comparison(requested_spec(config, scale, seeds, name), Path(root), part)
    comparison.run(engines)
    if comparison.interrupted:
        raise KeyboardInterrupt
    if comparison.failed:
        raise UserError.of(
            f"{counted(len(comparison.failed), 'run')} failed: {', '.join(comparison.failed)}",
            f"they would be missing in the report; their messages are in {comparison.folder.path}",
            "correct the cause and call again: all others are kept",
        )
    return comparison.report()


def requested_spec(
    config: str | Path | Mapping[str, Any],
    scale: str | None = None,
    seeds: Sequence[int] | None = None,
    name: str | None = None,
) -> ComparisonSpec:
    """The comparison at the scale, with the seeds and under the name that are asked for."""
    spec = read_spec(config)
    if scale is not None:
        spec = spec.at_scale(find_scale(spec, scale))
    if seeds is not None:
        spec = spec.with_seeds(tuple(seeds))
        raise_all(range_problems(spec))
    if name is not None:
        spec = replace(spec, name=name)
    if not planned_runs(spec):
        raise UserError.of("no run has these seeds", "there is nothing to run", "name other seeds, or exclude less")
    raise_all(name_problems(spec))
    return spec


def _lowered(engines: Engines, jobs: int, workers: int) -> str:
    """Why fewer runs are made at a time than was asked for; empty where as many are, or no more are left."""
    if engines.jobs is None or engines.gpus_per_run is None or workers >= min(jobs, engines.jobs):
        return ""
    most = f"the GPUs suffice for no more with --gpus_per_run {engines.gpus_per_run:g}"
    return f"note: {workers} {'run' if workers == 1 else 'runs'} at a time instead of {engines.jobs} (--jobs): {most}"


def _engine(engines: Engines, jobs: int) -> tuple[Engine, int]:
    """The engine and how many runs it makes at a time."""
    if engines.engine == "ray":
        from app.experiments.engines.ray_engine import RayEngine

        cluster = RayEngine(engines.address, engines.jobs, engines.gpus_per_run)
        return cluster, cluster.workers
    devices = gpus()
    workers = workers_for(jobs, engines.jobs, devices, engines.gpus_per_run)
    return LocalEngine(local_shares(workers, cores(), devices, engines.gpus_per_run)), workers
