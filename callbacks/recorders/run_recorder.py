"""Writes the metrics of every round, and all results, to the run folder."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from app.common.errors import UserError
from app.common.files import cannot_write
from app.common.progress import PROGRESS_LOG, output
from app.federation.checks.federation import composition_notes
from app.federation.execution.distributed import from_first, gather
from app.federation.hooks import FederatedCallback, federated_callbacks
from app.federation.module import FederatedModule
from app.federation.promises import statements, withheld
from app.federation.reports import CLIENT_COLUMNS, ClientReport, client_row, cpu_clock
from app.privacy.ledger import Spend
from app.result import Result
from app.results.attacks.attack_epsilon import measured_records
from app.results.run.attempts import END_OF_RUN, Attempt, end_attempt
from app.results.run.description import described_run
from app.results.run.figures import draw_accuracy, draw_budget
from app.results.run.folder import RunFolder
from app.results.run.ledger import append_spend, read_spends
from app.results.run.results import conclude, summaries
from app.results.run.tracking import tracker_of
from callbacks.recorders.progress import round_line, time_left


class RunRecorder(FederatedCallback):
    """Keeps a run in a folder: metrics, clients and costs of every round, results, and the summary at the end.

    The clients of a round are gathered from all processes; the first one writes.

    Example::

        Trainer(callbacks=[MemDefense(), MembershipInference(), RunRecorder("runs/mine")])

    Args:
        folder: the run's folder, which is made; or one that was claimed for the run before.
    """

    kind = "recorder"

    def __init__(self, folder: str | Path | RunFolder) -> None:
        self._claimed = isinstance(folder, RunFolder)
        self._folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
        self._last: dict[int, ClientReport] = {}
        self._attempt: Attempt | None = None
        self._started, self._first = 0.0, 0
        self._trained: tuple[float, float] | None = None  # wall and CPU clock at the end of the training

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.cache = self._folder.cache()
        pl_module.progress_log = self._folder.path / PROGRESS_LOG
        if stage == "fit" and not self._claimed:
            self._claimed = True
            config = described_run(pl_module, pl_module.data, trainer)
            rank_zero_only(self._folder.claim)(config, overwrite=False)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give what earlier attempts have spent back to the defenses: it left, even if no checkpoint knows of it."""
        with self._writing():
            spends = from_first(read_spends(self._folder.path) if trainer.is_global_zero else [])
        for callback in federated_callbacks(trainer):
            callback.restore_spends(spends)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        self._started, self._first = time.monotonic(), trainer.current_epoch
        with self._writing():
            rank_zero_only(end_attempt)(self._folder.path)
            self._describe(pl_module, trainer.current_epoch)

    @rank_zero_only
    def _describe(self, federation: FederatedModule, done: int) -> None:
        client_pool = federation.client_pool
        self._folder.forget_after(done)
        if done:
            self._folder.forget_metrics(
                lambda round_, metric: any(
                    one.unplanned(federation, round_, metric) for one in federation.hooks.callbacks
                )
            )
        federation.data.write_table(self._folder.path, self._folder.figures)
        self._folder.write_json(
            "plan.json",
            {
                "method": federation.method.title,
                "seed": client_pool.seed,
                "participation": client_pool.participation,
                "sizes": client_pool.sizes,
                "capacities": client_pool.capacities,
                "redraw": client_pool.redraw,
                "cells": federation.space.size,
                "layers": [
                    {"name": block.name, "shape": block.shape, "start": block.start}
                    for block in federation.space.blocks
                    if len(block.axes) == 2  # weight matrices
                ],
                "participants": [client_pool.participants(round_) for round_ in range(federation.rounds)],
                "withheld": withheld(federation),
            },
        )

    def on_spend(self, trainer: Trainer, federation: FederatedModule, spend: Spend) -> None:
        """Write it to the disk; no process goes on, and nothing is uploaded, before it is there."""
        with self._writing():
            rank_zero_only(append_spend)(self._folder.path, spend)
        gather(True)

    def on_round_end(
        self,
        trainer: Trainer,
        federation: FederatedModule,
        metrics: Mapping[str, float],
        costs: Mapping[str, float],
    ) -> None:
        report = federation.report
        self._last |= {client.client: client for client in report.clients}
        output().keep(round_line(federation, time_left(federation, self._started, self._first)))
        with self._writing():
            self._write(report.round, metrics, costs, report.clients)

    @rank_zero_only
    def _write(
        self, round_: int, metrics: Mapping[str, float], cost: Mapping[str, float], clients: tuple[ClientReport, ...]
    ) -> None:
        self._folder.append_json("metrics.jsonl", metrics)
        self._folder.append_json("cost.jsonl", cost)
        rows = [[round_, *client_row(client)] for client in clients]
        self._folder.append_rows("clients.csv", ["round", *CLIENT_COLUMNS], rows)

    def results(self, federation: FederatedModule) -> Iterable[Result]:
        """None of its own: what attacks at the end of the run had found when it was interrupted is given to them."""
        if federation.trainer.is_global_zero:
            self._attempt = Attempt(self._folder.path, END_OF_RUN)
            self._attempt.begin()
            federation.kept_findings = self._attempt.findings()
        return ()

    @rank_zero_only
    def on_result(self, trainer: Trainer, federation: FederatedModule, result: Result) -> None:
        with self._writing():
            result.save(self._folder.path)
            if self._attempt is not None:
                self._attempt.note(result)

    @rank_zero_only
    def on_results(self, trainer: Trainer, federation: FederatedModule, results: Sequence[Result], when: str) -> None:
        with self._writing():
            conclude(self._folder, results, when, tracker_of(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained = time.perf_counter(), cpu_clock()

    def _cost_after_training(self, federation: FederatedModule) -> dict[str, float]:
        """Seconds of attacks and of the last evaluations, and the shadow models that were trained or reused for them.

        Empty where this process has trained no round.
        """
        if self._trained is None:
            return {}
        wall, cpu = self._trained
        seconds = {"attack_phase/seconds": time.perf_counter() - wall, "attack_phase/cpu_seconds": cpu_clock() - cpu}
        return seconds | {f"attack_phase/shadows_{what}": count for what, count in federation.shadow_counts.items()}

    def on_run_end(self, trainer: Trainer, federation: FederatedModule) -> None:
        with self._writing():
            self._finish(trainer, federation)

    @rank_zero_only
    def _finish(self, trainer: Trainer, federation: FederatedModule) -> None:
        records, costs = self._folder.read_lines("metrics.jsonl"), self._folder.read_lines("cost.jsonl")
        final = dict(records[-1]) if records else {}
        if (members := federation.score_of_members()).total:
            final["server/train_accuracy"] = members.accuracy
        cost = _total_cost(costs) | self._cost_after_training(federation)
        if self._folder.figures:
            draw_accuracy(records, self._folder.path / "accuracy.png", self._folder.name)
            draw_budget(records, self._folder.path / "privacy.png", self._folder.name)
        self._folder.write_json("cost.json", cost)
        clients = [asdict(self._last[client]) for client in sorted(self._last)]
        learning = federation.learning.warnings(federation)
        summary = {"final": final, "cost": cost, "clients": clients, "warnings": learning}
        promised = statements(federation)
        budgets = [statement.record() for statement in promised]
        measured = measured_records(federation.results, promised)
        channels = [statement.record() for statement in federation.hooks.channel_statements()]
        if budgets or channels or measured:
            privacy = {"budgets": budgets, "measured": measured, "channels": channels}
            self._folder.write_json("privacy.json", privacy | {"combinations": composition_notes(federation)})
            summary["privacy"], summary["channels"] = budgets, channels
            summary["measured"] = [one["text"] for one in measured]
        summary |= summaries(self._folder)
        self._folder.write_json("summary.json", summary)  # marks the run as finished
        end_attempt(self._folder.path)
        if (tracker := tracker_of(trainer)) is not None:
            tracker.finish(summary, withheld(federation))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder.release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._folder.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UserError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            raise cannot_write(self._folder.path, cause) from error

    def state_dict(self) -> dict[str, Any]:
        # a resumed run summarises clients that it did not see again
        return {"last": [asdict(self._last[client]) for client in sorted(self._last)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last = {report["client"]: ClientReport(**report) for report in state_dict["last"]}


def _total_cost(costs: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in (costs[0] if costs else {}) if name != "round"]
    total: dict[str, float] = {name: sum(float(cost[name]) for cost in costs) for name in names}
    total["rounds"] = float(len(costs))
    if costs:
        total["seconds_per_round"] = total["seconds/total"] / len(costs)
        if "cpu_seconds" in total:  # not measured by earlier versions
            total["cpu_seconds_per_round"] = total["cpu_seconds"] / len(costs)
        total["train_seconds_per_client_round"] = total["client_seconds/train"] / max(1.0, total["clients"])
        own = [name for name in names if name.startswith("client_seconds/") and name != "client_seconds/evaluate"]
        total["own_seconds_per_client_round"] = sum(total[name] for name in own) / max(1.0, total["clients"])
        total["defend_seconds_per_client_round"] = total["seconds/defend"] / max(1.0, total["clients"])
        total["defend_share"] = total["seconds/defend"] / total["seconds/total"]
        total["channel_share"] = total["seconds/channel"] / total["seconds/total"]
    return total
