"""The options of commands that have few: nothing heavy is imported, so that help and errors come at once."""

from __future__ import annotations

from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.parser import CommandParser
from app.common.ranges import Count, Positive, Seed, ranged_option
from app.common.sources import docstring

if TYPE_CHECKING:
    from app.experiments.shards import Shard

TRUST = "let the run's configuration name classes that do not come with this program: their code runs"


def list_parser() -> CommandParser:
    """The options of `rampart list`."""
    from app.catalogue import CATALOGUE  # which `rampart report --help` does not wait for

    parser = _parser("list", "listing")
    parser.add_argument("what", nargs="*", help=f"any of: {', '.join(CATALOGUE)}; all without a name")
    return parser


def completion_parser() -> CommandParser:
    """The options of `rampart completion`."""
    parser = _parser("completion")
    parser.add_argument("shell", choices=("bash",), help="shell that the script is for")
    return parser


def compare_parser() -> CommandParser:
    """The options of `rampart compare`."""
    parser = _parser("compare")
    what = "what to compare: a file, or one that comes with the program (`rampart list comparisons` shows them)"
    parser.add_argument("-c", "--config", required=True, metavar="FILE_OR_NAME", help=what)
    parser.add_argument("--scale", metavar="NAME", help="size in which to make it, one of those that the file names")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1", help="these seeds instead of those of the file")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of all comparisons (default: runs)")
    parser.add_argument("--name", help="name of the comparison's folder (default: what the file says, or its own name)")
    jobs = "runs at a time (default: one per GPU or two cores)"
    parser.add_argument("--jobs", type=ranged_option("--jobs", Count), metavar="N", help=jobs)
    gpus = "GPUs of each run: 2, or 0.5 where two runs share one (default: 1 where there are any, as many runs as GPUs)"
    parser.add_argument("--gpus_per_run", type=ranged_option("--gpus_per_run", Positive), metavar="N", help=gpus)
    where = "where runs are made: by processes of this machine, or by a Ray cluster (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=where)
    cluster = "an existing Ray cluster, such as auto or HOST:6379; else one is started here"
    parser.add_argument("--address", help=cluster)
    part = "run this part of several, such as 2/4; all write to one folder, so each job of an array can run one of them"
    parser.add_argument("--shard", type=_shard, metavar="I/N", help=part)
    parser.add_argument("--dry", action="store_true", help="list the runs and what would be done, and stop")
    return parser


def report_parser() -> CommandParser:
    """The options of `rampart report`."""
    parser = _parser("report")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="runs or comparisons, as in runs/demo")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default: report.html in the folder)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--published", action="store_true", help="print published figures beside the measured ones")
    parser.add_argument(
        "--track",
        choices=("offline", "online"),
        help="keep the report, with all that it shows, in Weights & Biases too: offline, or uploaded",
    )
    return parser


def export_parser() -> CommandParser:
    """The options of `rampart export`."""
    parser = _model_parser("export")
    parser.add_argument("file", metavar="FILE", help="model.pt, model.safetensors or model.onnx")
    parser.add_argument("--overwrite", action="store_true", help="replace the file where it exists")
    return parser


def validate_parser() -> CommandParser:
    """The options of `rampart validate`."""
    return _model_parser("validate")


def predict_parser() -> CommandParser:
    """The options of `rampart predict`."""
    parser = _model_parser("predict")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="image files, or folders of such")
    parser.add_argument("--output", default="predictions.csv", metavar="FILE", help="the table (predictions.csv)")
    parser.add_argument("--overwrite", action="store_true", help="replace the table where it exists")
    return parser


def _model_parser(command: str) -> CommandParser:
    """The options of a command that uses a trained model."""
    parser = _parser(command)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, such as runs/demo")
    client = "the model that this client would use after the last round (default: the released model)"
    parser.add_argument("--client", type=int, metavar="ID", help=client)
    static = "let batch norms use statistics of the training data instead of those of the batch"
    parser.add_argument("--static", action="store_true", help=static)
    parser.add_argument("--trust", action="store_true", help=TRUST)
    return parser


def _parser(command: str, module: str = "") -> CommandParser:
    return CommandParser(
        prog=f"rampart {command}",
        description=docstring(f"app.commands.{module or command}"),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _shard(text: str) -> Shard:
    from app.experiments.shards import Shard  # which imports torch

    return Shard.of(text)


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(map(ranged_option("--seeds", Seed), text.split(",")))
    if len(set(seeds)) < len(seeds):
        raise ArgumentTypeError(f"{text!r} has a number more than once")
    return seeds
