"""All methods that cut the network, on the embedded digits: every one learns, and they rank as the papers found."""

from statistics import mean

import pytest

from app.configuration import expand, run_parser
from app.run import run_of

METHODS = (
    *("heterofl", "ofr", "osm", "osr", "mapp-fl", "mapp-fl-r", "gsr", "ufr", "fdropout"),
    *("fedrolex", "fjord", "fjord-distilled", "heterofl-levels", "fdropout-independent", "mapp-fl-r-independent"),
)
ROUNDS = "4"
FAST = (
    *("--model.local.batch_size", "48"),
    *("--model.local.optimizer", "torch.optim.Adam", "--model.local.optimizer.lr", "4e-3"),
)
"""A third of the default's steps, each four times as large."""


@pytest.fixture(scope="module")
def results():
    """Report on the last round of every method, same data, same seed."""
    return {method: last_round(method) for method in METHODS}


def last_round(method):
    """What the demo reports at the end, with this method over it."""
    options = ["--trainer.max_epochs", ROUNDS, "--model.evaluation.every", ROUNDS, "--tracking", "disabled"]
    where = ["--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.check_val_every_n_epoch", ROUNDS]
    parser = run_parser()
    config = parser.parse_args(expand(["--config", "demo", "--config", method, *options, *where, *FAST]))
    return run_of(parser, config, "finished").fit().federation.report


def received(results, method):
    """Mean accuracy of the models that clients received, on the common test set."""
    return mean(client.received_common for client in results[method].clients)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_server_learns(results, method):
    """Chance is 10 %."""
    assert results[method].server.accuracy > 0.7


@pytest.mark.slow
def test_clients_rank_as_published(results):
    """Fixed sets serve clients better than resampled ones, and one group better than unique sets (MaPP-FL, Table 5)."""
    for fixed, resampled in (("ofr", "osr"), ("heterofl", "osm"), ("mapp-fl-r", "gsr"), ("ufr", "fdropout")):
        assert received(results, fixed) > received(results, resampled)
    assert min(received(results, method) for method in ("heterofl", "ofr")) > received(results, "ufr")


@pytest.mark.slow
def test_layers_must_agree_on_channels(results):
    """Drawing inputs apart from outputs costs clients accuracy (MaPP-FL, Table 6)."""
    for method in ("fdropout", "mapp-fl-r"):
        assert received(results, method) > received(results, f"{method}-independent")
