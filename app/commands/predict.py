"""`rampart predict RUN IMAGES ...`: classify image files with the model of a finished run.

Images are files, or folders that are searched through. They are converted to the colours and the size that the model
was trained with; where its data were padded, smaller images are padded too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from app.commands.export import notes, whose
from app.commands.fit import quieten
from app.commands.options import predict_parser
from app.common.errors import UserError
from app.common.files import csv_text
from app.common.wording import counted
from app.export import new_file, write_new
from app.federation.evaluation import evaluates_by_batch, evaluation_batches
from app.finished import load_run
from app.models.base import DataShape
from app.release import TrainedModel
from app.results.run.naming import shortened
from app.results.text_table import text_table
from datamodules.folder import SUFFIXES

HEAD = ("file", "class", "probability", "number")
SHOWN = 5
MODES = {1: "L", 3: "RGB"}
"""Pillow's names of images with so many channels."""


def predict(arguments: Sequence[str]) -> int:
    """Classify images; returns the exit code: 1 where a file could not be read."""
    quieten()
    options = predict_parser().parse_args(list(arguments))
    run, output = load_run(options.run, options.trust), new_file(options.output, options.overwrite, (".csv",))
    files = [file for path in options.images for file in _files(path)]
    model = run.model(options.client, options.static)
    images, broken = _read(files, model.shape, model.about["pad"])
    print(*(f"error: no image that can be read: {file}\n" for file in broken), sep="", end="", file=sys.stderr)
    if images:
        answers = _answers(model, torch.stack(list(images.values())), run.run.federation.evaluation.batch_size)
        rows = [(str(file), *answer) for file, answer in zip(images, answers, strict=True)]
        write_new(output, csv_text([HEAD, *rows], line_end="\n").encode())
        print(text_table(HEAD, rows[:SHOWN], left=(0, 1)), notes(model), sep="\n", end="")
        print(f"{output}: {counted(len(rows), 'image')}, classified by {whose(model)} of {run.folder.path}")
    return 1 if broken else 0


def _files(path: Path) -> list[Path]:
    """The file, or all images below the folder."""
    remedy = f"name files or folders of {' '.join(sorted(SUFFIXES))}"
    try:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        else:
            found = [path] if path.is_file() else []
    except OSError as error:
        cause = f"{shortened(path)} cannot be opened: {error.strerror or error}"
        raise UserError.of(cause, "nothing can be classified", remedy) from error
    if not found:
        cause = f"{path} holds no images" if path.is_dir() else f"there is no {shortened(path)}"
        raise UserError.of(cause, "nothing can be classified", remedy)
    return found


def _read(files: Sequence[Path], shape: DataShape, pad: int) -> tuple[dict[Path, Tensor], list[Path]]:
    """Images (height, width, channels) as bytes, and files that are none; says what had to be converted."""
    if shape.channels not in MODES:
        cause = f"the model takes images of {shape.channels} channels"
        raise UserError.of(cause, "image files have one or three", "use the model in Python: load_run(RUN).model()")
    images, broken, converted = {}, [], Counter[str]()
    for file in files:
        try:
            with Image.open(file) as picture:
                images[file] = _pixels(picture, shape, pad, converted)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            broken.append(file)
    for change, count in converted.items():
        print(f"converted {count} of {len(files)} images: {change}")
    return images, broken


def _pixels(picture: Image.Image, shape: DataShape, pad: int, converted: Counter[str]) -> Tensor:
    """An image as in training (see `datamodules.folder`); what was done to it is counted."""
    whole, inner = (shape.width, shape.height), (shape.width - 2 * pad, shape.height - 2 * pad)
    pixels = picture.convert(MODES[shape.channels])
    converted.update([f"{picture.mode} to {pixels.mode}"] * (picture.mode != pixels.mode))
    if pixels.size not in (whole, inner):
        pixels = pixels.resize(inner, Image.Resampling.BILINEAR)
        converted[f"scaled to {inner[0]}x{inner[1]} pixels"] += 1
    if pixels.size != whole:
        pixels = ImageOps.expand(pixels, pad, fill=0)
        converted[f"{counted(pad, 'black pixel')} added on each side"] += 1
    return torch.from_numpy(np.array(pixels)).view(shape.height, shape.width, shape.channels)


@torch.no_grad()
def _answers(model: TrainedModel, images: Tensor, batch_size: int) -> Iterator[tuple[str, str, str]]:
    """Class, its probability and its number for every image."""
    if evaluates_by_batch(model.net) and len(images) == 1:
        cause = "the model normalises by the statistics of the batch, and there is a single image"
        raise UserError.of(cause, "one image has none", "name more images, or add --static")
    for batch in evaluation_batches(model.net, torch.arange(len(images)), batch_size):
        logits = model(images[batch].movedim(-1, 1).to(model.mean.device) / 255)
        probabilities, numbers = logits.float().softmax(1).max(1)
        for probability, number in zip(probabilities.tolist(), numbers.tolist(), strict=True):
            yield model.classes[number], f"{probability:.6f}", str(number)
