"""Tunes the rows of a comparison: every row gets the same number of trials, of which the best one's settings are used.

A trial is a run of the row without attacks, on the members that its runs train on, evaluated on the validation split.
After a third of the rounds, the worse half of a row's trials stops. What is tried and chosen depends neither on how
many runs are made at a time, nor on whether the tuning was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.common.errors import Problem, raise_all
from app.common.wording import counted
from app.experiments.board import Board
from app.experiments.engines.processes import Job
from app.experiments.folder import ComparisonFolder, State
from app.experiments.matrix import Combination, PlannedRun, planned_run, run_name
from app.experiments.parsing import ParsedRun, parse_all
from app.experiments.spec import ComparisonSpec, Tune
from app.experiments.tuning.space import Searched, points, row_space, space_problems
from app.experiments.tuning.study import Study, optuna_module, stale
from app.experiments.tuning.trials import read_trial
from app.results.run.labels import RunLabels
from app.results.run.tuned import TUNING, Trial, TunedRow, best, read_tuned, write_tuned

LEAST_ROUNDS = 3
"""Rounds below which no trial stops early."""

LEAST_TRIALS = 4
"""Trials below which none stops early."""

REFUSED = 1
"""Exit code of a run that cannot be made with its settings, or learns nothing; others may end otherwise next time."""

IN_TRIALS = (
    *("--data.holdout.evaluated", "validation", "--attacks", "null"),
    *("--transcript.last", "0", "--transcript.rounds", "[]", "--tracking", "disabled", "--run.figures", "false"),
)
"""Options of every trial: no test set, no attacks, and nothing kept for either."""

Work = Callable[[ComparisonFolder, Sequence[Job]], Board | None]
"""Makes runs and reports how they ended; None where that was interrupted."""


@dataclass(frozen=True, eq=False)
class RowPlan:
    """What is to be tried in a row."""

    labels: RunLabels  # of its trials
    searched: tuple[Searched, ...]
    parsed: ParsedRun  # configuration of the recipe's trial
    trials: tuple[PlannedRun, ...]
    settings: tuple[Mapping[str, Any], ...]  # of every trial
    rung: int | None  # rounds after which the worse half stops; None where none does

    @property
    def combination(self) -> Combination:
        return self.trials[0].combination

    @property
    def name(self) -> str:
        """Name of the row that is safe for files."""
        return run_name(self.labels).removesuffix(f"-s{self.labels.seed}")


class Tuner:
    """The tuning of a comparison in its folder.

    Attributes:
        rows: what is tried in every row.
        folder: where trials are kept.
        unfinished: names of the trials that ended unexpectedly and have to be tried again.
    """

    def __init__(
        self,
        spec: ComparisonSpec,
        tune: Tune,
        runs: Sequence[PlannedRun],
        configs: Mapping[Combination, ParsedRun],
        comparison: ComparisonFolder,
    ) -> None:
        """Plan the trials of the rows that runs belong to.

        Args:
            spec: the comparison.
            tune: how it is tuned.
            runs: those of the rows that are tuned here.
            configs: configurations of all rows.
            comparison: folder of its runs.

        Raises:
            UserError: where Optuna is missing, or an option cannot be searched.
        """
        optuna_module()
        raise_all(space_problems(tune.space, [one.config for one in configs.values()]))
        self._spec, self._tune = spec, tune
        self.folder = ComparisonFolder(comparison.path / TUNING)
        self.unfinished: list[str] = []
        first = {planned.combination: planned for planned in reversed(runs)}
        recipes = [
            self._trial(replace(first[row].labels, seed=tune.seed), {}, 0)
            for row in dict.fromkeys(run.combination for run in runs)
        ]
        parsed = parse_all(recipes)
        self.rows = tuple(self._plan(recipe, parsed[recipe.combination]) for recipe in recipes)

    def _plan(self, recipe: PlannedRun, parsed: ParsedRun) -> RowPlan:
        tune, labels = self._tune, recipe.labels
        axis = next((entry.swept for entry in self._spec.defenses if entry.name == labels.defense), "")
        searched = row_space(tune.space, parsed.config, axis)
        settings = points(searched, tune.trials, tune.seed)
        trials = [self._trial(labels, own, number) for number, own in enumerate(settings)]
        rounds = parsed.rounds or 0
        early = tune.prune and rounds >= LEAST_ROUNDS and tune.trials >= LEAST_TRIALS
        rung = math.ceil(rounds / 3) if early else None
        return RowPlan(labels, tuple(searched), parsed, tuple(trials), tuple(settings), rung)

    def _trial(self, labels: RunLabels, settings: Mapping[str, Any], number: int) -> PlannedRun:
        planned = planned_run(self._spec, labels, settings)
        return replace(planned, arguments=(*planned.arguments, *IN_TRIALS), trial=number)

    # ---- what is there -----------------------------------------------------------------------------------------------

    def chosen(self) -> dict[Combination, TunedRow]:
        """Rows whose settings are chosen."""
        return {row.combination: read_tuned(path) for row in self.rows if (path := self._record(row)).is_file()}

    def plan(self) -> str:
        """How much there is to be tried, in words."""
        left = len(self.rows) - len(self.chosen())
        tuned = f" ({len(self.rows) - left} tuned already)" if left < len(self.rows) else ""
        rungs = sorted({row.rung for row in self.rows if row.rung})
        early = f"; the worse half of a row's trials stops after round {' or '.join(map(str, rungs))}" if rungs else ""
        return (
            f"tuning with seed {self._tune.seed}: {counted(self._tune.trials, 'trial')} of each of "
            f"{counted(left, 'row')}{tuned}{early}"
        )

    def problems(self) -> Iterator[Problem]:
        """Trials and choices that were made with other settings than the comparison now asks for."""
        chosen = self.chosen()
        for row in self.rows:
            saved = self.folder.config(row.trials[0].name)
            changed = row.parsed.differs_in(saved) if saved else []
            if changed:
                yield from stale(self._study(row), f"{', '.join(changed)} of {row.name} differ").problems
            elif (known := chosen.get(row.combination)) and _tried(known) != [dict(own) for own in row.settings]:
                yield from stale(self._study(row), f"{row.name} was tuned with other trials").problems

    def _record(self, row: RowPlan) -> Path:
        return self.folder.path / f"{row.name}.json"

    def _study(self, row: RowPlan) -> Path:
        return self.folder.path / f"{row.name}.optuna.jsonl"

    # ---- the work ----------------------------------------------------------------------------------------------------

    def run(self, work: Work) -> bool:
        """Tune the rows that are not tuned yet; returns whether all are, and otherwise the same call goes on."""
        chosen = self.chosen()
        rows = [row for row in self.rows if row.combination not in chosen]
        if not rows:
            return True
        self.folder.claim()
        print(f"{self.plan()}, in {self.folder.path}", flush=True)
        studies = [Study(self._study(row), row.name, row.searched, row.settings) for row in rows]
        halves = [_until(self._job(run, row), row.rung) for row, run in self._halves(rows, studies) if row.rung]
        return (
            self._ended(halves, work, rows, studies)
            and self._ended(list(self._rest(rows, studies)), work, rows, studies)
            and self._conclude(rows, studies)
        )

    def _halves(self, rows: Sequence[RowPlan], studies: Sequence[Study]) -> Iterator[tuple[RowPlan, PlannedRun]]:
        """Trials that have not come as far as their row's trials are compared."""
        for row, study in zip(rows, studies, strict=True):
            for number, run in enumerate(row.trials):
                begun = self.folder.rounds_done(run.name) >= (row.rung or 0)
                if number not in study.failed and not begun and self.folder.state(run.name) is not State.FINISHED:
                    yield row, run

    def _rest(self, rows: Sequence[RowPlan], studies: Sequence[Study]) -> Iterator[Job]:
        """Trials that are to train all rounds and have not."""
        for row, study in zip(rows, studies, strict=True):
            for number in self._going_on(row, study):
                if self.folder.state(row.trials[number].name) is not State.FINISHED:
                    yield self._job(row.trials[number], row)

    def _going_on(self, row: RowPlan, study: Study) -> list[int]:
        """Numbers of the trials that train all rounds: the recipe, and the better half of all, unless they fail."""
        order = list(range(len(row.trials)))
        if row.rung is not None:
            halfway = [read_trial(self.folder.run(run.name), row.rung).accuracy for run in row.trials]
            order.sort(key=lambda number: (math.inf if math.isnan(halfway[number]) else -halfway[number], number))
            order = [0, *order[: math.ceil(len(order) / 2)]]
        return sorted(set(order) - study.failed)

    def _ended(self, jobs: list[Job], work: Work, rows: Sequence[RowPlan], studies: Sequence[Study]) -> bool:
        """Whether trials have ended, also those that were refused, and need not be tried again."""
        if not jobs:
            return True
        board = work(self.folder, jobs)
        if board is None:
            return False
        refused = [failure.job.name for failure in board.failures if failure.code == REFUSED]
        for row, study in zip(rows, studies, strict=True):
            for number, run in enumerate(row.trials):
                if run.name in refused and self.folder.state(run.name) is not State.FINISHED:
                    study.tell(Trial(number, row.settings[number], "failed", 0, math.nan, 0.0))
        self.unfinished = [failure.job.name for failure in board.failures if failure.code != REFUSED]
        return not self.unfinished

    def _conclude(self, rows: Sequence[RowPlan], studies: Sequence[Study]) -> bool:
        for row, study in zip(rows, studies, strict=True):
            trials = tuple(self._results(row, study))
            for trial in trials:
                study.tell(trial)
            labels = row.labels
            write_tuned(
                self._record(row),
                TunedRow(
                    *(labels.dataset, labels.method, labels.defense, self._tune.seed),
                    asked={each.option: each.asked for each in row.searched if not each.own},
                    searched={each.option: str(each.span) for each in row.searched},
                    recipe={each.option: each.recipe for each in row.searched},
                    trials=trials,
                    chosen=best(trials),
                ),
            )
        return True

    def _results(self, row: RowPlan, study: Study) -> Iterator[Trial]:
        going_on = self._going_on(row, study)
        for number, run in enumerate(row.trials):
            whole = number in going_on
            end = read_trial(self.folder.run(run.name), None if whole else row.rung)
            failed = number in study.failed or math.isnan(end.accuracy)
            yield replace(
                end,
                number=number,
                settings=dict(row.settings[number]),
                state="failed" if failed else "complete" if whole else "stopped",
            )

    def _job(self, run: PlannedRun, row: RowPlan) -> Job:
        return self.folder.job(run, row.parsed, f"{self._spec.name}-tuning")


def tuned_runs(
    spec: ComparisonSpec, runs: Iterable[PlannedRun], chosen: Mapping[Combination, TunedRow]
) -> tuple[PlannedRun, ...]:
    """The runs with the chosen settings of their rows; those of rows that are not tuned yet as they are."""
    return tuple(
        planned_run(spec, planned.labels, chosen[planned.combination].settings)
        if planned.combination in chosen
        else planned
        for planned in runs
    )


def _until(job: Job, rounds: int | None) -> Job:
    """A job that ends after some rounds."""
    return replace(
        job,
        command=(*job.command, "--run.until", str(rounds)),
        summary=job.summary.parent / "metrics.jsonl",
        rounds=rounds,
    )


def _tried(row: TunedRow) -> list[dict[str, Any]]:
    return [dict(trial.settings) for trial in row.trials]
