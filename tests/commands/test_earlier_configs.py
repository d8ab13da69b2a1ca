"""Configurations that earlier versions saved: their class paths are translated, and the runs repeat."""

import importlib

import pytest
import yaml
from run_kit import exit_code, parsed, records

from app.common.renamed import CLASSES, MODULES, current, current_path

EARLIER = """
seed_everything: 3
trainer: {max_epochs: 1, accelerator: cpu, devices: 1}
tracking: disabled
model:
  net: {class_path: app.models.MLP, init_args: {hidden: [8]}}
  method:
    class_path: app.federation.submodels.Integration
    init_args: {grouping: groups, dynamics: fixed, policy: submatrix}
  capacities: {rates: [1.0, 0.5, 0.5, 0.5]}
  server: {class_path: app.federation.aggregation.FedAvg}
data:
  class_path: datamodules.Digits
  init_args:
    partition: {class_path: datamodules.Iid, init_args: {clients: 4}}
    holdout: {reference: 0.1}
defenses:
  memdefense: {class_path: callbacks.memdefense.MemDefense, init_args: {gamma: 0.9}}
  stop: {class_path: callbacks.stop_early.StopEarly}
attacks:
  reconstruction:
    class_path: callbacks.image_reconstruction.ImageReconstruction
    init_args:
      attacks:
      - class_path: app.attacks.reconstruction.released_model.ModelInversion
        init_args: {steps: 2}
"""
"""As the version before the folders of today wrote it, without the options that have defaults."""


@pytest.fixture
def earlier(tmp_path):
    """Path of the saved configuration."""
    path = tmp_path / "config.yaml"
    path.write_text(EARLIER)
    return str(path)


def test_class_paths_are_those_of_today(earlier):
    """Everything else is as it was saved."""
    config = parsed("--config", earlier)
    assert config["model"]["method"]["class_path"] == "app.federation.submodels.ChannelSubset"
    assert config["model"]["method"]["init_args"]["grouping"] == "groups"
    assert config["defenses"]["memdefense"]["class_path"] == "callbacks.MemDefense"
    assert config["defenses"]["memdefense"]["init_args"]["gamma"] == 0.9
    assert config["defenses"]["stop"]["class_path"] == "callbacks.LocalEarlyStopping"
    [inversion] = config["attacks"]["reconstruction"]["init_args"]["attacks"]
    assert inversion["class_path"] == "app.attacks.reconstruction.inversion.released_model.ModelInversion"


@pytest.mark.usefixtures("no_figures")
def test_an_earlier_configuration_runs(earlier, tmp_path):
    """One round with its defenses, and its attack at the end; the saved configuration has the paths of today."""
    assert exit_code("fit", "--config", earlier, "--run.root", str(tmp_path), "--run.name", "again") == 0
    assert len(records(tmp_path / "again")) == 1
    assert list((tmp_path / "again" / "attacks" / "reconstruction").glob("*.json"))
    config = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    assert current(config) == config


@pytest.mark.parametrize("path", [*(f"{module}.Some" for module in MODULES), *CLASSES])
def test_translations_lead_somewhere(path):
    """The modules exist, and so do the classes that were renamed; a path of today stays as it is."""
    today = current_path(path)
    module, _, name = today.rpartition(".")
    assert name == "Some" or hasattr(importlib.import_module(module), name)
    assert importlib.import_module(module)
    assert current_path(today) == today
