"""A stranger's run, checkpoint or model runs no code of the stranger's, however its configuration names it."""

import sys

import pytest
import torch
import yaml
from run_kit import TINY, exit_code, fast_runs, no_run_name, parsed  # noqa: F401

from app import FederatedModule, load_run
from app.commands.attack import _tracking
from app.common.errors import UserError
from app.common.trust import refuse_foreign
from app.export import FORMAT, load_model
from app.models.base import DataShape

SHAPE = DataShape(1, 8, 8, 10)

EVIL = """
from pathlib import Path

from app.federation.hooks import FederatedCallback
from app.models import MLP

Path(__file__).with_name("executed").touch()


class Net(MLP):
    pass


class Callback(FederatedCallback):
    pass


def function(*args):
    pass
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A module of the stranger's that can be imported; the file that it makes when it is."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "executed"
    sys.modules.pop("evil", None)


@pytest.fixture(scope="module")
def config():
    """The configuration of an honest run."""
    return parsed(*TINY)


def folder_of(tmp_path, config):
    """A finished run with this configuration, as strangers can make one without training."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").write_text('{"final": {}}')
    return folder


def changed(config, keys, value):
    """The configuration with one setting replaced."""
    first, *rest = keys
    return {**config, first: changed(config.get(first) or {}, rest, value) if rest else value}


ATTACKS = {"class_path": "callbacks.MembershipInference", "init_args": {"attacks": ["evil.Attack"]}}
ATTEMPTS = {
    "class": (["model", "net"], {"class_path": "evil.Net", "init_args": {}}),
    "function": (["model", "net"], {"class_path": "evil.function"}),
    "text": (["model", "net"], "evil.Net"),
    "YAML in a text": (["model", "net"], "{class_path: evil.Net}"),
    "YAML in a text in a text": (["model", "net"], "'{class_path: evil.Net}'"),
    "callable": (["model", "local", "optimizer"], "evil.function"),
    "callback": (["trainer", "callbacks"], [{"class_path": "evil.Callback"}]),
    "defense": (["defenses", "d"], {"class_path": "evil.Callback"}),
    "attack by name": (["attacks", "a"], ATTACKS),
    "dotted key": (["model.net.class_path"], "evil.Net"),
    "gives way": (["data?"], {"class_path?": "evil.Net"}),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_configuration_imports_nothing_foreign(attempt, config, mark, tmp_path):
    """Refused before anything of the stranger's is imported; the message names it and the way out."""
    folder = folder_of(tmp_path, changed(config, *ATTEMPTS[attempt]))
    with pytest.raises(UserError) as error:
        load_run(folder).rebuilt()
    assert not mark.exists()
    assert "names evil." in str(error.value)
    assert "--trust" in str(error.value)


def test_a_configuration_reads_no_further_file(config, mark, tmp_path, monkeypatch):
    """The parser would take a text in the place of a class for a file with settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.yaml").write_text("class_path: evil.Net")
    with pytest.raises(UserError, match=r"names the file net\.yaml"):
        load_run(folder_of(tmp_path, changed(config, ["model", "net"], "net.yaml"))).rebuilt()
    assert not mark.exists()


def test_trust_runs_it(config, mark, tmp_path):
    """The trap is armed; for a class of one's own, `trust` is the way to use it."""
    folder = folder_of(tmp_path, changed(config, *ATTEMPTS["class"]))
    assert type(load_run(folder, trust=True).rebuilt().federation.make_net(SHAPE)).__name__ == "Net"
    assert mark.exists()


def test_an_honest_run_needs_no_trust(config, tmp_path):
    """Nor does reading numbers of any run."""
    assert load_run(folder_of(tmp_path, config)).rebuilt().config["data"]["class_path"] == "datamodules.Digits"


INDIRECT = {
    "through our module": "app.federation.transcript.Path",
    "our function": "app.federation.module.derive_key",
    "our command": "app.cli.main",
    "our program": "app.__main__.main",
    "system": "os.system",
    "a part of torch": "torch.hub.load",
    "no module": "Net",
}


@pytest.mark.parametrize("path", INDIRECT.values(), ids=INDIRECT)
def test_only_shipped_classes_may_be_named(path):
    """No functions, and no classes of others that a shipped module happens to import."""
    with pytest.raises(UserError, match="does not come with this program"):
        refuse_foreign({"model": {"net": {"class_path": path}}}, "it")


def test_names_that_are_no_classes_pass():
    """Parameters, projects, formats and files of data look like paths."""
    plain = {"model": {"personal": ["os.weight", "head.weight"]}, "project": "torch.hub", "data": {"root": __file__}}
    refuse_foreign(plain | {"trainer": {"precision": "16-mixed", "max_time": "00:01:00:00"}}, "it")


@pytest.mark.parametrize("value", [False, "false", 0])
def test_pickles_of_data_stay_closed(value, tmp_path):
    """CIFAR's files are pickles: a stranger's configuration cannot switch their check off and name other files."""
    data = {"class_path": "datamodules.CIFAR10", "init_args": {"root": str(tmp_path), "verify": value}}
    with pytest.raises(UserError, match="verify"):
        refuse_foreign({"data": data}, "it")


def test_a_checkpoint_imports_nothing_foreign(mark, tmp_path):
    """Its description of the federation is data of whoever sent it."""
    federation = {"model": {"net": {"class_path": "evil.Net", "init_args": {}}}, "shape": {}}
    torch.save({"federation": federation, "state_dict": {}, "personal": {}}, tmp_path / "round-00001.ckpt")
    with pytest.raises(UserError, match=r"names evil\.Net"):
        FederatedModule.load_from_checkpoint(tmp_path / "round-00001.ckpt")
    assert not mark.exists()


def test_a_model_imports_nothing_foreign(mark, tmp_path):
    """Nor does a file of an exported model."""
    net = {"class_path": "evil.Net", "init_args": {}}
    torch.save({"format": FORMAT, "net": net, "shape": {}, "rate": 1.0, "state_dict": {}}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"names evil\.Net"):
        load_model(tmp_path / "model.pt")
    assert not mark.exists()


def test_commands_take_the_flag(config, mark, tmp_path, capsys):
    """Without it, the command ends with the error; with it, the code runs."""
    folder = folder_of(tmp_path, changed(config, *ATTEMPTS["class"]))
    assert exit_code("export", str(folder), str(tmp_path / "model.pt")) == 2
    assert "--trust" in capsys.readouterr().err
    assert not mark.exists()
    exit_code("export", str(folder), str(tmp_path / "model.pt"), "--trust")
    assert mark.exists()


@pytest.mark.parametrize(("trust", "mode"), [(False, "offline"), (True, "online")])
def test_a_folder_does_not_decide_where_results_are_uploaded(trust, mode):
    """A stranger's run names the stranger's account: attacking it must not send results there."""
    assert _tracking({"tracking": "online", "entity": "stranger"}, trust)["tracking"] == mode
