"""Shadow models on disk, by a hash of everything they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from app.attacks.models import Ids, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.central import ShadowJob
from app.common.array_files import read_arrays
from app.common.errors import UserError
from app.common.files import hold_lock, npz_bytes, private_folder, replace_all
from app.common.progress import Step
from app.federation.parameters import plain_array
from app.models.base import ScalableNet

VERSION = 1
"""Raised whenever the same settings lead to other shadows."""


class ShadowCache:
    """A folder with one file per shadow. Without a folder, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._described: tuple[PublicKnowledge, str] | None = None

    def key(self, knowledge: PublicKnowledge, job: ShadowJob, rounds: tuple[int, ...]) -> str:
        """Hash of network, recipe, content of the samples, rounds and seed."""
        if self._described is None or self._described[0] is not knowledge:
            self._described = (knowledge, json.dumps(_description(knowledge), sort_keys=True))
        learning_rates = [knowledge.local.client_lr(lr, job.rate) for lr in knowledge.learning_rates[: rounds[-1]]]
        settings = [self._described[1], job.rate, job.number, rounds, learning_rates, job.seed]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
        digest.update(_content(knowledge, job.samples))
        return digest.hexdigest()

    def read(self, key: str) -> tuple[Snapshot, ...] | None:
        """Snapshots of a shadow, None where its file is missing or broken."""
        if self._folder is None or not (path := self._folder / f"{key}.npz").is_file():
            return None
        try:
            arrays = read_arrays(path)
            rate, vectors = float(arrays["rate"]), torch.from_numpy(arrays["vectors"])
            pairs = zip(arrays["rounds"], vectors, strict=True)
            return tuple(Snapshot(int(round_), rate, vector) for round_, vector in pairs)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # cut short by a crash: train it again
            return None

    def write(self, key: str, snapshots: tuple[Snapshot, ...]) -> None:
        """Keep a shadow; its file appears complete or not at all."""
        if self._folder is None:
            return
        vectors = plain_array(torch.stack([snapshot.vector for snapshot in snapshots]))
        rounds = np.array([snapshot.round for snapshot in snapshots])
        content = npz_bytes({"rate": np.array(snapshots[-1].rate), "rounds": rounds, "vectors": vectors})
        with _writing(self._folder):
            private_folder(self._folder)
            replace_all({self._folder / f"{key}.npz": content})

    @contextmanager
    def turn(self, sets: Iterable[list[str]]) -> Iterator[None]:
        """Keep other runs from training the same sets of shadows at the same time; waits for one that does."""
        with ExitStack() as stack:
            if self._folder is not None:
                for keys in sorted(sets):  # in one order, lest two runs wait for each other
                    stack.enter_context(turn(self._folder, keys))
            yield


@contextmanager
def turn(folder: Path, names: Sequence[str], what: str = "shadow models") -> Iterator[None]:
    """Wait until no other process that uses the folder is within this context with the same names.

    The system frees the lock of a process that ends, however it does. `what` is trained within, for messages.
    """
    path = folder / f"{hashlib.blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()}.lock"
    with _writing(folder, what):
        private_folder(folder)
        try:
            lock = hold_lock(path)
        except BlockingIOError:
            with Step(f"waiting for {what} that another run is training", delay=0):
                lock = hold_lock(path, wait=True)
    with lock:
        yield
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path, what: str = "shadow models") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError.of(
            f"cannot keep {what} in {folder}: {error.strerror or error}",
            "what attacks train would be trained again for every attack",
            "free some space or choose another --run.root",
        ) from error


def _description(knowledge: PublicKnowledge) -> dict[str, Any]:
    local = knowledge.local
    optimizer = local.build_optimizer([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    net, augment = knowledge.prototype, getattr(knowledge.augment, "__self__", knowledge.augment)
    return {
        "version": VERSION,
        "torch": str(torch.__version__),
        "network": [type(net).__name__, str(net), *_settings(net)],
        "local": [local.epochs, local.steps, local.batch_size, local.proximal, local.mask_labels, local.clip_norm],
        "shuffle": local.shuffle,
        "optimizer": [repr(optimizer)],
        "augment": repr(getattr(augment, "augment", augment)),  # a data module holds its settings in `augment`
        "precision": [str(knowledge.dtype), getattr(knowledge.precision, "__qualname__", "")],
        "normalisation": [knowledge.store.mean.tolist(), knowledge.store.std.tolist(), knowledge.classes],
        "batch": knowledge.batch_size,
        "seed": knowledge.seed,
    }


def _settings(net: ScalableNet) -> list[str]:
    """Settings of a network; printing its layers does not show initial values, say, or the noise of a private part."""
    plain = (bool, int, float, str, list, tuple, dict, type(None))
    return [f"{name}={value!r}" for name, value in sorted(net.hparams.items()) if isinstance(value, plain)]


def _content(knowledge: PublicKnowledge, samples: Ids) -> bytes:
    """Hash of images and labels of the samples: datasets of equal size differ in it."""
    chosen = torch.from_numpy(samples).to(knowledge.store.device)
    digest = hashlib.blake2b(np.ascontiguousarray(samples).tobytes(), digest_size=16)
    digest.update(knowledge.store.images[chosen].cpu().contiguous().numpy().tobytes())
    digest.update(knowledge.store.labels[chosen].cpu().numpy().tobytes())
    return digest.digest()
