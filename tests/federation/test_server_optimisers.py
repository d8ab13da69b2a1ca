"""Rounds of softmax regression, against the same rounds written down in numpy."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import Blobs, Recorder, initial, run, sgd, small_federation, whole_batch

from app.federation.aggregation import QFFL, FedAdam, FedAvg, FedAvgM
from app.federation.local_training import LocalTraining

SIZES = (5, 8, 11)
LR = 0.5
EXACT = {"rtol": 0.0, "atol": 1e-12}


class Problem:
    """Three clients with a linear model in numpy: gradients, losses and training; weights (classes, inputs + 1)."""

    def __init__(self) -> None:
        data = Blobs(SIZES)
        data.setup()
        self.shares = []
        for client in range(len(SIZES)):
            images, labels = data.store.batch(data.train_indices(client), torch.float64)
            inputs = images.flatten(1).numpy()
            self.shares.append((np.hstack([inputs, np.ones((len(inputs), 1))]), labels.numpy()))
        self.theta = to_matrix(initial(small_federation(), Blobs(SIZES)))

    def probabilities(self, theta: np.ndarray, client: int) -> np.ndarray:
        """Softmax of the logits."""
        logits = self.shares[client][0] @ theta.T
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def loss(self, theta: np.ndarray, client: int) -> float:
        """Mean cross-entropy on the client's training set."""
        labels = self.shares[client][1]
        return float(-np.log(self.probabilities(theta, client)[np.arange(len(labels)), labels]).mean())

    def gradient(self, theta: np.ndarray, client: int) -> np.ndarray:
        """Of the mean cross-entropy."""
        inputs, labels = self.shares[client]
        error = self.probabilities(theta, client)
        error[np.arange(len(labels)), labels] -= 1
        return error.T @ inputs / len(labels)

    def train(self, theta: np.ndarray, client: int, steps: int = 1, proximal: float = 0.0) -> np.ndarray:
        """Full-batch gradient descent, with FedProx' pull towards the start."""
        local = theta
        for _ in range(steps):
            local = local - LR * (self.gradient(local, client) + proximal * (local - theta))
        return local

    def trained(self, theta: np.ndarray, **settings: float) -> list[np.ndarray]:
        """All clients."""
        return [self.train(theta, client, **settings) for client in range(len(SIZES))]


def to_matrix(vector: torch.Tensor) -> np.ndarray:
    """Flat vector (weight, then bias) as (classes, inputs + 1)."""
    weight, bias = vector[:12].view(3, 4), vector[12:].view(3, 1)
    return torch.cat([weight, bias], dim=1).numpy()


@pytest.fixture(scope="module")
def problem() -> Problem:
    """The problem in numpy."""
    return Problem()


def federated(rounds: int, **settings: object) -> np.ndarray:
    """The application's result."""
    settings.setdefault("local", whole_batch(LR))
    return to_matrix(run(small_federation(**settings), Blobs(SIZES), rounds))


@pytest.mark.parametrize(("weighting", "weights"), [("uniform", (1, 1, 1)), ("samples", SIZES)])
@pytest.mark.parametrize("steps", [1, 3])
def test_fedavg_equals_numpy(problem, weighting, weights, steps):
    """Two rounds of one or three full-batch steps; clients count equally or by samples."""
    theta = problem.theta
    for _ in range(2):
        theta = np.average(problem.trained(theta, steps=steps), axis=0, weights=weights)
    result = federated(2, weighting=weighting, local=whole_batch(LR, epochs=steps))
    np.testing.assert_allclose(result, theta, **EXACT)
    assert np.abs(theta - problem.theta).max() > 0.05


def test_weightings_differ(problem):
    """The two means are not the same number, so the test above can tell them apart."""
    models = problem.trained(problem.theta)
    assert np.abs(np.average(models, axis=0, weights=SIZES) - np.mean(models, axis=0)).max() > 1e-3


def test_one_full_batch_step_of_equal_weight_by_sample_is_centralised_gradient_descent(problem):
    """FedSGD: weighted by samples, one step each is one step on the pooled data."""
    pooled = sum(size * problem.gradient(problem.theta, client) for client, size in enumerate(SIZES)) / sum(SIZES)
    np.testing.assert_allclose(federated(1, weighting="samples"), problem.theta - LR * pooled, **EXACT)


def test_server_learning_rate_is_a_step_towards_the_mean(problem):
    """lr = 0.25 goes a quarter of the way."""
    mean = np.mean(problem.trained(problem.theta), axis=0)
    result = federated(1, server=partial(FedAvg, lr=0.25))
    np.testing.assert_allclose(result, problem.theta + 0.25 * (mean - problem.theta), **EXACT)


def test_fedavgm_equals_numpy(problem):
    """Three rounds, so that momentum acts twice."""
    theta, momentum = problem.theta, np.zeros_like(problem.theta)
    for _ in range(3):
        momentum = 0.6 * momentum + np.mean(problem.trained(theta), axis=0) - theta
        theta = theta + 0.8 * momentum
    np.testing.assert_allclose(federated(3, server=partial(FedAvgM, lr=0.8, momentum=0.6)), theta, **EXACT)


def test_fedavgm_without_momentum_is_fedavg():
    """beta 0 and eta 1 leave nothing of it."""
    result = federated(3, server=partial(FedAvgM, lr=1.0, momentum=0.0))
    np.testing.assert_allclose(result, federated(3), rtol=0.0, atol=1e-14)


def test_fedadam_equals_numpy(problem):
    """Three rounds of Reddi et al., Algorithm 2, without bias correction."""
    theta = problem.theta
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for _ in range(3):
        step = np.mean(problem.trained(theta), axis=0) - theta
        first = 0.8 * first + 0.2 * step
        second = 0.95 * second + 0.05 * step**2
        theta = theta + 0.1 * first / (np.sqrt(second) + 0.01)
    result = federated(3, server=partial(FedAdam, lr=0.1, betas=(0.8, 0.95), tau=0.01))
    np.testing.assert_allclose(result, theta, **EXACT)


def test_qffl_with_q_zero_is_the_plain_mean():
    """Exactly q-FedAvg's claim; weights by sample are not used."""
    np.testing.assert_allclose(federated(3, server=partial(QFFL, q=0.0)), federated(3), **EXACT)


@pytest.mark.parametrize("q", [1.0, 2.5])
def test_qffl_equals_the_closed_form(problem, q):
    """theta - sum F^q d / sum (q F^(q-1) |d|^2 + F^q / lr), d = (theta - theta_k) / lr, two rounds of two steps."""
    theta = problem.theta
    for _ in range(2):
        pulls = [(theta - local) / LR for local in problem.trained(theta, steps=2)]
        losses = [problem.loss(theta, client) + 1e-10 for client in range(len(SIZES))]
        top = sum(loss**q * pull for loss, pull in zip(losses, pulls, strict=True))
        bottom = sum(
            q * loss ** (q - 1) * (pull**2).sum() + loss**q / LR for loss, pull in zip(losses, pulls, strict=True)
        )
        theta = theta - top / bottom
    result = federated(2, server=partial(QFFL, q=q), local=whole_batch(LR, epochs=2))
    np.testing.assert_allclose(result, theta, **EXACT)


@pytest.mark.parametrize("mu", [0.1, 1.5])
def test_fedprox_equals_numpy(problem, mu):
    """Three local steps, pulled back to the received model in the second and third."""
    theta = problem.theta
    for _ in range(2):
        theta = np.mean(problem.trained(theta, steps=3, proximal=mu), axis=0)
    result = federated(2, local=whole_batch(LR, epochs=3, proximal=mu))
    np.testing.assert_allclose(result, theta, **EXACT)


def test_proximal_gradient_acts_from_the_second_mini_batch_on():
    """At the received model the pull is zero, so one step is the same with and without it; two are not."""
    one = [federated(1, local=whole_batch(LR, epochs=1, proximal=mu)) for mu in (0.0, 1.0)]
    two = [federated(1, local=whole_batch(LR, epochs=2, proximal=mu)) for mu in (0.0, 1.0)]
    np.testing.assert_allclose(one[0], one[1], **EXACT)
    assert np.abs(two[0] - two[1]).max() > 1e-3


def test_proximal_zero_is_fedavg_bit_for_bit():
    """mu = 0 switches FedProx off altogether, mini-batches included."""
    settings = {"batch_size": 3, "epochs": 2, "optimizer": sgd(LR)}
    plain, proximal = (federated(2, local=LocalTraining(**settings, **more)) for more in ({}, {"proximal": 0.0}))
    assert np.array_equal(plain, proximal)


def test_received_loss_is_that_of_the_received_model(problem):
    """What q-FFL weighs by, against numpy; other optimisers do not pay for it."""

    class Losses(Recorder):
        """Keeps what clients report."""

        def on_client_update(self, trainer, federation, update):
            """Received loss and loss of the local steps."""
            self.updates.append((update.client, update.received_loss, update.loss))

    fair, plain = Losses(), Losses()
    run(small_federation(server=QFFL), Blobs(SIZES), 1, [fair])
    run(small_federation(), Blobs(SIZES), 1, [plain])
    for client, received, trained in fair.updates:
        expected = problem.loss(problem.theta, client)
        assert received == pytest.approx(expected, abs=1e-12)
        assert trained == pytest.approx(expected, abs=1e-12)
    assert all(np.isnan(received) for _, received, _ in plain.updates)
