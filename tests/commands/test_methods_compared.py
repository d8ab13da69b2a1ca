"""All methods that cut the network, on the embedded digits: every one learns, and they rank as the papers found."""

import json

import pytest

from app.cli import main

METHODS = (
    *("heterofl", "ofr", "osm", "osr", "mapp-fl", "mapp-fl-r", "gsr", "ufr", "fdropout"),
    *("fedrolex", "fjord", "fjord-distilled", "heterofl-levels", "fdropout-independent", "mapp-fl-r-independent"),
)
ROUNDS = "6"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Final metrics of every method, same data, same seed."""
    root, final = tmp_path_factory.mktemp("runs"), {}
    for method in METHODS:
        options = ["--config", "demo", "--config", method, "--trainer.max_epochs", ROUNDS, "--transcript.last", "0"]
        where = ["--run.root", str(root), "--run.name", method, "--tracking", "disabled"]
        quiet = ["--trainer.enable_progress_bar", "false", "--model.evaluation.every", ROUNDS]
        device = ["--trainer.accelerator", "cpu", "--trainer.devices", "1"]
        with pytest.raises(SystemExit) as end:
            main(["fit", *options, *where, *quiet, *device])
        assert end.value.code == 0, method
        final[method] = json.loads((root / method / "summary.json").read_text())["final"]
    return final


def received(results, method):
    """Mean accuracy of the models that clients received, on the common test set."""
    return results[method]["clients/received_common/mean"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_server_learns(results, method):
    """Chance is 10 %."""
    assert results[method]["server/accuracy"] > 0.7


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
