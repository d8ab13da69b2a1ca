"""The configuration of a run: recipes in layers, options on top of them, and the parser that checks them."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from argparse import Action
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

import callbacks
import datamodules  # noqa: F401  its classes can then be named without a path
from app.catalogue import names
from app.common.errors import Problem, UserError, raise_all
from app.common.ranges import Seed, range_problems, unchecked
from app.common.reading import OversizedError, RepeatedKeyError, load_yaml
from app.common.renamed import current_path
from app.common.wording import near
from app.config_checks import config_problems
from app.federation.checks.placement import PLACES
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.option_errors import OutOfRangeError, range_problem, unknown_option, user_errors
from app.recipes import (
    CODES,
    SECTIONS,
    Layer,
    callback_of,
    layered,
    merge,
    option_layer,
    overlay,
    refuse_absent,
    shipped_recipes,
)
from app.results.run.folder import RunSettings
from app.results.run.tracking import TrackingMode, default_mode, default_project
from datamodules.base import FederatedDataModule

OWN_RECORDERS = ("FairnessRecorder", "FederationProgress", "NewcomerRecorder", "RunRecorder", "TranscriptRecorder")
"""Recorders that every run has anyway."""

LINKED = ("--model.seed", "--data.seed")
"""Options that follow `--seed_everything`."""

LONGEST_SHOWN = 80
"""Characters of an option's value that a message shows."""

TRAINER_DEFAULTS: dict[str, Any] = {
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,  # the federation shares out clients itself
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "logger": False,  # the tracker is added by --tracking
}


class SectionHelp(DefaultHelpFormatter):
    """Keeps lines of a help text apart, and shows of defenses and attacks those that belong there instead of a type."""

    def _expand_help(self, action: Action) -> str:
        text: str = super()._expand_help(action)
        return text.partition(" (type:")[0] if action.dest in SECTIONS else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        split = super()._split_lines
        return [line for part in text.split("\n") for line in split(part, width)]


class Parser(LightningArgumentParser):
    """Raises errors with a remedy, which names the nearest option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a part of another parser
            super().error(message, ex)
        if isinstance(cause := ex and ex.__cause__, UserError):  # of a function that computes an option
            raise cause
        if problem := range_problem(message):
            raise OutOfRangeError(problem) from ex
        known = [option for action in self._actions for option in action.option_strings]
        places = f"`{self.prog} --help` explains every option, `rampart list` shows what there is to choose from"
        if wrong := unknown_option(message, self._options()):
            raise UserError.of(wrong.cause, "it would have no effect", f"{wrong.remedy}{places}") from ex
        hint = "".join(near(option, known) for option in re.findall(r"--[\w.]+", message) if "unrecognized" in message)
        if unknown := re.findall(r"dot import path string: ([\w-]+)", message):
            hint = near(unknown[0], names())
        if unknown and unknown[0].lower() in {*CODES, *(recipe.name for recipe in shipped_recipes())}:
            hint = f"{unknown[0]} is a recipe, so write --config {unknown[0]}; "
        if nested := re.findall(r"NestedArg\(key='([\w.]+)'", message):
            option = ".".join([*re.findall(r'^Parser key "([\w.]+)"', message), nested[-1]])
            unset = f"--{option} is set, and no class is chosen that it is an option of"
            example = "name the class before its options, such as --data.partition Iid --data.partition.clients 5; "
            raise UserError.of(unset, "it would have no effect", f"{example}{places}") from ex
        raise UserError.of(message, remedy=f"{hint}{places}") from ex

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        if not self.exit_on_error:
            return super().parse_args(*args, **kwargs)
        with user_errors("the options cannot be read"):
            try:
                config = self._validated(super().parse_args(*args, _skip_validation=True, **kwargs))
            except OutOfRangeError as first:
                raise UserError(*self._all_out_of_range(first, *args)) from first
            if "defenses" in config:
                raise_all(config_problems(config, self._options()))
            return config

    def _validated(self, config: Namespace) -> Namespace:
        """The configuration, validated once and strictly: null is refused where a value is due."""
        try:
            self.validate(config, skip_unset=False)
        except (TypeError, ValueError, KeyError) as error:
            self.error(str(error), error)
        return config

    def _all_out_of_range(self, first: UserError, *args: Any) -> list[Problem]:
        """The problems of all numbers outside their ranges; only the first where something else is wrong as well."""
        try:
            with unchecked():
                objects = super().instantiate_classes(super().parse_args(*args))
        except Exception:
            return list(first.problems)
        sections = ("model", "data", *SECTIONS)
        present = [name for name in sections if name in objects]
        every = [problem for name in present for problem in range_problems(objects[name], name)]
        found = [problem for problem in every if problem.cause.split()[0] not in LINKED]
        known = {_ends(problem) for problem in found}  # the parser leaves out names of defenses
        return [*(problem for problem in first.problems if _ends(problem) not in known), *found]

    def _options(self) -> list[str]:
        """Options with dots, such as `model.local.epochs`."""
        strings = (option for action in self._actions for option in action.option_strings)
        return [option.removeprefix("--") for option in strings if option.startswith("--")]

    def instantiate_classes(self, config: Namespace, *args: Any, **kwargs: Any) -> Namespace:
        if not self.exit_on_error:
            return super().instantiate_classes(config, *args, **kwargs)
        with user_errors("the run cannot be put together"):
            return super().instantiate_classes(config, *args, **kwargs)


def _ends(problem: Problem) -> tuple[str, str]:
    """The first and the last part of the option that a problem's cause begins with."""
    option = problem.cause.split()[0].split(".")
    return option[0], option[-1]


def run_parser(program: str = "rampart fit", purpose: str = "", **sections: type) -> Parser:
    """The parser of a run's options, and of sections that a command adds, each named with the class of its options."""
    tracking = (default_mode(), default_project(), os.environ.get("WANDB_ENTITY"))
    return _run_parser(program, purpose, tuple(sections.items()), *tracking)


@functools.cache  # reading all signatures takes longer than a round of a small federation
def _run_parser(
    program: str,
    purpose: str,
    sections: tuple[tuple[str, type], ...],
    mode: TrackingMode,
    project_default: str,
    entity_default: str | None,
) -> Parser:
    usage = f"{program} [--config RECIPE_OR_FILE ...] [--OPTION VALUE ...]"
    parser = Parser(prog=program, description=purpose, usage=usage, allow_abbrev=False, formatter_class=SectionHelp)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="Recipe name or file; may be repeated.")
    seeds = "Seed of every random choice; `true` for PL_GLOBAL_SEED, or 0 without it."
    parser.add_argument("--seed_everything", type=bool | Seed, default=True, help=seeds)
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()})
    parser.add_lightning_class_args(FederatedModule, "model")
    parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
    parser.add_class_arguments(RunSettings, "run")
    parser.add_class_arguments(TranscriptSettings, "transcript")
    entries = dict[str, FederatedCallback]
    order = "Names of all defenses in the order in which they act; by default the order of the layers."
    defenses = "Defenses by name, in the order in which they act on updates."
    attacks = "Attacks by name, run during the training and after it."
    parser.add_argument("--defenses", type=entries, default={}, help=_section_help("defenses", defenses))
    parser.add_argument("--attacks", type=entries, default={}, help=_section_help("attacks", attacks))
    parser.add_argument("--defense_order", type=list[str] | None, default=None, help=order)
    where = "Weights & Biases: in the run folder, online, or not; by default as WANDB_MODE says."
    parser.add_argument("--tracking", type=TrackingMode, default=mode, help=where)
    project, entity = "Weights & Biases project; by default WANDB_PROJECT.", "Team or user; by default WANDB_ENTITY."
    parser.add_argument("--project", type=str, default=project_default, help=project)
    parser.add_argument("--entity", type=str | None, default=entity_default, help=entity)
    images = "Track figures that show training data, such as reconstructions beside the originals."
    parser.add_argument("--track_images", type=bool, default=False, help=images)
    parser.add_argument("--group", type=str | None, default=None, help="Comparison that this run belongs to.")
    parser.link_arguments("seed_everything", "model.seed", compute_fn=seed_of)
    parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=seed_of)
    for name, kind in sections:
        parser.add_class_arguments(kind, name)
    return parser


def _section_help(section: str, purpose: str) -> str:
    """What a section takes, how it is written, and the classes that come with Rampart, a line each."""
    recipes = ", ".join(recipe.name for recipe in shipped_recipes() if recipe.kind == SECTIONS[section])
    exported = [getattr(callbacks, name) for name in sorted(callbacks.__all__) if name not in OWN_RECORDERS]
    kinds = [kind for kind in exported if kind.kind in PLACES[section]]
    lines = [
        purpose,
        f"--{section} RECIPE adds one or several of {recipes};",
        f"--{section}.NAME CLASS adds one of a class, --{section}.NAME.OPTION VALUE sets an option of it,",
        f"--{section}.help CLASS or --{section}.NAME.help explains its options. Classes:",
        *(f"{kind.__name__}: {(inspect.getdoc(kind) or '').splitlines()[0]}" for kind in kinds),
    ]
    return "\n".join(lines).replace("%", "%%")


def seed_of(option: bool | int) -> int:
    """The seed that `--seed_everything` stands for; equal on all processes, to which Lightning passes the variable."""
    if option is not True:
        return int(option)
    text = os.environ.get("PL_GLOBAL_SEED") or "0"
    if not text.isdecimal() or int(text) >= 2**32:
        remedy = "set it to a whole number from 0 to 2^32 - 1, or write --seed_everything NUMBER"
        raise UserError.of(f"the variable PL_GLOBAL_SEED is {text!r}", "it is no seed", remedy)
    return int(text)


def complete_config(parser: Parser, config: Namespace) -> dict[str, Any]:
    """A parsed configuration, whole, as plain data, without where it is kept, so that it can be replayed elsewhere."""
    plain = json.loads(parser.dump(config, skip_none=False, skip_validation=True, format="json"))
    return {key: value for key, value in plain.items() if key not in ("config", "run")}


def expand(arguments: Sequence[str], below: Sequence[Layer] = ()) -> list[str]:
    """Arguments for jsonargparse: all layers merged into one `--config`, then everything else.

    `--config` may be given many times, with a file or the name of a recipe; later ones lie on top, and options on the
    command line on top of all. `--defenses NAME` and `--defenses.NAME` add the defense of a recipe,
    `--defenses.NAME CLASS` one of any class, and `--defenses.NAME.OPTION VALUE` sets one of its options (likewise
    attacks).
    """
    layers: list[Layer] = list(below)
    entries: list[tuple[str, list[str], Any]] = []
    rest: list[str] = []
    helps: list[tuple[str, str]] = []
    for option, value in _pairs(arguments):
        section, *keys = option.removeprefix("--").split(".")
        if option in ("--config", "-c"):
            layers.append(_required(option, value))
        elif option.startswith("--") and section in SECTIONS and keys[1:] == ["help"]:
            helps.append((section, keys[0]))
        elif option.startswith("--") and section in SECTIONS and keys != ["help"]:
            entries.append((section, keys, {} if value is None and len(keys) == 1 else _loaded(option, keys, value)))
        else:
            _vet(option, value or "")
            rest.extend(part for part in (option, value) if part is not None)
    with user_errors("the configuration cannot be read"):
        config = _with_options(layered(layers), entries)
        for section, name in helps:
            present = overlay(config, {section: {name: {}}})[section]
            rest += [f"--{section}.help", callback_of(present, name)["class_path"]]
        return ["--config", json.dumps(config), *rest]


def _with_options(config: dict[str, Any], entries: list[tuple[str, list[str], Any]]) -> dict[str, Any]:
    """A configuration with the options of defenses and attacks on top; `null` removes one that may be there."""
    for section, keys, value in entries:
        if len(keys) > 1:  # a comparison sets it for rows without the defense, too, which must not get one
            refuse_absent(config, section, keys)
        if value is not None or len(keys) > 1:
            config = overlay(config, option_layer(section, keys, value))
        elif not keys or keys[0] in (config.get(section) or {}):
            config = merge(config, option_layer(section, keys, None))
    return {key: value for key, value in config.items() if key not in SECTIONS or value is not None}


def _loaded(option: str, keys: list[str], text: str | None) -> Any:
    """The value of an option of the sections, read as YAML."""
    try:
        return _class_or_value(keys, load_yaml(_required(option, text)))
    except yaml.YAMLError as error:
        raise _unreadable(option, text or "", error) from error


def _vet(option: str, text: str) -> None:
    """Refuse a value that holds itself, is nested without end or repeats a key; all others are jsonargparse's."""
    if "{" not in text and "[" not in text:
        return
    try:
        load_yaml(text)
    except (OversizedError, RepeatedKeyError) as error:
        raise _unreadable(option, text, error) from error
    except yaml.YAMLError:
        return


def _unreadable(option: str, text: str, error: yaml.YAMLError) -> UserError:
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    cause = f"cannot read {option} {shown}: {' '.join(str(error).split())}"
    return UserError.of(cause, "no run starts", "correct the value; text with special characters needs quotes")


def _class_or_value(keys: list[str], value: Any) -> Any:
    """The value of an option; `--defenses.NAME CLASS` may leave out the module of a class that comes with Rampart."""
    if len(keys) == 1 and isinstance(value, str) and value.isidentifier():
        return f"callbacks.{value}" if value in callbacks.__all__ else value
    return current_path(value) if len(keys) == 1 and isinstance(value, str) else value


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values, where they have one."""
    position = 0
    while position < len(arguments):
        option, equals, value = arguments[position].partition("=")
        position += 1
        if not option.startswith("-") or not (option.startswith("--") or option == "-c"):
            yield arguments[position - 1], None
        elif equals:
            yield option, value
        elif position < len(arguments) and not arguments[position].startswith("--"):
            yield option, arguments[position]
            position += 1
        else:
            yield option, None


def _required(option: str, value: str | None) -> str:
    if value is None:
        raise UserError.of(f"{option} has no value", "", f"write {option} VALUE")
    return value
