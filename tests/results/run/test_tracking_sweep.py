"""Sweeps of Weights & Biases: the shipped one is started as an agent starts it, without a network."""

import pytest
import wandb
import yaml
from run_kit import records
from tracking_kit import no_wandb_settings, offline_run  # noqa: F401
from wandb.sdk.lib.config_util import save_config_file_from_dict

from app.commands.fit import fit
from app.recipes import SWEEPS, shipped_comparisons, shipped_recipes
from app.results.run.tracking import RUN_ID

SWEEP = SWEEPS / "heterofl-memdefense.yaml"
TINY = (
    *("--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.max_epochs=2", "--model.workers=2"),
    *("--model.net=MLP", "--model.net.hidden=[8]", "--run.name=a"),
)


@pytest.fixture
def fresh_process(no_wandb_settings):  # noqa: F811
    """W&B reads the variables again, as in a new process, and once more after the test."""
    wandb.teardown()
    yield
    wandb.teardown()


def agent_command(sweep, choice):
    """The command line of `wandb agent`: macros of the command are replaced, parameters are `--name=value`."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # which takes seconds

    variables = create_sweep_command_args({"args": choice}) | {"program": [sweep["program"]]}
    parts = []
    for part in create_sweep_command(list(sweep["command"])):
        parts += variables[part[2:-1]] if part.startswith("${") else [part]
    return parts


@pytest.mark.usefixtures("fresh_process", "no_figures")
def test_an_agent_can_run_it(tmp_path, monkeypatch):
    """The parameters arrive, and the run has the agent's id, project and sweep, and the metric that it waits for."""
    sweep = yaml.safe_load(SWEEP.read_text())
    choice = {name: {"value": parameter["values"][-1]} for name, parameter in sweep["parameters"].items()}
    program, *arguments = agent_command(sweep, choice)
    assert program == "rampart"
    assert arguments[0] == "fit"
    assert arguments[-2:] == ["--defenses.memdefense.gamma=0.9", "--model.local.optimizer.lr=0.003"]
    path = tmp_path / "config-abcd1234.yaml"
    save_config_file_from_dict(str(path), choice)
    agent = {"SWEEP_ID": "s1", "RUN_ID": "abcd1234", "PROJECT": "swept", "ENTITY": "team", "SWEEP_PARAM_PATH": path}
    for name, value in {**agent, "MODE": "offline"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    assert fit([*arguments[1:], *TINY, f"--run.root={tmp_path}"]) == 0
    folder = tmp_path / "a"
    run, metric = offline_run(folder), sweep["metric"]["name"]
    assert (run.run.run_id, run.run.sweep_id) == ("abcd1234", "s1")
    assert (run.run.project, run.run.entity) == ("swept", "team")
    assert (folder / RUN_ID).read_text() == "abcd1234"
    assert run.config["defenses"]["memdefense"]["init_args"]["gamma"] == 0.9
    assert run.config["model"]["local"]["optimizer"]["init_args"]["lr"] == 0.003
    assert run.config["model"]["method"]["class_path"].endswith("ChannelSubset")
    assert run.summary[metric] == run.rounds[-1][metric] == records(folder)[-1][metric]


def test_it_is_no_recipe():
    """`rampart list` and `--config` know nothing of it, and it says what it is for."""
    names = {known.path for known in (*shipped_recipes(), *shipped_comparisons())}
    assert SWEEP.is_file()
    assert SWEEP not in names
    assert SWEEP.stem not in {path.stem for path in names}
    assert SWEEP.read_text().startswith("# A sweep for `wandb sweep`")
