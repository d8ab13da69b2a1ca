"""Apple's pfl on the work of a benchmark; its simulation runs clients one after the other in one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam

from app.benchmarks.competitors import LoadedData, flat
from app.benchmarks.work import LEARNING_RATE, Run, Stopwatch, Work


class _Classifier(nn.Module):
    """A network with the two functions pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self.net(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}


class _RoundTimer(TrainingProcessCallback):
    def __init__(self) -> None:
        self.watch = Stopwatch()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.watch.lap()
        return False, Metrics()


def pfl(work: Work, rounds: int, threads: int) -> Run:
    """Federated averaging by pfl with so many intra-op threads, training only."""
    torch.set_num_threads(threads)
    if pytorch_ops.distributed is None:  # pfl makes it in the main process only
        pytorch_ops.distributed = pytorch_ops.PyTorchDistributedContext()
    clients, net, timer = LoadedData.of(work, channels_last=False).clients, work.initial_net(), _RoundTimer()
    classifier = _Classifier(net)
    model = PyTorchModel(classifier, Adam, SGD(classifier.parameters(), lr=1.0))
    users = partial(_user, clients)
    data = FederatedDataset(users, get_user_sampler("minimize_reuse", list(range(work.clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # evaluates in the first round, which is not timed
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=work.batch_size),
        NNEvalHyperParams(local_batch_size=work.batch_size),
        [timer],
    )
    return timer.watch.run(flat(net))


def _user(clients: tuple[tuple[Tensor, Tensor], ...], client: int) -> PyTorchTensorDataset:
    images, labels = clients[client]
    order = torch.randperm(len(labels))
    return PyTorchTensorDataset((images[order], labels[order]))
