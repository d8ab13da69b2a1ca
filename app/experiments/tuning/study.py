"""The trials of a row as a study of Optuna, in a file that its own tools read (`optuna-dashboard`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from app.common.errors import UserError
from app.experiments.tuning.space import Choices, Searched
from app.results.run.tuned import Trial


def optuna_module() -> ModuleType:
    """Optuna; refused with the remedy where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError.of(
            "the comparison asks for tuning, and Optuna is not installed",
            "no settings can be chosen",
            "install it with `pip install 'rampart-fl[tune]'`, or leave out `tune`",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Study:
    """The trials of a row: their settings from the first on, and what came of those that have ended.

    One process at a time writes to the file, which the lock of the comparison's folder ensures.

    Args:
        path: file of the study; one that is there is gone on with.
        name: of the row.
        searched: options that are searched.
        settings: of every trial.

    Raises:
        UserError: where Optuna is missing, or the file is of another study or broken.
    """

    def __init__(
        self, path: Path, name: str, searched: Sequence[Searched], settings: Sequence[Mapping[str, Any]]
    ) -> None:
        self._optuna = optuna_module()
        try:
            self._study = self._opened(path, name)
            self._add(name, searched, settings)
        except (ValueError, KeyError, OSError) as error:
            raise stale(path, str(error)) from error

    def _opened(self, path: Path, name: str) -> Any:
        journal = self._optuna.storages.journal

        storage = self._optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), _Unlocked()))
        return self._optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)

    def _add(self, name: str, searched: Sequence[Searched], settings: Sequence[Mapping[str, Any]]) -> None:
        """Add the trials that are not there yet; refused where those that are there have other settings."""
        there = [trial.params for trial in self._study.trials]
        if there != [dict(own) for own in settings[: len(there)]]:
            raise ValueError(f"the trials of {name} have other settings than the comparison now asks for")
        distributions = {each.option: self._distribution(each) for each in searched}
        for own in settings[len(there) :]:
            known = {option: distributions[option] for option in own}
            running = self._optuna.trial.TrialState.RUNNING
            trial = self._optuna.trial.create_trial(state=running, params=dict(own), distributions=known)
            self._study.add_trial(trial)

    def _distribution(self, each: Searched) -> Any:
        kinds, span = self._optuna.distributions, each.span
        if isinstance(span, Choices):
            return kinds.CategoricalDistribution(span.values)
        if span.whole:
            return kinds.IntDistribution(int(span.low), int(span.high), log=span.log)
        return kinds.FloatDistribution(span.low, span.high, log=span.log)

    @property
    def failed(self) -> set[int]:
        """Numbers of the trials that came to nothing."""
        return {trial.number for trial in self._study.get_trials(states=[self._optuna.trial.TrialState.FAIL])}

    def tell(self, trial: Trial) -> None:
        """Record the end of a trial, once."""
        recorded = self._study.trials[trial.number]
        if recorded.state.is_finished():
            return
        states = self._optuna.trial.TrialState
        if trial.state == "failed" or math.isnan(trial.accuracy):
            self._study.tell(trial.number, state=states.FAIL)
            return
        self._optuna.trial.Trial(self._study, recorded._trial_id).report(trial.accuracy, trial.rounds)
        if trial.state == "complete":
            self._study.tell(trial.number, trial.accuracy)
        else:
            self._study.tell(trial.number, state=states.PRUNED)


class _Unlocked:
    """No lock on a study: those of Optuna are links, or files that a killed process leaves behind."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def stale(path: Path, reason: str) -> UserError:
    """The error of a row whose trials belong to another comparison than the one that is asked for."""
    return UserError.of(
        f"{path.parent} holds trials that cannot be gone on with: {reason}",
        "settings would be chosen among runs of two experiments",
        f"delete {path.parent} and the runs beside it to tune again, take the change back, or choose another --name",
    )
