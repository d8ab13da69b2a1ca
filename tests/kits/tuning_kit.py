"""Comparisons that tune, and trials whose validation accuracy is planted."""

import json
import math
from pathlib import Path

import yaml
from comparison_kit import spec_of

from app.configuration import complete_config, expand, run_parser
from app.experiments.engines.processes import Job
from app.experiments.folder import ComparisonFolder
from app.experiments.matrix import planned_runs
from app.experiments.parsing import parse_all
from app.experiments.tuning.space import RATE
from app.experiments.tuning.tuner import Tuner

ROUNDS = 6
TUNED = {
    "methods": ["fedavg"],
    "defenses": {"none": None, "dp-sgd": None},
    "set": {"trainer.max_epochs": ROUNDS, "model.local.epochs": 4},
    "tune": {"trials": 6},
}


def tuned_spec(folder: Path, **changes):
    """A comparison of two rows with six trials each, with some keys changed."""
    return spec_of(folder, **{**TUNED, **changes})


def tuner_of(folder: Path, **changes) -> Tuner:
    """Its tuning, in a folder `runs`."""
    spec = tuned_spec(folder, **changes)
    runs = planned_runs(spec)
    return Tuner(spec, spec.tune, runs, parse_all(runs), ComparisonFolder(folder / "runs"))


def planted(config: dict) -> float:
    """Validation accuracy of a trial: the nearer its learning rate is to .004, the higher."""
    return 1 - abs(math.log10(config["model"]["local"]["optimizer"]["init_args"]["lr"] / 0.004)) / 4


class Board:
    """What a tuner needs to know of how jobs ended: those that failed, with their exit codes."""

    def __init__(self, failures=()):
        self.failures = list(failures)


class Failed:
    """A job that ended with an exit code."""

    def __init__(self, job: Job, code: int):
        self.job, self.code = job, code


class Laboratory:
    """Makes trials without training: writes metrics of every round, which rise to the planted accuracy.

    Args:
        accuracy: of a trial's configuration.
        most: jobs before it is interrupted.
        codes: exit codes of jobs that fail, by the end of their names, or of names with the round they end after.
        backwards: make the last jobs first.
    """

    def __init__(self, accuracy=planted, most=math.inf, codes=None, backwards=False):
        self.accuracy, self.most, self.codes, self.backwards = accuracy, most, codes or {}, backwards
        self.made: list[str] = []  # jobs with the round that they end after
        self.configs: dict[str, dict] = {}

    def __call__(self, folder, jobs):
        failures = []
        for job in reversed(jobs) if self.backwards else jobs:
            if len(self.made) >= self.most:
                return None
            name = f"{job.name} {job.rounds}"
            code = next((code for end, code in self.codes.items() if name.endswith((end, f"{end} {job.rounds}"))), 0)
            if code:
                failures.append(Failed(job, code))
            else:
                self._make(job, folder.run(job.name))
        return Board(failures)

    def _make(self, job, run):
        until = int(job.command[job.command.index("--run.until") + 1]) if "--run.until" in job.command else None
        config = self.configs[job.name] = config_of(job)
        run.mkdir(exist_ok=True)
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        rounds = range(1, (until or ROUNDS) + 1)
        write_lines(
            run / "metrics.jsonl",
            [{"round": n, "clients/received_common/mean": self.accuracy(config) * n / ROUNDS} for n in rounds],
        )
        write_lines(run / "cost.jsonl", [{"round": n, "seconds/total": 2.0} for n in rounds])
        if until is None:
            (run / "summary.json").write_text("{}")
        self.made.append(f"{job.name} {rounds[-1]}")


def config_of(job: Job) -> dict:
    """The complete configuration that a job would run with."""
    arguments = list(job.command[job.command.index("fit") + 1 :])
    if "--run.until" in arguments:
        place = arguments.index("--run.until")
        del arguments[place : place + 2]
    return complete(tuple(arguments))


def complete(arguments: tuple[str, ...]) -> dict:
    """The complete configuration of a run's arguments."""
    parser = run_parser()
    return complete_config(parser, parser.parse_args(expand(arguments)))


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def rates(row) -> list[float | None]:
    """Learning rates of a row's trials; None for the recipe's."""
    return [trial.settings.get(RATE) for trial in row.trials]
