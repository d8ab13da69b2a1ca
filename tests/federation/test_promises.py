"""What a run says beside its budget, what loggers do not get, and when epsilon is nominal."""

import warnings

import pytest
from federation_kit import TINY_MLP, Blobs, make_trainer, sgd, small_federation
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger

from app.federation.local_training import LocalTraining
from app.federation.promises import statements, withheld
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.tripwire import Tripwire

LOCAL = LocalTraining(batch_size=4, optimizer=sgd(0.2))
PRIVATE = {"clients/loss", "clients/dropped", "dp_fedavg/clipped", "dp_fedavg/noise_to_change"}


class Abroad(Logger):
    """A logger that sends everything away."""

    name, version = "abroad", "1"

    def __init__(self):
        super().__init__()
        self.steps = []

    def log_metrics(self, metrics, step=None):
        """Keep it."""
        self.steps.append(dict(metrics))

    def log_hyperparams(self, *arguments, **settings):
        """Nothing."""


def fitted(*callbacks, data=None):
    """A federation of one round, the logger's step, and the warnings of the run."""
    logger, federation = Abroad(), small_federation(TINY_MLP, local=LOCAL)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = make_trainer(1, callbacks=callbacks, logger=logger)
        trainer.fit(federation, datamodule=data or Blobs())
    [step] = [step for step in logger.steps if "round" in step]
    return federation, step, [str(one.message) for one in said]


def test_a_promised_budget_keeps_unnoised_numbers_at_home():
    """Losses, drop-outs and what the clipping saw; the server's evaluation on the common test set goes out."""
    _, plain, said = fitted()
    assert {"clients/loss", "clients/dropped", "server/accuracy"} <= set(plain)
    assert not any("budget is promised" in line for line in said)
    federation, private, said = fitted(DPFedAvg(noise=1.0))
    assert not PRIVATE & set(private)
    assert {"server/accuracy", "dp_fedavg/epsilon", "dp_fedavg/noise_of_thinnest_cell", "cost/bytes/up"} <= set(private)
    [notice] = [line for line in said if "budget is promised" in line]
    assert all(name in notice for name in PRIVATE)
    assert set(withheld(federation)) > PRIVATE


@pytest.mark.parametrize(
    ("defense", "promised"),
    [(DPSGD(noise=1.0), True), (NbAFL(delta=1e-3, sensitivity="worst-case"), True), (NbAFL(delta=1e-3), False)],
    ids=["dp-sgd", "worst-case", "nominal"],
)
def test_which_defenses_promise_a_budget(defense, promised):
    """A nominal epsilon promises nothing, so nothing is withheld."""
    _, step, _ = fitted(defense)
    assert ("clients/loss" not in step) == promised


class OwnPictures(Blobs):
    """Normalised by its own training images."""

    own_statistics = True


def test_what_is_released_beside_epsilon_is_listed():
    """In plain words, and in the record of the run."""
    federation, *_ = fitted(DPFedAvg(noise=1.0), data=OwnPictures())
    [statement] = statements(federation)
    listed = " / ".join(statement.record()["beside"])
    for words in ("training loss", "clipped", "norm of the noise", "own files only", "mean and standard deviation"):
        assert words in listed, words
    assert "evaluation by the experimenter" in listed
    federation, *_ = fitted(DPFedAvg(noise=1.0))
    assert not any("standard deviation" in words for words in statements(federation)[0].beside)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Tripwire(), "whether a client trains is decided by looking at its private data"),
        (EarlyStopping("clients/loss"), "when the run ends is decided by looking at private data"),
    ],
    ids=["refusals", "early stopping"],
)
@pytest.mark.parametrize(
    "defense", [lambda: DPSGD(noise=2.0), lambda: NbAFL(5.0, 1e-3, sensitivity="worst-case")], ids=["dp-sgd", "nbafl"]
)
def test_decisions_by_private_data_make_epsilon_nominal(defense, other, reason):
    """Epsilon does not count what they tell."""
    federation, _, said = fitted(defense(), other)
    [statement] = statements(federation)
    assert statement.nominal
    assert not statement.meaningful
    assert any(reason in note for note in statement.notes)
    assert any(reason in line for line in said)


def test_early_stopping_by_the_common_test_set_is_public():
    """And so are checks that do not look at the client's samples."""
    federation, *_ = fitted(DPSGD(noise=2.0), EarlyStopping("server/accuracy"), Tripwire(gradient_suppression=None))
    assert not statements(federation)[0].nominal
