"""`rampart fit`: train one federation, resume it, keep everything in its run folder."""

from __future__ import annotations

import difflib
import logging
import math
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import ActionConfigFile
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tqdm import tqdm

import datamodules  # noqa: F401  its classes can then be named without a path
from app.commands.arguments import expand
from app.commands.listing import CATALOGUE
from app.commands.shadow_federations import ShadowFederations
from app.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.metrics.fairness import Spread
from app.recipes import CODES, shipped_recipes
from app.results.attacks.factor_recovery import FactorResults
from app.results.attacks.membership_results import AttackResults
from app.results.attacks.reconstruction_results import ReconstructionResults
from app.results.run.checkpoints import RoundCheckpoint, VerifiedCheckpointIO, newest_usable
from app.results.run.fairness import fairness_rows, fairness_summary, newcomer_rows, newcomer_summary
from app.results.run.folder import RunFolder, RunSettings
from app.results.run.tracking import RoundLogger, TrackingMode, make_tracker
from app.results.text_table import text_table
from callbacks.attacks.factor_recovery import FactorRecovery
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.attacks.malicious_server import MaliciousServer
from callbacks.attacks.membership_inference import AttackHome, MembershipInference
from callbacks.recorders.fairness import FairnessRecorder
from callbacks.recorders.newcomers import NewcomerRecorder
from callbacks.recorders.progress import FederationProgress
from callbacks.recorders.representations import Representations
from callbacks.recorders.run_recorder import RunRecorder
from callbacks.recorders.transcript_recorder import TranscriptRecorder
from datamodules.base import FederatedDataModule

TRAINER_DEFAULTS: dict[str, Any] = {
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,  # the federation shares out clients itself
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "logger": False,  # the tracker is added by --tracking
}


class FitParser(LightningArgumentParser):
    """Keeps errors short and names the nearest option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        wrong = re.findall(r"--[\w.]+", message) if "unrecognized" in message else []
        known = [option for action in self._actions for option in action.option_strings]
        if unknown := re.findall(r"dot import path string: ([\w-]+)", message):
            wrong, known = unknown, [name for _, entries in CATALOGUE.values() for name, _ in entries()]
        near = [match for option in wrong for match in difflib.get_close_matches(option, known, n=2)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        if unknown and unknown[0].lower() in {*CODES, *(recipe.name for recipe in shipped_recipes())}:
            hint = f"{unknown[0]} is a recipe, so write --config {unknown[0]}; "
        if "NestedArg(" in message:
            hint = "name the class before its options, such as --data.partition Iid --data.partition.clients 5; "
        places = f"`{self.prog} --help` explains every option, `rampart list` shows what there is to choose from"
        print(f"error: {message}\n  remedy: {hint}{places}", file=sys.stderr)
        raise SystemExit(2)


class FitCommand(LightningCLI):
    """LightningCLI with a run folder, named defenses and attacks, and a tracker."""

    program: ClassVar[str] = "rampart fit"
    purpose: ClassVar[str | None] = __doc__
    folder: RunFolder
    tracker: RoundLogger | None

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(
            FederatedModule,
            FederatedDataModule,
            subclass_mode_data=True,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            auto_configure_optimizers=False,
            run=False,
            args=expand(arguments),
            parser_kwargs={
                "prog": self.program,
                "description": self.purpose,
                "usage": f"{self.program} [--config RECIPE_OR_FILE ...] [--OPTION VALUE ...]",
                "allow_abbrev": False,
            },
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = FitParser(**kwargs)
        parser.add_argument("-c", "--config", action=ActionConfigFile, help="Recipe name or file; may be repeated.")
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(RunSettings, "run")
        parser.add_class_arguments(TranscriptSettings, "transcript")
        entries = dict[str, FederatedCallback]
        parser.add_argument(
            "--defenses", type=entries, default={}, help="Defenses by name, in the order in which they act on updates."
        )
        parser.add_argument("--attacks", type=entries, default={}, help="Attacks by name, run after the defenses.")
        parser.add_argument(
            "--defense_order",
            type=list[str] | None,
            default=None,
            help="Names of all defenses in the order in which they act; by default the order of the layers.",
        )
        parser.add_argument(
            "--tracking",
            type=TrackingMode,
            default="offline",
            help="Weights & Biases: in the run folder, online, or not.",
        )
        parser.add_argument("--project", type=str, default="rampart", help="Weights & Biases project.")
        parser.add_argument("--group", type=str | None, default=None, help="Comparison that this run belongs to.")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)

    def before_instantiate_classes(self) -> None:
        """Claim the run folder; from here on, everything the run writes goes there."""
        settings = RunSettings(**vars(self.config.run))
        self.plain_config = complete_config(self.parser, self.config)
        stem = str(self.plain_config["data"]["class_path"]).rpartition(".")[2].lower()
        self.folder = RunFolder.choose(settings, stem)
        rank_zero_only(self.folder.claim)(self.plain_config, settings.overwrite)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A trainer with the defenses, the attacks and the command's own callbacks."""
        config = self.config_init
        named = [*ordered(config["defenses"], config["defense_order"]), *config["attacks"].values()]
        kwargs = {**self._get(config, "trainer", default={}), **kwargs}
        kwargs["callbacks"] = [*named, *(kwargs["callbacks"] or [])]
        kwargs |= self.trainer_options(kwargs)
        for name, callback in (*config["defenses"].items(), *config["attacks"].items()):
            callback.given_name = name
        for attack in config["attacks"].values():
            self.give_home(attack)
        try:
            return Trainer(**kwargs)
        except (MisconfigurationException, ValueError, ImportError, RuntimeError) as error:
            remedy = f"correct the options that begin with --trainer; `{self.program} --help` explains them"
            raise UserError.of(f"the trainer refuses its settings: {error}", "no run starts", remedy) from error

    def rebuilt(self) -> tuple[FederatedModule, FederatedDataModule, list[FederatedCallback]]:
        """The federation, its data and its defenses, built once more from the configuration."""
        fresh = self.parser.instantiate_classes(self.config)
        return fresh["model"], fresh["data"], ordered(fresh["defenses"], fresh["defense_order"])

    def give_home(self, attack: FederatedCallback) -> None:
        """Tell an attack where to leave its results, and how to repeat the federation."""
        if isinstance(attack, MembershipInference):
            results = AttackResults(self.folder, self.tracker)
            cache = self.folder.path.parent / ".cache" / "shadows"
            attack.home = AttackHome(results, cache, ShadowFederations(self))
        if isinstance(attack, (MaliciousServer, ImageReconstruction)):
            attack.results = ReconstructionResults(self.folder, self.tracker)
        if isinstance(attack, FactorRecovery):
            attack.results = FactorResults(self.folder)
        if isinstance(attack, Representations):
            attack.folder = self.folder

    def trainer_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of the trainer that a run adds to the user's: recorders, progress bar, checkpoints and tracker."""
        folder, config = self.folder, self.config_init
        self.tracker = make_tracker(config["tracking"], folder.path, folder.name, config["group"], config["project"])
        return {
            "callbacks": [*options["callbacks"], *self._observers()],
            "plugins": [*(options["plugins"] or []), VerifiedCheckpointIO()],
            "default_root_dir": options["default_root_dir"] or str(folder.path),
            "logger": options["logger"] if self.tracker is None else [*_loggers(options["logger"]), self.tracker],
        }

    def prepared(self) -> FederatedModule:
        """The federation with its data and its network, as before the first round."""
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        self.trainer.datamodule = self.datamodule  # type: ignore[attr-defined]
        self.model.trainer = self.trainer
        self.model.prepare()
        return self.model

    def _observers(self) -> list[Callback]:
        trainer, settings = self.config.trainer, TranscriptSettings(**vars(self.config.transcript))
        transcript = TranscriptRecorder(self.folder.path / "transcript", settings)
        observers = [FairnessRecorder(self.folder), NewcomerRecorder(self.folder)]
        recorders = [*observers, transcript, RunRecorder(self.folder)]  # the last one collects
        progress = [] if trainer.enable_progress_bar is False else [FederationProgress()]
        checkpoints = [] if trainer.enable_checkpointing is False else [RoundCheckpoint(self.folder.checkpoints)]
        return [*progress, *recorders, *checkpoints]


class DryCommand(FitCommand):
    """A command that takes the options of a run, and neither trains nor attacks; the device does not matter."""

    def before_instantiate_classes(self) -> None:
        """Claim no run folder."""

    def give_home(self, attack: FederatedCallback) -> None:
        """Nothing is attacked."""

    def trainer_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """No recorder, no tracker, and no device: nothing depends on where clients are trained."""
        here = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
        return {**here, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def complete_config(parser: LightningArgumentParser, config: Any) -> dict[str, Any]:
    """The whole configuration as plain data, without where it is kept, so that it can be replayed elsewhere."""
    plain = yaml.safe_load(parser.dump(config, skip_none=False))
    return {key: value for key, value in plain.items() if key not in ("config", "run")}


def ordered(defenses: dict[str, FederatedCallback], order: list[str] | None) -> list[FederatedCallback]:
    """The defenses in the stated order, or in the order of the layers."""
    if order is None:
        return list(defenses.values())
    if sorted(order) != sorted(defenses):
        raise UserError.of(
            f"defense_order names {', '.join(order) or 'nothing'}; the defenses are {', '.join(defenses) or 'none'}",
            "some defense would act at an unknown place, or not at all",
            "name every defense once",
        )
    return [defenses[name] for name in order]


def fit(arguments: Sequence[str]) -> int:
    """Train a federation; returns the exit code."""
    quieten()
    command = FitCommand(arguments)
    federation, trainer = command.model, command.trainer
    if command.tracker is not None:
        command.tracker.use_rounds(command.plain_config)
    checkpoint = newest_usable(command.folder.checkpoints)
    _say(f"run {command.folder.path}" + (f", resuming from {checkpoint.name}" if checkpoint else ""))
    try:
        trainer.fit(federation, datamodule=command.datamodule, ckpt_path=checkpoint, weights_only=True)
    except SystemExit:  # how Lightning ends an interrupted run
        if not trainer.interrupted:
            raise
        _say(f"interrupted; the same command with --run.name {command.folder.name} resumes the run")
        return 130
    _say(_closing(command))
    return 0


CLOSING_FILES = {
    "fairness.json": "fairness.png, fairness.json and everyone.csv show how much clients differ",
    "privacy.json": "privacy.json states the privacy budgets and what channels hide, with their assumptions",
    "attacks/leakage.png": "attacks/ holds leakage.png, roc.png, clients.csv, vulnerable.csv and all scores",
    "attacks/reconstruction": "attacks/reconstruction/ holds reconstructed images beside the originals, with scores",
}
"""What is said at the end about a file or folder of the run, where it is there."""


def _closing(command: FitCommand) -> str:
    folder = command.folder.path
    lines = [f"\nfinished after {command.trainer.current_epoch} rounds: {folder}"]
    if hasattr(command.model, "plan"):  # else the checkpoint was that of the last round
        lines.append(text_table((), _closing_rows(command), left=(0, 2), indent="  "))
    lines.append("  metrics.jsonl, clients.csv, cost.json, accuracy.png and partition.png are in that folder")
    lines.extend(f"  {text}" for name, text in CLOSING_FILES.items() if (folder / name).exists())
    if command.tracker is not None and command.tracker._offline:
        lines.append(f"  to upload it to Weights & Biases: wandb sync {folder}/wandb/offline-run-*")
    return "\n".join(lines)


def _closing_rows(command: FitCommand) -> list[tuple[str, str, str]]:
    """Label, number and explanation of every result of the run."""
    report, hooks = command.model.report, command.model.hooks
    rows = []
    if report.server.total:
        rows.append(("server accuracy", f"{report.server.accuracy:.2%}", f"on {report.server.total} test samples"))
    for name, where in (("trained_own", "their own test sets"), ("trained_common", "the common test set")):
        spread = Spread.of(getattr(client, name) for client in report.clients)
        if not math.isnan(spread.mean):
            rows.append(("clients' accuracy", f"{spread.mean:.2%}", f"on {where}, worst {spread.worst:.2%}"))
    rows += [*fairness_rows(fairness_summary(command.folder)), *newcomer_rows(newcomer_summary(command.folder))]
    statements = (*hooks.statements(), *hooks.channel_statements())
    return [*rows, *(("privacy", "", statement.line()) for statement in statements)]


def _loggers(option: Any) -> list[Any]:
    if isinstance(option, (list, tuple)):
        return list(option)
    return [] if isinstance(option, bool) or option is None else [option]


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning without its place in the code, which leaves the progress bar intact."""
    tqdm.write(f"warning: {message}", file=sys.stderr)


def quieten() -> None:
    """Silence messages of libraries that do not concern the user, and shorten warnings."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.showwarning = _show_warning
    warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # these metrics are summed before they are logged
    warnings.filterwarnings("ignore", message=".*Consider setting `persistent_workers=True`.*")
