"""This application on the work of a benchmark."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence

import lightning.pytorch as pl

from app.benchmarks.raw import flat
from app.benchmarks.work import EVALUATION_BATCH, SEED, Run, Stopwatch, Work
from app.federation.evaluation import Evaluation
from app.federation.execution.executors import ExecutorKind
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule


class _RoundTimer(pl.Callback):
    """When each round ended, Lightning's own work between rounds included."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the time."""
        self.watch.lap()


def federation(work: Work, executor: ExecutorKind) -> FederatedModule:
    """The federation that does the work."""
    return FederatedModule(
        net=work.net,
        local=LocalTraining(batch_size=work.batch_size, optimizer=work.optimizer),
        evaluation=Evaluation(clients=work.evaluate, batch_size=EVALUATION_BATCH),
        executor=executor,
        seed=SEED,
    )


def ours(
    work: Work,
    rounds: int,
    executor: ExecutorKind = "auto",
    defenses: Callable[[], Sequence[pl.Callback]] = tuple,
) -> Run:
    """Train with this application, by default with the executor it would choose itself and without defenses."""
    module, timer = federation(work, executor), _RoundTimer()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if work.evaluate else 0,
        callbacks=[*defenses(), timer],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about dataloader workers, which do not exist here
        trainer.fit(module, datamodule=work.data())
    return timer.watch.run(flat(module.net), _correct(module, work) if work.evaluate else 0)


def _correct(module: FederatedModule, work: Work) -> int:
    """Correct answers in the evaluations of the last round; the received model counts once."""
    clients = module.report.clients
    shares = [clients[0].received_common, *(client.trained_common for client in clients)]
    return sum(round(share * work.tests) for share in shares) + module.report.server.correct
