"""A run: federation, data, defenses, attacks, trainer, folder and tracker, put together in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from app.common.errors import UserError, raise_all
from app.common.progress import PROGRESS_LOG, reported
from app.configuration import TRAINER_DEFAULTS, Parser, complete_config, expand, run_parser, seed_of
from app.federation.checks.placement import Placed, place_problems
from app.federation.checks.trainer_options import RULES
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.recipes import Layer
from app.result import Result
from app.results.run.checkpoints import (
    CHECKPOINT_VARIABLE,
    RoundCheckpoint,
    VerifiedCheckpointIO,
    first_decides,
)
from app.results.run.description import described_run
from app.results.run.folder import RunFolder, RunSettings
from app.results.run.results import replay
from app.results.run.tracking import RoundLogger, run_tracker
from callbacks.recorders.fairness import FairnessRecorder
from callbacks.recorders.newcomers import NewcomerRecorder
from callbacks.recorders.progress import FederationProgress
from callbacks.recorders.run_recorder import RunRecorder
from datamodules.base import FederatedDataModule

Callbacks = Sequence[FederatedCallback] | Mapping[str, FederatedCallback]
"""Defenses or attacks, in order; by name where names matter."""

DEFAULT_TRANSCRIPT = TranscriptSettings()

WITHOUT_DEVICES: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
ONE_DEVICE: dict[str, Any] = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class Run:
    """A federation that can be trained, with everything that belongs to it.

    Example::

        run = Run(FederatedModule(), Digits(), defenses=[MemDefense()], attacks=[MembershipInference()],
                  folder="runs/mine", trainer={"max_epochs": 10})
        run.fit()
        print(run.results)

    Attributes:
        federation: the federation.
        data: its data.
        trainer: Lightning's trainer, with all callbacks.
        folder: where the run is kept; None where nothing is.
        tracker: its run in Weights & Biases; None where it has none.
        config: its complete configuration as plain data; empty for a run without a folder that was put together here.
    """

    def __init__(
        self,
        federation: FederatedModule,
        data: FederatedDataModule,
        defenses: Callbacks = (),
        attacks: Callbacks = (),
        folder: str | Path | RunFolder | None = None,
        *,
        recorders: Sequence[Callback] = (),
        trainer: Mapping[str, Any] | None = None,
        transcript: TranscriptSettings = DEFAULT_TRANSCRIPT,
        tracker: RoundLogger | None = None,
        config: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Put a run together.

        Args:
            federation: what is trained.
            data: whose data it is trained on.
            defenses: in the order in which they act.
            attacks: run during and after the training.
            folder: folder of the run, which is made; an unfinished run in it is resumed. None to keep nothing.
            recorders: further callbacks.
            trainer: options of `lightning.Trainer`, such as `{"max_epochs": 20}`.
            transcript: which rounds are kept for attacks after the run.
            tracker: its run in Weights & Biases.
            config: the configuration it was built from; by default it is written from the objects.
            overwrite: start afresh although there is a run in the folder; what it left is deleted.
        """
        self.federation, self.data, self.tracker = federation, data, tracker
        self.folder = RunFolder(Path(folder)) if isinstance(folder, (str, Path)) else folder
        options = {**TRAINER_DEFAULTS, **(trainer or {})}
        raise_all(place_problems([*_placed("defenses", defenses), *_placed("attacks", attacks)]))
        own = [*_named(defenses), *_named(attacks), *_listed(options.pop("callbacks", None)), *recorders]
        further = QUIET if self.folder is None else self._folder_options(self.folder, options, transcript)
        self.trainer = _trainer({**further, **options, "callbacks": [*own, *further.get("callbacks", ())]})
        self.config = dict(config or {})
        if self.folder is not None and config is None:
            self.config = described_run(federation, data, self.trainer)
            rank_zero_only(self.folder.claim)(self.config, overwrite)
        if self.config:
            federation.configuration = self.config["model"]

    def _folder_options(
        self, folder: RunFolder, given: dict[str, Any], transcript: TranscriptSettings
    ) -> dict[str, Any]:
        """Options of the trainer for a run that is kept; of the given ones, those that it adds to are taken out."""
        callbacks: list[Callback] = [] if given.get("enable_progress_bar") is False else [FederationProgress()]
        recorded = TranscriptRecorder(folder.path / "transcript", transcript)
        callbacks += [FairnessRecorder(), NewcomerRecorder(), recorded, RunRecorder(folder)]
        if given.get("enable_checkpointing") is not False:
            callbacks.append(RoundCheckpoint(folder.checkpoints, folder.until))
        logger = given.pop("logger", None)
        given["default_root_dir"] = given.get("default_root_dir") or str(folder.path)
        return {
            "callbacks": callbacks,
            "plugins": [*(given.pop("plugins", None) or []), VerifiedCheckpointIO()],
            "logger": logger if self.tracker is None else [*_listed(logger), self.tracker],
        }

    def fit(self) -> Run:
        """Train, or go on with a training that was interrupted; then run the attacks."""
        first = self.trainer.is_global_zero
        shown = first and self.trainer.progress_bar_callback is not None
        if self.folder is None:
            with reported(shown), _refusals():
                self.trainer.fit(self.federation, datamodule=self.data)
            return self
        try:
            rank_zero_only(self.folder.lock)()
            with reported(shown, self.folder.path / PROGRESS_LOG if first else None), _refusals():
                self._resume(self.folder, first_decides(self.folder.checkpoints, self.trainer))
        finally:
            os.environ.pop(CHECKPOINT_VARIABLE, None)
            self.folder.release()
        return self

    def _resume(self, folder: RunFolder, checkpoint: Path | None) -> None:
        if self.tracker is not None:
            done = 0 if checkpoint is None else int(checkpoint.stem.partition("-")[2])
            self.tracker.begin(self.config, partial(replay, folder, rounds=done))
        self.trainer.fit(self.federation, datamodule=self.data, ckpt_path=checkpoint, weights_only=True)

    def prepared(self) -> FederatedModule:
        """The federation with its data and its network on the device, as before the first round."""
        self.data.prepare_data()
        self.data.setup("fit")
        self.trainer.datamodule = self.data  # type: ignore[attr-defined]
        self.federation.trainer = self.trainer
        self.federation.prepare()
        device = self.trainer.strategy.root_device
        self.federation.to(device)
        self.data.to(device)
        return self.federation

    @property
    def results(self) -> list[Result]:
        """What recorders and attacks have found, in order."""
        return self.federation.results

    def __repr__(self) -> str:
        place = "" if self.folder is None else f" in {self.folder.path}"
        done, rounds = self.trainer.current_epoch, self.trainer.max_epochs
        return f"Run({self.federation.method.title} on {type(self.data).__name__}, {done} of {rounds} rounds{place})"


def build_run(*layers: Layer, **options: Any) -> Run:
    """A run from a configuration, as `rampart fit` builds it.

    Example::

        build_run("heterofl", "memdefense", {"trainer": {"max_epochs": 5}}, **{"run.name": "mine"}).fit()

    Args:
        layers: recipes, files or nested data; later ones lie on top.
        options: single options by their name on the command line, on top of all layers.

    Raises:
        UserError: where options are wrong, or the folder holds another run.
    """
    arguments = [
        f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()
    ]
    parser = run_parser()
    return run_of(parser, parser.parse_args(expand(arguments, layers)))


def fit(*layers: Layer, **options: Any) -> Run:
    """Build a run from a configuration and train it; see `build_run`."""
    return build_run(*layers, **options).fit()


def run_of(parser: Parser, config: Namespace, mode: Literal["fit", "dry", "finished"] = "fit") -> Run:
    """The run of a parsed configuration.

    Args:
        parser: that has parsed it.
        config: the parsed options.
        mode: `fit` claims the run's folder; `dry` is for looking at the federation, on no device and without a folder;
            `finished` builds a run that is over again, on one device and without recorders.
    """
    if config.seed_everything is not False:
        config.seed_everything = seed_everything(seed_of(config.seed_everything), workers=True, verbose=False)
    plain, folder, tracker = complete_config(parser, config), None, None
    if mode == "fit":
        settings = RunSettings(**vars(config.run))
        folder = RunFolder.choose(settings, str(plain["data"]["class_path"]).rpartition(".")[2].lower())
        rank_zero_only(folder.claim)(plain, settings.overwrite)
        tracker = run_tracker(folder.path, plain)
    objects = parser.instantiate_classes(config)
    overriding = {"fit": {}, "dry": WITHOUT_DEVICES | QUIET, "finished": ONE_DEVICE | QUIET}[mode]
    return Run(
        objects.model,
        objects.data,
        _ordered(objects.defenses, config.defense_order),
        objects.attacks,
        folder,
        trainer={**vars(objects.trainer), **overriding},
        transcript=TranscriptSettings(**vars(config.transcript)),
        tracker=tracker,
        config=plain,
    )


def _ordered(defenses: Mapping[str, FederatedCallback], order: list[str] | None) -> dict[str, FederatedCallback]:
    """The defenses in the stated order, or in the order of the layers."""
    if order is None:
        return dict(defenses)
    if sorted(order) != sorted(defenses):
        raise UserError.of(
            f"defense_order names {', '.join(order) or 'nothing'}; the defenses are {', '.join(defenses) or 'none'}",
            "some defense would act at an unknown place, or not at all",
            "name every defense once",
        )
    return {name: defenses[name] for name in order}


def _named(callbacks: Callbacks) -> Iterable[FederatedCallback]:
    if isinstance(callbacks, Mapping):
        for name, callback in callbacks.items():
            callback.given_name = name
        return callbacks.values()
    return callbacks


def _placed(section: str, callbacks: Callbacks) -> list[Placed]:
    named = callbacks.items() if isinstance(callbacks, Mapping) else (("", callback) for callback in callbacks)
    return [Placed(section, name, type(callback)) for name, callback in named]


def _trainer(options: Mapping[str, Any]) -> Trainer:
    if options.get("barebones"):  # which Lightning refuses for the sake of options that nobody has set
        rule = next(rule for rule in RULES if rule.option == "barebones")
        raise UserError.of("--trainer.barebones is True", rule.consequence, rule.remedy)
    try:
        return Trainer(**options)
    except (MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError) as error:
        raise _refused(error, "no run starts") from error


@contextmanager
def _refusals() -> Iterator[None]:
    """Errors of Lightning about the trainer's settings and callbacks, in the form of ours."""
    try:
        yield
    except MisconfigurationException as error:
        raise _refused(error, "the run stops here") from error
    except RuntimeError as error:
        if not str(error).startswith("Early stopping conditioned on metric"):
            raise
        raise _refused(error, "the run stops here") from error


def _refused(error: Exception, consequence: str) -> UserError:
    remedy = "correct the options that begin with --trainer; `rampart fit --help` explains them"
    return UserError.of(f"the trainer refuses its settings: {error}", consequence, remedy)


def _listed(option: Any) -> list[Any]:
    if isinstance(option, (list, tuple)):
        return list(option)
    return [] if isinstance(option, bool) or option is None else [option]
