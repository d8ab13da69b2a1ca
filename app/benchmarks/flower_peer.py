"""Flower's simulation on the work of a benchmark: Ray workers that use all cores between them."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from app.benchmarks.competitors import LoadedData, correct_answers, fit, flat
from app.benchmarks.work import Run, Stopwatch, Work
from app.federation.execution.distributed import keep_freed_memory, spare_driver_lookups
from app.federation.execution.executors import available_cores


@functools.cache
def _data(work: Work, threads: int) -> LoadedData:
    """The data, loaded once per worker process, which gets the settings of all competitors' processes."""
    keep_freed_memory()
    spare_driver_lookups()
    torch.set_num_threads(threads)
    return LoadedData.of(work, channels_last=False)


def _client_app(work: Work, threads: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = _data(work, threads).clients[int(context.node_config["partition-id"])]
        net = work.net(work.shape)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        order = torch.randperm(len(labels)).split(work.batch_size)
        fit(net, ((images[positions], labels[positions]) for positions in order), work.optimizer, fused=False)
        if work.evaluate:
            correct_answers(net, _data(work, threads).test)
        answer = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
        return Message(content=RecordDict(answer), reply_to=message)

    return app


def flower(work: Work, rounds: int, threads: int) -> Run:
    """Federated averaging by Flower, with as many workers of so many intra-op threads as there are cores for.

    With evaluation, of every client's trained model and of the server's.
    """
    net, watch, server = work.initial_net(), Stopwatch(), ServerApp()
    test = LoadedData.of(work, channels_last=False).test

    def lap(round_: int, arrays: ArrayRecord) -> None:
        if work.evaluate:
            net.load_state_dict(arrays.to_torch_state_dict())
            correct_answers(net, test)
        if round_ > 0:
            watch.lap()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=work.clients)
        result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=rounds, evaluate_fn=lap)
        net.load_state_dict(result.arrays.to_torch_state_dict())

    logging.getLogger("flwr").setLevel(logging.ERROR)
    cores = available_cores()
    backend: dict[str, Any] = {
        "client_resources": {"num_cpus": threads, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
    }
    run_simulation(server, _client_app(work, threads), work.clients, backend_config=backend)
    # the work is done by other processes, whose CPU time is not counted here
    return replace(watch.run(flat(net)), cpu_seconds=())
