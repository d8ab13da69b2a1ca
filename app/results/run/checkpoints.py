"""Checkpoints that are either whole or recognised as broken."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn

from app.common.files import cannot_write, private_folder, replace_all

CHECKPOINT_VARIABLE = "RAMPART_CHECKPOINT"
"""Passes on to the processes that Lightning starts for further devices from which checkpoint the first one goes on."""


class VerifiedCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint in one step with a checksum beside it, and loads nothing but tensors and plain data."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write the checkpoint and its checksum.

        Raises:
            UserError: where the disk is full or not writable; the checkpoints before stay as they are.
        """
        target, buffer = Path(path), io.BytesIO()
        torch.save(checkpoint, buffer)
        data = buffer.getbuffer()
        try:
            private_folder(target.parent)
            replace_all({_checksum_file(target): hashlib.sha256(data).hexdigest().encode(), target: data})
        except OSError as error:
            raise cannot_write(target, error) from error

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load tensors and plain data only; code hidden in a checkpoint is never run."""
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)

    def remove_checkpoint(self, path: Any) -> None:
        super().remove_checkpoint(path)
        _checksum_file(Path(path)).unlink(missing_ok=True)


class RoundCheckpoint(ModelCheckpoint):
    """Keeps the last two rounds, so that a damaged newest checkpoint costs one round.

    Args:
        folder: of the checkpoints.
        until: interrupt the run after so many rounds; None to let it end.
    """

    def __init__(self, folder: str | Path, until: int | None = None) -> None:
        self._until = until
        super().__init__(
            dirpath=folder,
            filename="round-{round:05.0f}",
            auto_insert_metric_name=False,
            monitor="round",
            mode="max",
            save_top_k=2,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        if self._until is not None and trainer.current_epoch >= self._until:
            raise KeyboardInterrupt  # the checkpoint of the round before is written


def first_decides(folder: Path, trainer: Trainer) -> Path | None:
    """The checkpoint from which all processes go on, None for a start: what the first process finds in the folder.

    The others do not look: the first one may be deleting or writing there. Processes that it starts are passed its
    choice in a variable; those that were started apart wait for it.
    """
    first = trainer.is_global_zero
    chosen = str(newest_usable(folder) or "") if first else os.environ.get(CHECKPOINT_VARIABLE)
    if first:
        os.environ[CHECKPOINT_VARIABLE] = str(chosen)
    strategy: Any = trainer.strategy
    apart = strategy.cluster_environment.creates_processes_externally if trainer.world_size > 1 else False
    if apart and (first or chosen is None):
        strategy.setup_environment()
        chosen = strategy.broadcast(chosen)
    return Path(chosen) if chosen else None


def newest_usable(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
    paths = sorted(folder.glob("round-*.ckpt"), reverse=True)
    for path in paths:
        reason = damage(path)
        if reason is None:
            return path
        way = "starting from the first round" if path == paths[-1] else "going back to the one before"
        rank_zero_warn(f"checkpoint {path} is damaged ({reason}); {way}")
    return None


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used, None where it can."""
    checksum = _checksum_file(path)
    if not checksum.is_file():
        return "its checksum is missing"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return None if digest.encode() == checksum.read_bytes().strip() else "its checksum does not match"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
