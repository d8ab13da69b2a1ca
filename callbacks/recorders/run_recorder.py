"""Writes the metrics of every round to the run folder and to the trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from app.federation.checks import composition_notes
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.reports import ClientReport
from app.results.attacks.factor_recovery import factor_summary
from app.results.attacks.membership_results import attack_summary
from app.results.attacks.reconstruction_results import reconstruction_summary
from app.results.run.fairness import fairness_summary, newcomer_summary
from app.results.run.figures import draw_accuracy, draw_budget
from app.results.run.folder import RunFolder, cannot_write
from app.results.run.round_metrics import CLIENT_COLUMNS, client_row, round_cost, round_metrics
from app.results.run.tracking import RoundLogger

SUMMARIES: Mapping[str, Callable[[RunFolder], Any]] = {
    "fairness": fairness_summary,
    "newcomers": newcomer_summary,
    "attacks": attack_summary,
    "reconstruction": reconstruction_summary,
    "factors": factor_summary,
}
"""Parts of the summary that other callbacks have written to the run folder."""


class RunRecorder(FederatedCallback):
    """Records metrics, clients and costs of every round, and the summary at the end.

    The clients of a round are gathered from all processes; the first one writes.

    Example::

        Trainer(callbacks=[RunRecorder(folder)])

    Args:
        folder: the run's folder, which exists.
    """

    kind = "observer"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._last: dict[int, ClientReport] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        with self._writing():
            self._describe(pl_module, trainer.current_epoch)

    @rank_zero_only
    def _describe(self, federation: FederatedModule, done: int) -> None:
        client_pool = federation.client_pool
        self._folder.forget_after(done)
        federation.data.write_table(self._folder.path)
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
            },
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        report = pl_module.report
        self._last |= {client.client: client for client in report.clients}
        metrics = round_metrics(report, pl_module.data.groups, pl_module.widths) | pl_module.hooks.measurements()
        cost = round_cost(report) | pl_module.hooks.costs()
        with self._writing():
            self._write(report.round, metrics, cost, report.clients)
        for logger in trainer.loggers:
            logger.log_metrics(metrics | {f"cost/{k}": v for k, v in cost.items()}, step=report.round)

    @rank_zero_only
    def _write(
        self, round_: int, metrics: dict[str, float], cost: dict[str, float], clients: tuple[ClientReport, ...]
    ) -> None:
        self._folder.append_json("metrics.jsonl", metrics)
        self._folder.append_json("cost.jsonl", cost)
        rows = [[round_, *client_row(client)] for client in clients]
        self._folder.append_rows("clients.csv", ["round", *CLIENT_COLUMNS], rows)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, FederatedModule)
        if not trainer.interrupted:
            with self._writing():
                self._finish(trainer, pl_module)

    @rank_zero_only
    def _finish(self, trainer: Trainer, federation: FederatedModule) -> None:
        records, costs = self._folder.read_lines("metrics.jsonl"), self._folder.read_lines("cost.jsonl")
        final = dict(records[-1]) if records else {}
        if (members := federation.score_of_members()).total:
            final["server/train_accuracy"] = members.accuracy
        cost = _total_cost(costs)
        draw_accuracy(records, self._folder.path / "accuracy.png", self._folder.name)
        draw_budget(records, self._folder.path / "privacy.png", self._folder.name)
        self._folder.write_json("cost.json", cost)
        clients = [asdict(self._last[client]) for client in sorted(self._last)]
        summary = {"final": final, "cost": cost, "clients": clients}
        budgets = [statement.record() for statement in federation.hooks.statements()]
        channels = [statement.record() for statement in federation.hooks.channel_statements()]
        if budgets or channels:
            privacy = {"budgets": budgets, "channels": channels, "combinations": composition_notes(federation)}
            summary["privacy"], summary["channels"] = budgets, channels
            self._folder.write_json("privacy.json", privacy)
        summary |= {name: part for name, summarise in SUMMARIES.items() if (part := summarise(self._folder))}
        self._folder.write_json("summary.json", summary)  # marks the run as finished
        for logger in trainer.loggers:
            if isinstance(logger, RoundLogger):
                rows = [client_row(self._last[client]) for client in sorted(self._last)]
                logger.finish(final | {f"cost/{k}": v for k, v in cost.items()}, list(CLIENT_COLUMNS), rows)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self._folder.path, error) from error

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
        total["train_seconds_per_client_round"] = total["client_seconds/train"] / max(1.0, total["clients"])
        total["defend_seconds_per_client_round"] = total["seconds/defend"] / max(1.0, total["clients"])
        total["defend_share"] = total["seconds/defend"] / total["seconds/total"]
        total["channel_share"] = total["seconds/channel"] / total["seconds/total"]
    return total
