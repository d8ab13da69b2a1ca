"""The configuration of a run: recipes in layers, options on top of them, and the parser that checks them."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

import callbacks
import datamodules  # noqa: F401  its classes can then be named without a path
from app.catalogue import names
from app.errors import Problem, UserError
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import TranscriptSettings
from app.ranges import Seed
from app.recipes import CODES, Layer, layered, put, shipped_recipes
from app.renamed import current_path
from app.results.run.folder import RunSettings
from app.results.run.tracking import TrackingMode, default_mode, default_project
from datamodules.base import FederatedDataModule

SECTIONS = ("defenses", "attacks")

TRAINER_DEFAULTS: dict[str, Any] = {
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,  # the federation shares out clients itself
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "logger": False,  # the tracker is added by --tracking
}


class Parser(LightningArgumentParser):
    """Raises errors with a remedy, which names the nearest option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a part of another parser
            super().error(message, ex)
        if problem := _range_problem(message):
            raise UserError(problem) from ex
        wrong = re.findall(r"--[\w.]+", message) if "unrecognized" in message else []
        known = [option for action in self._actions for option in action.option_strings]
        if unknown := re.findall(r"dot import path string: ([\w-]+)", message):
            wrong, known = unknown, names()
        near = [match for option in wrong for match in difflib.get_close_matches(option, known, n=2)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        if unknown and unknown[0].lower() in {*CODES, *(recipe.name for recipe in shipped_recipes())}:
            hint = f"{unknown[0]} is a recipe, so write --config {unknown[0]}; "
        if "NestedArg(" in message:
            hint = "name the class before its options, such as --data.partition Iid --data.partition.clients 5; "
        places = f"`{self.prog} --help` explains every option, `rampart list` shows what there is to choose from"
        raise UserError.of(message, remedy=f"{hint}{places}") from ex


def _range_problem(message: str) -> Problem | None:
    """The problem of a number outside its range, from the parser's message; None where that is about something else."""
    before, found, after = message.partition("Not of type ")
    if not found:
        return None
    option = ""
    for key in re.findall(r'Parser key "([\w.-]+)"', before):
        option = key if key.startswith(option) else f"{option}.{key}"
    given = re.search(r": (\S+) is out of range", after) or re.search(r"Given value: (.*)", after)
    value = f"is {given[1]}" if given else "cannot be read"
    ranges = " or ".join(dict.fromkeys(re.findall(r"Not of type ([^:]+):", message)))
    return Problem(f"--{option} {value}", f"it must be {ranges}", f"set --{option} in that range")


def run_parser(program: str = "rampart fit", purpose: str = "") -> Parser:
    """The parser of a run's options; a command may add options of its own."""
    usage = f"{program} [--config RECIPE_OR_FILE ...] [--OPTION VALUE ...]"
    parser = Parser(prog=program, description=purpose, usage=usage, allow_abbrev=False)
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
    parser.add_argument("--defenses", type=entries, default={}, help=defenses)
    parser.add_argument("--attacks", type=entries, default={}, help="Attacks by name, run after the defenses.")
    parser.add_argument("--defense_order", type=list[str] | None, default=None, help=order)
    where = "Weights & Biases: in the run folder, online, or not; by default as WANDB_MODE says."
    parser.add_argument("--tracking", type=TrackingMode, default=default_mode(), help=where)
    project, entity = "Weights & Biases project; by default WANDB_PROJECT.", "Team or user; by default WANDB_ENTITY."
    parser.add_argument("--project", type=str, default=default_project(), help=project)
    parser.add_argument("--entity", type=str | None, default=os.environ.get("WANDB_ENTITY"), help=entity)
    images = "Track figures that show training data, such as reconstructions beside the originals."
    parser.add_argument("--track_images", type=bool, default=False, help=images)
    parser.add_argument("--group", type=str | None, default=None, help="Comparison that this run belongs to.")
    parser.link_arguments("seed_everything", "model.seed", compute_fn=seed_of)
    parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=seed_of)
    return parser


def seed_of(option: bool | int) -> int:
    """The seed that `--seed_everything` stands for; equal on all processes, to which Lightning passes the variable."""
    return int(os.environ.get("PL_GLOBAL_SEED") or 0) if option is True else int(option)


def complete_config(parser: Parser, config: Namespace) -> dict[str, Any]:
    """The whole configuration as plain data, without where it is kept, so that it can be replayed elsewhere."""
    plain = yaml.safe_load(parser.dump(config, skip_none=False))
    return {key: value for key, value in plain.items() if key not in ("config", "run")}


def expand(arguments: Sequence[str], below: Sequence[Layer] = ()) -> list[str]:
    """Arguments for jsonargparse: all layers merged into one `--config`, then everything else.

    `--config` may be given many times, with a file or the name of a recipe; later ones lie on top, and options on the
    command line on top of all. `--defenses.NAME.OPTION VALUE` reaches into a named defense (likewise attacks).
    """
    layers: list[Layer] = list(below)
    entries: list[tuple[str, list[str], Any]] = []
    rest: list[str] = []
    for option, value in _pairs(arguments):
        section, *keys = option.removeprefix("--").split(".")
        if option in ("--config", "-c"):
            layers.append(_required(option, value))
        elif option.startswith("--") and section in SECTIONS and keys not in ([], ["help"]):
            entries.append((section, keys, _class_or_value(keys, yaml.safe_load(_required(option, value)))))
        else:
            rest.extend(part for part in (option, value) if part is not None)
    config = layered(layers)
    for section, keys, value in entries:
        put(config, section, keys, value)
    for section in SECTIONS:
        named = config.get(section)
        if isinstance(named, dict):  # a layer may remove what no layer below has added
            config[section] = {name: entry for name, entry in named.items() if entry is not None}
    return ["--config", json.dumps(config), *rest]


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
