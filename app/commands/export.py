"""`rampart export RUN FILE`: save the released model of a run, or that of a client, with the preprocessing it needs.

The ending of the file tells the format: `app.export.load_model` reads .pt and .safetensors, onnxruntime reads .onnx.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.commands.fit import quieten
from app.commands.options import export_parser
from app.export import new_file, save_model
from app.finished import load_run
from app.release import TrainedModel


def export(arguments: Sequence[str]) -> int:
    """Save a model; returns the exit code."""
    quieten()
    options = export_parser().parse_args(list(arguments))
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
