"""Short runs of the command line on the embedded digits, and callbacks that watch or disturb them."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.figure import Figure

from app.cli import main
from app.commands.fit import fit
from app.configuration import complete_config, expand, run_parser
from app.federation.channels.base import Message, PlainChannel, Update
from app.federation.hooks import FederatedCallback
from app.results.report.drawing import RenderedFigure
from app.results.run.folder import NAME_VARIABLE

TINY = (
    *("--tracking", "disabled", "--trainer.accelerator", "cpu", "--trainer.devices", "1"),
    *("--data.partition", "Iid", "--data.partition.clients", "4"),
    *("--model.net", "MLP", "--model.net.hidden", "[8]", "--model.workers", "2", "--model.executor", "sequence"),
)
"""Four clients with a net of 610 coordinates: a round takes a few hundredths of a second.

Clients are trained one after the other, since clients that are trained in one call take longer where nets are tiny."""

UNEQUAL = (
    *("--config", "fedavgm", "--model.capacities", "[1.0, 0.5, 0.5, 0.5, 1.0, 0.5]"),
    *("--data.partition.clients", "6", "--model.participation", "0.7"),
)
"""HeteroFL with momentum on the server and four of six clients in a round."""


@pytest.fixture(scope="session", autouse=True)
def fast_runs():
    """One intra-op thread; no arguments of pytest in sight."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["rampart"])
        yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_run_name(monkeypatch):
    """No run name left over from another test."""
    monkeypatch.setenv(NAME_VARIABLE, "")  # so that whatever a run puts there is taken back
    monkeypatch.delenv(NAME_VARIABLE)


def leave_out_figures(patch: pytest.MonkeyPatch) -> None:
    """Drawing takes half the time of a tiny run."""
    patch.setattr("callbacks.recorders.run_recorder.draw_accuracy", lambda *_: None)
    patch.setattr("callbacks.recorders.run_recorder.draw_budget", lambda *_: None)
    patch.setattr("app.results.run.fairness.FairnessResult.draw", lambda *_: ())
    patch.setattr("datamodules.base.FederatedDataModule.write_table", lambda *_: None)
    for name in ("draw_roc", "draw_leakage", "draw_clients"):
        patch.setattr(f"app.results.attacks.membership.{name}", lambda *_: Figure())
    patch.setattr("app.results.report.report.render_figure", lambda figure: RenderedFigure(figure, "<svg/>", b""))


@pytest.fixture
def no_figures(monkeypatch):
    """Runs without figures."""
    leave_out_figures(monkeypatch)


def command(root: Path, name: str, *options: str, rounds: int = 3) -> list[str]:
    """Arguments of `fit` for a tiny run."""
    return [*TINY, "--run.root", str(root), "--run.name", name, "--trainer.max_epochs", str(rounds), *options]


def train(root: Path, name: str, *options: str, rounds: int = 3) -> Path:
    """A tiny run; returns its folder."""
    assert fit(command(root, name, *options, rounds=rounds)) == 0
    return root / name


def exit_code(*arguments: str) -> int:
    """Exit code of the program."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def parsed(*arguments: str) -> dict[str, Any]:
    """The complete configuration behind a command line; nothing is built."""
    parser = run_parser()
    return complete_config(parser, parser.parse_args(expand(arguments)))


def records(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Records of a JSON-lines file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def last_checkpoint(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint holds."""
    return torch.load(max(folder.glob("checkpoints/round-*.ckpt")), weights_only=True)


def same(left: Any, right: Any) -> bool:
    """Whether nested data are equal, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def assert_same_end(left: Path, right: Path) -> None:
    """Metrics, clients, transcript, server and optimiser state of two runs are bit for bit the same."""
    transcripts = [sorted(path.relative_to(run) for path in run.glob("transcript/**/*.npz")) for run in (left, right)]
    assert transcripts[0] == transcripts[1]
    for name in ("metrics.jsonl", "clients.csv", "plan.json", *transcripts[0]):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    ends = [last_checkpoint(run) for run in (left, right)]
    for part in ("epoch", "state_dict", "optimizer_states", "personal"):
        assert same(ends[0][part], ends[1][part]), part


class Interrupter(FederatedCallback):
    """Calls `act` when update number `when[1]` of round `when[0]` is ready, both counted from 1."""

    when: ClassVar[tuple[int, int] | None] = None
    act: ClassVar[Any] = None

    def on_round_start(self, trainer, federation, plan):
        """Nobody was heard yet."""
        self.heard = 0

    def on_client_update(self, trainer, federation, update):
        """One more client."""
        self.heard += 1
        if self.when == (update.round + 1, self.heard):
            type(self).act()


INTERRUPTIBLE = ("--defenses.interrupter", "run_kit.Interrupter")


class Scale(FederatedCallback):
    """Multiplies every update."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def on_client_update(self, trainer, federation, update):
        """All coordinates."""
        update.vector *= self.factor


class Shift(FederatedCallback):
    """Adds a constant to every update."""

    def __init__(self, by: float = 0.0, note: str = "") -> None:
        self.by = by
        self.note = note

    def on_client_update(self, trainer, federation, update):
        """All coordinates."""
        update.vector += self.by


class Witness(FederatedCallback):
    """Keeps a copy of every message of the run."""

    kind = "recorder"
    messages: ClassVar[list[Message]] = []

    def on_message(self, trainer, federation, message):
        """As the server gets it."""
        payload = None if message.payload is None else message.payload.clone()
        copy = Message(message.client, message.round, message.index.clone(), payload, message.form, message.size)
        self.messages.append(copy)


class _SealedChannel(PlainChannel):
    """Adds up like the plain channel, but what the server sees of a single update is unreadable."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def send(self, update: Update) -> Message:
        """Twice the bytes, no payload."""
        seen = super().send(update)
        return Message(seen.client, seen.round, seen.index, None, self.form, 2 * seen.size)


class Seal(FederatedCallback):
    """Replaces the channel by one that hides single updates."""

    def __init__(self, form: str = "ciphertext") -> None:
        self.form = form

    def setup(self, trainer, pl_module, stage):
        """Before the first round."""
        pl_module.channel = _SealedChannel(self.form)
