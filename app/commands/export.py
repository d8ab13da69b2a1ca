"""`rampart export RUN FILE`: save the released model of a run, or that of a client, with the preprocessing it needs.

The ending of the file tells the format: `app.export.load_model` reads .pt and .safetensors, onnxruntime reads .onnx.
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence

from app.commands.fit import quieten
from app.commands.parser import CommandParser
from app.export import new_file, save_model
from app.finished import load_run
from app.release import TrainedModel

TRUST = "let the run's configuration name classes that do not come with this program: their code runs"


def model_parser(command: str, description: str) -> CommandParser:
    """The options of a command that uses a trained model."""
    parser = CommandParser(
        f"rampart {command}",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, such as runs/demo")
    client = "the model that this client would use after the last round (default: the released model)"
    parser.add_argument("--client", type=int, metavar="ID", help=client)
    static = "let batch norms use statistics of the training data instead of those of the batch"
    parser.add_argument("--static", action="store_true", help=static)
    parser.add_argument("--trust", action="store_true", help=TRUST)
    return parser


def export(arguments: Sequence[str]) -> int:
    """Save a model; returns the exit code."""
    quieten()
    parser = model_parser("export", str(__doc__))
    parser.add_argument("file", metavar="FILE", help="model.pt, model.safetensors or model.onnx")
    parser.add_argument("--overwrite", action="store_true", help="replace the file where it exists")
    options = parser.parse_args(list(arguments))
    run, path = load_run(options.run, options.trust), new_file(options.file, options.overwrite)
    model = run.model(options.client, options.static)
    save_model(model, path, options.overwrite)
    print(f"{path}: {whose(model)} of {run.folder.path}, {path.stat().st_size:,} bytes")
    print(f"takes {model.about['input']}; gives logits of {len(model.classes)} classes")
    print(notes(model), end="")
    return 0


def whose(model: TrainedModel) -> str:
    """Whose model it is, in words."""
    client = model.about["client"]
    return "the released model" if client is None else f"the model of client {client}"


def notes(model: TrainedModel) -> str:
    """What to know of a model, a line each."""
    return "".join(f"note: {note}\n" for note in model.about["notes"])
