"""A run that is over, from its folder: its configuration, metrics, results and scores, and its trained federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import torch

from app.common.errors import UserError
from app.common.reading import refuse_links
from app.common.trust import refuse_foreign
from app.common.wording import counted
from app.configuration import expand, run_parser
from app.export import new_file, save_model
from app.federation.hooks import RoundHooks
from app.federation.transcript import Transcript
from app.metrics.membership import MembershipScores
from app.recipes import read_layer
from app.release import TrainedModel, trained_model
from app.result import Result
from app.results.frames import as_frame, html_table
from app.results.run.attempts import END_OF_RUN, Attempt
from app.results.run.checkpoints import newest_usable
from app.results.run.folder import RunFolder
from app.results.run.naming import shortened
from app.results.run.record import RunRecord, error_text, read_run
from app.results.run.results import RESULT_KINDS
from app.run import Run, run_of

if TYPE_CHECKING:
    import pandas


FOLDER = "name the folder of a run, as in runs/"
BROKEN = (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, BadZipFile, UnpicklingError)
"""What reading a damaged model may end in."""


class FinishedRun:
    """A finished run.

    Example::

        run = load_run("runs/mine")
        run.metrics[-1]["server/accuracy"], run.scores("yeom.global").members

    Attributes:
        folder: where it is kept.
        trust: whether its configuration may name classes that do not come with this program.
    """

    def __init__(self, folder: str | Path, trust: bool = False) -> None:
        """Take the folder of a run; see `load_run`."""
        path = Path(folder)
        self.folder, self.trust = RunFolder(path), trust
        try:
            if not (path / "config.yaml").is_file():
                raise UserError.of(f"{shortened(path)} is no run", "there is nothing to open", FOLDER)
            if not self.folder.finished:
                raise _unfinished(path)
            refuse_links(path)
        except OSError as error:
            cause = f"{shortened(path)} cannot be opened: {error.strerror or error}"
            raise UserError.of(cause, "there is nothing to open", FOLDER) from error

    @cached_property
    def record(self) -> RunRecord:
        """Everything that tables and reports read of it.

        Raises:
            UserError: where its summary or its configuration cannot be read.
        """
        try:
            return read_run(self.folder.path)
        except UserError as error:
            if error.problems[0].remedy:
                raise
            raise self._broken(str(error), error) from error

    @property
    def config(self) -> Mapping[str, Any]:
        """Its complete configuration."""
        return self.record.config

    @property
    def metrics(self) -> Sequence[Mapping[str, float]]:
        """Metrics of every round, by name."""
        return self.record.rounds

    @property
    def results(self) -> list[Result]:
        """All results of attacks and recorders in its folder."""
        return [result for kind in RESULT_KINDS for result in kind.load_all(self.folder.path)]

    def scores(self, label: str) -> MembershipScores:
        """Scores of a membership attack, such as `lira-online.uploads`."""
        return self.record.scores(label)

    def to_pandas(self) -> pandas.DataFrame:
        """Metrics as a data frame with one row per round."""
        names = list(dict.fromkeys(name for record in self.metrics for name in record))
        return as_frame(names, [[record.get(name) for name in names] for record in self.metrics])

    @cached_property
    def transcript(self) -> Transcript:
        """What adversaries have seen of it.

        Raises:
            UserError: where nothing was recorded.
        """
        if not any((self.folder.path / "transcript").glob("round-*")):
            raise UserError.of(
                f"the run {self.folder.path} has no transcript",
                "attacks work on the models and uploads in it",
                "train it again with --transcript.last 2 (the default)",
            )
        return Transcript(self.folder.path / "transcript")

    def rebuilt(self) -> Run:
        """The run, built again from its configuration on one device, as before the first round.

        Raises:
            UserError: where the configuration names classes of others, and the run is not trusted.
        """
        parser, config = run_parser("rampart attack"), read_layer(self.folder.path / "config.yaml")
        if not self.trust:
            refuse_foreign(config, self.folder.path / "config.yaml")
        return run_of(parser, parser.parse_args(expand([], [config])), "finished")

    @cached_property
    def run(self) -> Run:
        """The run, built again, with the released model and what clients keep to themselves."""
        rounds, run = len(self.metrics), self.rebuilt()
        federation = run.prepared()
        try:
            released = Transcript(self.folder.path / "transcript").external_view().released()
            federation.space.write(federation.net, released.to(federation.device))
        except BROKEN as error:
            raise self._broken("transcript/released.npz does not hold the run's model", error) from error
        if (checkpoint := newest_usable(self.folder.checkpoints)) is not None:
            try:
                state = torch.load(checkpoint, map_location="cpu", weights_only=True)
                federation.load_own(state)
            except BROKEN as error:
                raise self._broken(f"{checkpoint.name} is no checkpoint of the run", error) from error
        at_round(run, rounds)
        federation.cache = self.folder.cache()
        federation.hooks = RoundHooks(run.trainer, federation)
        return run

    def _broken(self, what: str, error: Exception) -> UserError:
        """The error of a run whose files cannot be used."""
        path, reason = self.folder.path, "" if isinstance(error, UserError) else f" ({error_text(error)})"
        again = f"rampart fit --config {path / 'config.yaml'} --run.root {path.parent} --run.name {path.name}"
        return UserError.of(
            f"the run {path} is damaged: {what}{reason}",
            "it cannot be opened",
            f"take its files from a copy, or train it again: {again} --run.overwrite true",
        )

    def model(self, client: int | None = None, static: bool = False) -> TrainedModel:
        """The released model, or the one that a client would use after the last round.

        It takes images on the 0..1 scale and gives logits; `static` is explained at `trained_model`.

        Raises:
            UserError: where there is no such client, or what it keeps to itself was not saved.
        """
        federation, last = self.run.federation, self.run.data.clients - 1
        if client is not None and not 0 <= client <= last:
            cause = f"{self.folder.path} has no client {client}"
            raise UserError.of(cause, "there is no such model", f"name a client from 0 to {last}")
        if client is not None and federation.own_values and newest_usable(self.folder.checkpoints) is None:
            cause = f"{self.folder.path} has no checkpoint"
            raise UserError.of(cause, "what clients keep to themselves is lost", "use the released model: no client")
        return trained_model(federation, len(self.metrics) - 1, client, static)

    def export(
        self, path: str | Path, client: int | None = None, *, static: bool = False, overwrite: bool = False
    ) -> Path:
        """Save a model with the preprocessing it needs as `.pt`, `.safetensors` or `.onnx`; see `model`."""
        target = new_file(path, overwrite)  # before anything is read
        return save_model(self.model(client, static), target, overwrite)

    def __repr__(self) -> str:
        accuracy = self.record.final.get("server/accuracy")
        reached = "" if accuracy is None else f", server accuracy {accuracy:.2%}"
        labels = " / ".join((self.record.labels.dataset, self.record.labels.method, self.record.labels.defense))
        return f"FinishedRun({self.folder.path}: {labels}, {counted(len(self.metrics), 'round')}{reached})"

    def _repr_html_(self) -> str:
        return html_table(("metric", "last round"), [[name, value] for name, value in self.record.final.items()])


def _unfinished(path: Path) -> UserError:
    """The error of a run that has not ended, with the command that ends it."""
    where = f"--config {path / 'config.yaml'} --run.root {path.parent} --run.name {path.name}"
    kept = ""
    if labels := Attempt(path, END_OF_RUN).labels:
        kept = f"; its rounds are not trained again, and these results of attacks are kept: {', '.join(labels)}"
    return UserError.of(
        f"the run {path} is not finished",
        "its last model has not been released, or attacks at its end are missing",
        f"finish it first: rampart fit {where}{kept}",
    )


def at_round(run: Run, rounds: int) -> None:
    """Let the trainer of a run count as many rounds as done, as Lightning does where a run is resumed."""
    for count in ("ready", "started", "processed", "completed"):
        setattr(run.trainer.fit_loop.epoch_progress.current, count, rounds)


def load_run(folder: str | Path, trust: bool = False) -> FinishedRun:
    """A finished run from its folder.

    Args:
        folder: of the run; no link in it is followed.
        trust: let its configuration name classes that do not come with this program, whose code then runs.

    Raises:
        UserError: where there is no finished run, or its folder holds links.
    """
    return FinishedRun(folder, trust)
