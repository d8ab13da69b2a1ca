"""Files of trained models: `.pt` and `.safetensors`, from which `load_model` builds the network again, and `.onnx`.

Files of the first two kinds hold tensors and plain data only; those of the third run without this program.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.common.errors import UserError
from app.common.files import replace_all
from app.common.renamed import current
from app.common.trust import refuse_foreign
from app.models.base import DataShape, ScalableNet
from app.models.factor_layers import FactorLayer
from app.release import FORMAT, TrainedModel, filled, tensors
from app.results.run.naming import shortened

ENDINGS = (".pt", ".safetensors", ".onnx")
READABLE = "give a .pt or .safetensors file that `rampart export` has written"
BROKEN = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError)


def new_file(path: str | Path, overwrite: bool, endings: tuple[str, ...] = ENDINGS) -> Path:
    """The path of a file that may be written.

    Raises:
        UserError: where it has another ending, or there is such a file and it is not to be overwritten.
    """
    target = Path(path)
    if target.suffix.lower() not in endings:
        cause = f"{shortened(target)} has an unknown ending"
        raise UserError.of(cause, "it tells no format", f"use {' or '.join(endings)}")
    try:
        exists = target.exists()
    except OSError as error:
        raise _cannot_write(target, error) from error
    if exists and not overwrite:
        raise UserError.of(f"{target} exists", "it would be lost", "choose another file, or add --overwrite")
    return target


def write_new(path: Path, content: bytes) -> None:
    """Write a file in one step; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_all({path: content}, private=False)
    except (OSError, ValueError) as error:  # a path that holds a null byte is a ValueError
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: Exception) -> UserError:
    cause = f"cannot write {shortened(path)}: {getattr(error, 'strerror', None) or error}"
    return UserError.of(cause, "nothing is kept", "choose another file, or free some space")


def save_model(model: TrainedModel, path: str | Path, overwrite: bool = False) -> Path:
    """Save a model in the format that the ending of the file tells; returns its path.

    Raises:
        UserError: where the file exists, a library is missing, or the network could not be built again.
    """
    target = new_file(path, overwrite)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors(model.net).items()}
    again = _built(model.about, state)  # what is written can be read
    text = {name: json.dumps(value) for name, value in model.about.items()}
    if target.suffix.lower() == ".onnx":
        content = _onnx(again.float(), text)
    elif target.suffix.lower() == ".safetensors":
        content = _library("safetensors.torch").save(state, metadata=text)
    else:
        file = io.BytesIO()
        torch.save({"state_dict": state, **model.about}, file)
        content = file.getvalue()
    write_new(target, content)
    return target


def load_model(path: str | Path, trust: bool = False) -> TrainedModel:
    """A model from a `.pt` or `.safetensors` file, on the CPU.

    Nothing but tensors and plain data is read; the class of the network is imported by its name.

    Args:
        path: of the file.
        trust: let it name a network that does not come with this program, whose code then runs.

    Raises:
        UserError: where there is no such file, `save_model` did not write it, or its network is not trusted.
    """
    source = Path(path)
    try:
        safe = source.suffix.lower() == ".safetensors"
        about = _safetensors(source) if safe else torch.load(source, map_location="cpu", weights_only=True)
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or "it is damaged, or of another program"
        raise UserError.of(f"cannot read {source}: {reason}", "there is no model", READABLE) from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError.of(f"{source} is no model of this program", "its network is unknown", READABLE)
    if not trust:
        refuse_foreign({"net": current(about.get("net"))}, source)
    return _built(about, about.pop("state_dict"))


def _safetensors(path: Path) -> dict[str, Any]:
    library = _library("safetensors")
    try:
        with library.safe_open(path, "pt") as file:
            about = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
            return about | {"state_dict": {name: file.get_tensor(name) for name in file.keys()}}  # noqa: SIM118
    except library.SafetensorError as error:
        raise ValueError(str(error)) from error


def _built(about: Mapping[str, Any], state: Mapping[str, Tensor]) -> TrainedModel:
    try:
        with torch.random.fork_rng(devices=[]):
            net = _factory(current(about["net"]))(DataShape(**about["shape"])).scaled(about["rate"])
        return TrainedModel(filled(net, state), about)
    except (ImportError, AttributeError, *BROKEN) as error:
        raise UserError.of(
            f"the network {about.get('net')} cannot be built again: {error}",
            "its weights have no place",
            "let its class lie in a module that can be imported from here, and take numbers, texts and lists",
        ) from error


def _factory(plain: Mapping[str, Any]) -> partial[ScalableNet]:
    """What builds a network for a shape, from plain data; nothing but a network is called."""
    module, _, name = plain["class_path"].rpartition(".")
    kind = getattr(import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, ScalableNet)):
        raise TypeError(f"{plain['class_path']} is no ScalableNet")
    options = dict(plain["init_args"])
    nested = {
        key: _factory(value) for key, value in options.items() if isinstance(value, dict) and "class_path" in value
    }
    return partial(kind, **{**options, **nested})


def _onnx(model: TrainedModel, text: Mapping[str, str]) -> bytes:
    helper, shape = _library("onnx.helper"), model.shape
    _library("onnxscript")  # torch's exporter needs it
    for layer in model.modules():
        if isinstance(layer, FactorLayer):  # else the number of images would decide how it computes
            layer._composes = lambda rows: True  # type: ignore[method-assign]
    images = torch.zeros(2, shape.channels, shape.height, shape.width)
    batch = {"images": {0: torch.export.Dim("batch")}}
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(model, (images,), dynamo=True, dynamic_shapes=batch, verbose=False, **names)
    except RuntimeError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        cause = f"torch cannot translate {type(model.net).__name__} to ONNX: {reason}"
        raise UserError.of(cause, "there is no .onnx file", "export a .pt or .safetensors file") from error
    assert program is not None
    proto = program.model_proto
    for node in (node for part in (proto.graph, *proto.functions) for node in part.node):
        del node.metadata_props[:]  # they name files of this machine
    helper.set_model_props(proto, dict(text))
    content: bytes = proto.SerializeToString()
    return content


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        remedy = 'pip install "rampart-fl[export]", or use a .pt file'
        raise UserError.of(f"{name.partition('.')[0]} is missing: {error}", "such files need it", remedy) from error
