"""What must hold before a federation starts; every problem is found at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.errors import Problem, UserError
from app.models.norms import uses_batch_statistics
from datamodules.base import FederatedDataModule

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


def federation_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems of a federation's settings, its data and its trainer."""
    data = getattr(federation.trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise UserError.of(
            "the federation has no federated data",
            "there are no clients to train",
            "pass a FederatedDataModule: trainer.fit(federation, datamodule=Digits())",
        )
    yield from federation.local.problems()
    yield from federation.evaluation.problems()
    yield from _federation_problems(federation, data.clients)
    yield from trainer_problems(federation)


def _federation_problems(federation: FederatedModule, clients: int) -> Iterator[Problem]:
    rates = federation.capacities
    if len(rates) not in (1, clients):
        yield Problem(
            f"there are {len(rates)} capacities for {clients} clients",
            "it is not clear how wide each client's submodel is",
            f"give --model.capacities one rate for all or {clients} rates, or change --data.partition.clients",
        )
    if wrong := sorted({rate for rate in rates if not 0 < rate <= 1}):
        yield Problem(
            f"capacities hold {', '.join(map(str, wrong))}",
            "a submodel can be neither empty nor larger than the server's network",
            "give rates in (0, 1] to --model.capacities",
        )
    if not 0 < federation.participation <= 1:
        yield Problem(
            f"participation is {federation.participation}",
            "it is the fraction of clients in a round",
            "set --model.participation in (0, 1]",
        )
    if federation.block_size < 1:
        yield Problem(
            f"block_size is {federation.block_size}",
            "no client would ever be trained",
            "set --model.block_size to 1 or more",
        )


def trainer_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Options of the trainer that would have no effect, or a bad one."""
    trainer = federation.trainer
    if trainer.gradient_clip_val:
        yield Problem(
            "the trainer clips gradients",
            "the trainer never sees the clients' gradients, so nothing would be clipped",
            "use --model.local.clip_norm instead of --trainer.gradient_clip_val",
        )
    if trainer.accumulate_grad_batches != 1:
        yield Problem(
            "the trainer accumulates gradients",
            "a batch is a block of clients here, so nothing would be accumulated",
            "use a larger --model.local.batch_size instead of --trainer.accumulate_grad_batches",
        )
    if trainer.precision in ("16-mixed", "16-true"):
        yield Problem(
            f"precision {trainer.precision} needs loss scaling",
            "clients' gradients would vanish, because local training does not scale the loss",
            "use --trainer.precision bf16-mixed or 32-true",
        )


def network_problems(federation: FederatedModule) -> Iterator[Problem]:
    """Problems that show once the network is built."""
    if uses_batch_statistics(federation.net) and federation.local.batch_size < 2:
        yield Problem(
            "local.batch_size is 1 and the network has batch norm",
            "batch norm cannot take statistics over one sample",
            "set --model.local.batch_size to 2 or more, or --model.net.norm group",
        )
    alone = [client for client, size in enumerate(federation.data.sizes) if size < 2]
    if alone and uses_batch_statistics(federation.net):
        yield Problem(
            f"{len(alone)} clients have a single training sample (client {alone[0]}, for one)",
            "batch norm cannot take statistics over one sample",
            "set --model.net.norm group, or give clients more data: --data.partition",
        )
