"""Callbacks, loggers and checkpoints with a plain Trainer: nothing but Lightning is needed to use them."""

import csv
import inspect
import json
from functools import partial
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import callbacks
from app.common.errors import UserError
from app.common.files import LIST
from app.common.progress import PROGRESS_LOG
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.module import FederatedModule
from app.federation.submodels import Prefix
from app.models import MLP, DataShape, ScalableNet
from app.result import Measurement
from app.results.attacks.membership import AttackRecord
from app.results.run.fairness import FairnessResult
from callbacks import FairnessRecorder, MembershipInference, RunRecorder, TranscriptRecorder
from datamodules import Digits, Iid

EIGHT = partial(MLP, hidden=[8])
LOCAL = LocalTraining(batch_size=32, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.5))


def eight(shape: DataShape) -> ScalableNet:
    """The same network from a function."""
    return MLP(shape, hidden=[8])


def digits():
    """Four clients."""
    return Digits(partition=Iid(4))


def trainer(folder, *given, rounds=2, **options):
    """A plain trainer."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, **options}
    return Trainer(max_epochs=rounds, accelerator="cpu", default_root_dir=folder, callbacks=list(given), **quiet)


def fitted(folder, *given, rounds=2, options=None, **settings):
    """A federation that a plain trainer has trained."""
    federation = FederatedModule(**{"net": EIGHT, "local": LOCAL, **settings})
    trainer(folder, *given, rounds=rounds, **(options or {})).fit(federation, datamodule=digits())
    return federation


def vector(federation):
    """The server's vector."""
    return federation.space.read(federation.net).clone()


# ---- kinds -----------------------------------------------------------------------------------------------------------

TRAINING = {"on_client_start", "client_loss", "client_penalty", "on_client_end", "withdraws"}
SENDING = {"on_broadcast", "announces", "on_client_update", "on_server_update"}
FINDING = {"results", "on_transcript", "on_round_kept"}
FOREIGN = {"defense": FINDING, "attack": TRAINING, "recorder": TRAINING | SENDING}
"""Hooks by the kind that has no business with them."""


@pytest.mark.parametrize("name", callbacks.__all__)
def test_kinds_are_truthful(name):
    """A callback is of the kind of its folder, and leaves alone the hooks that this kind does not use."""
    kind = getattr(callbacks, name)
    assert kind.kind == {
        "callbacks.defenses": "defense",
        "callbacks.attacks": "attack",
        "callbacks.recorders": "recorder",
        "app.federation": "recorder",  # the transcript's, without which nothing can be attacked
    }.get(kind.__module__.rpartition(".")[0])
    used = {hook for hook, _ in inspect.getmembers(FederatedCallback) if hook in vars(kind)}
    assert not used & FOREIGN[kind.kind]


# ---- order -----------------------------------------------------------------------------------------------------------


class Heard(FederatedCallback):
    """Writes its kind down in every hook of the main thread."""

    book: list

    def note(self, hook):
        """One line."""
        self.book.append((hook, self.kind))

    def setup(self, trainer, pl_module, stage):
        """Lightning's own."""
        self.note("setup")

    def on_round_start(self, trainer, federation, plan):
        """Noted, like all below."""
        self.note("round start")

    def on_broadcast(self, trainer, federation, client, vector):
        """Noted."""
        self.note("broadcast")

    def on_client_update(self, trainer, federation, update):
        """Noted."""
        self.note("update")

    def on_message(self, trainer, federation, message):
        """Noted."""
        self.note("message")

    def on_server_update(self, trainer, federation, aggregate):
        """Noted."""
        self.note("server")

    def on_round_end(self, trainer, federation, metrics, costs):
        """Noted."""
        self.note("round end")

    def on_round_kept(self, federation, transcript, round_):
        """Noted."""
        self.note("kept")

    def results(self, federation):
        """Noted, with a result of its own."""
        self.note("results")
        yield Measurement(self.kind, {"rounds": federation.trainer.current_epoch})

    def on_transcript(self, federation, transcript):
        """Noted."""
        self.note("transcript")

    def on_result(self, trainer, federation, result):
        """Noted."""
        self.note("result")

    def on_run_end(self, trainer, federation):
        """Noted."""
        self.note("run end")


class Defending(Heard):
    """One of three."""


class Attacking(Heard):
    """One of three."""

    kind = "attack"


class Recording(Heard):
    """One of three."""

    kind = "recorder"


@pytest.mark.parametrize("order", permutations([Defending, Attacking, Recording]), ids=lambda order: order[0].__name__)
def test_defenses_come_before_attacks_before_recorders(order, tmp_path, monkeypatch):
    """In every hook, whatever the order given."""
    monkeypatch.setattr(Heard, "book", [], raising=False)
    federation = fitted(tmp_path, *(kind() for kind in order), rounds=1, options={"enable_checkpointing": False})
    heard = {hook: [kind for name, kind in Heard.book if name == hook] for hook, _ in Heard.book}
    hooks = ["setup", "round start", "broadcast", "update", "message", "server", "kept", "round end"]
    assert set(heard) == {*hooks, "results", "result", "transcript", "run end"}
    for hook, kinds in heard.items():
        turns = [kinds[start : start + 3] for start in range(0, len(kinds), 3)]
        assert turns == [["defense", "attack", "recorder"]] * len(turns), hook
    assert len(heard["broadcast"]) == len(heard["message"]) == 3 * 4
    assert [result.label for result in federation.results] == ["defense", "attack", "recorder"]


ORDERS = (
    (RunRecorder, FairnessRecorder, MembershipInference),
    (MembershipInference, FairnessRecorder, RunRecorder),
)
"""Of any two, each is once in front."""


def kept_run(root, order):
    """Folder of a run that attacks itself in the middle and at the end."""
    made = {
        RunRecorder: lambda: RunRecorder(root / "run"),
        FairnessRecorder: FairnessRecorder,
        MembershipInference: lambda: MembershipInference(["yeom"], every=1, calibrate=False, controls="skip"),
    }
    fitted(root, *(made[kind]() for kind in order))
    return root / "run"


def content(path):
    """What must be equal in two runs: all but times, and files that hold nothing else."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tolist() for name in arrays.files}
    if path.suffix == ".json":
        return untimed(json.loads(path.read_text()))
    if path.name == "cost.jsonl":
        return [untimed(json.loads(line)) for line in path.read_text().splitlines()]
    return path.read_bytes()


def untimed(value):
    """Nested data without seconds and their shares."""
    if isinstance(value, dict):
        timed = ("seconds", "defend_share", "channel_share")
        return {key: untimed(item) for key, item in value.items() if not any(word in key for word in timed)}
    return [untimed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_order_of_recorders_and_attacks_does_not_matter(tmp_path):
    """A run recorder in front or behind leaves the same files, with the same content."""
    runs = [kept_run(tmp_path / str(number), order) for number, order in enumerate(ORDERS)]
    files = [sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()) for run in runs]
    assert files[0] == files[1]
    expected = ["config.yaml", "metrics.jsonl", "summary.json", "fairness.json", "attacks/yeom.uploads.json"]
    assert {Path(name) for name in expected} <= set(files[0])
    for name in (file for file in files[0] if file.name not in (LIST, PROGRESS_LOG)):  # in order of time
        first, second = (content(run / name) for run in runs)
        assert first == second, name
    metrics = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert "everyone/accuracy" in metrics[-1], "what one recorder measures, the other one writes"


# ---- results ---------------------------------------------------------------------------------------------------------


def test_an_attack_needs_no_recorder(tmp_path):
    """Its results are in memory, with scores of exactly the audited samples; nothing is left on disk."""
    federation = fitted(tmp_path, MembershipInference(["yeom"]), options={"enable_checkpointing": False})
    assert [type(result) for result in federation.results] == [AttackRecord] * 2
    assert [result.label for result in federation.results] == ["yeom.global", "yeom.uploads"]
    sets = federation.data.membership
    for result in federation.results:
        assert result.numbers["members"] == sum(map(len, sets.members))
        assert result.numbers["nonmembers"] == sum(map(len, sets.nonmembers))
        assert 0.35 < result.numbers["auc"] < 0.65, "two rounds of a tiny network memorise nothing"
    assert list(tmp_path.iterdir()) == []
    assert federation.transcript.rounds == [1, 2]


def test_results_of_a_second_training_replace_those_of_the_first(tmp_path):
    """One federation, two trainers."""
    federation = fitted(tmp_path, FairnessRecorder())
    first = federation.results
    trainer(tmp_path, FairnessRecorder(), rounds=1).fit(federation, datamodule=digits())
    assert [type(result) for result in federation.results] == [FairnessResult]
    assert federation.results[0] is not first[0]
    assert federation.results[0].content["round"] == 1


def test_run_folder_of_a_plain_trainer(tmp_path):
    """The recorder makes it: configuration, metrics and the result, which can be loaded again."""
    recorders = (TranscriptRecorder(tmp_path / "run" / "transcript"), RunRecorder(tmp_path / "run"))
    federation = fitted(
        tmp_path, MembershipInference(["yeom"], targets=["global"], calibrate=False, controls="skip"), *recorders
    )
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["model"]["net"] == {"class_path": "app.models.MLP", "init_args": {"hidden": [8]}}
    assert [attack["class_path"] for attack in config["attacks"].values()] == ["callbacks.MembershipInference"]
    (loaded,), (found,) = AttackRecord.load_all(tmp_path / "run"), federation.results
    assert loaded.numbers == found.numbers
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["attacks"]["attacks/yeom.global/auc"] == found.numbers["auc"]


# ---- loggers and monitors --------------------------------------------------------------------------------------------


def test_loggers_get_one_row_per_round(tmp_path):
    """With everything that the run's folder gets, at the number of the round."""
    logger = CSVLogger(tmp_path, name="csv")
    fitted(tmp_path, RunRecorder(tmp_path / "run"), rounds=3, options={"logger": logger})
    with Path(logger.log_dir, "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    for row, line in zip(rows, lines, strict=True):
        assert {"round", "server/accuracy", "server/loss", "clients/trained_common/mean"} <= set(line)
        assert {name: float(row[name]) for name in line} == line
        assert float(row["cost/clients"]) == 4


@pytest.mark.parametrize("monitor", ["clients/trained_common/mean", "server/accuracy"])
def test_callbacks_of_lightning_find_their_metric(monitor, tmp_path):
    """Early stopping that wants more than there can be ends the run; the checkpoint keeps the best round."""
    stop = EarlyStopping(monitor=monitor, mode="max", min_delta=2.0, patience=2)
    best = ModelCheckpoint(tmp_path, monitor=monitor, mode="max")
    federation = fitted(tmp_path, stop, best, RunRecorder(tmp_path / "run"), rounds=9)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert federation.trainer.current_epoch == len(lines) == 3
    assert float(best.best_model_score) == pytest.approx(max(line[monitor] for line in lines), rel=1e-6)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[EIGHT, eight], ids=["partial", "function"])
def saved(request, tmp_path_factory):
    """A trained federation of two widths, and the checkpoint of a plain ModelCheckpoint."""
    folder = tmp_path_factory.mktemp("saved")
    keeper = ModelCheckpoint(folder)
    settings = {"method": Prefix(), "capacities": [1.0, 0.5, 0.5, 1.0], "seed": 3}
    federation = fitted(folder, keeper, rounds=2, net=request.param, **settings)
    return federation, keeper.best_model_path


def test_a_checkpoint_predicts(saved):
    """Logits of normalised test images, bit for bit."""
    federation, path = saved
    loaded = FederatedModule.load_from_checkpoint(path, trust=True)
    images, _ = federation.data.store.batch(torch.as_tensor(federation.data.common_test), torch.float32)
    with torch.no_grad():
        logits = federation.net.eval()(images)
        assert torch.equal(loaded(images), logits)
    assert logits.shape == (len(images), 10)
    assert not loaded.training


def test_a_checkpoint_brings_its_settings(saved):
    """The federation's, also those of dataclasses and partial functions; those given take their place."""
    federation, path = saved
    loaded = FederatedModule.load_from_checkpoint(path, trust=True, participation=0.5)
    assert (loaded.seed, loaded.participation) == (3, 0.5)
    assert loaded.capacities == federation.capacities
    assert type(loaded.method) is Prefix
    assert (loaded.local.batch_size, loaded.local.epochs) == (32, 1)
    assert loaded.local.learning_rates(1) == [0.1]
    assert loaded.evaluation == federation.evaluation
    optimizer = loaded.local.optimizer(loaded.net.parameters())
    assert (type(optimizer), optimizer.defaults["momentum"]) == (torch.optim.SGD, 0.5)


def test_a_checkpoint_can_be_validated(saved, tmp_path):
    """With a trainer of its own, to the same accuracy as in the last round."""
    federation, path = saved
    (scores,) = trainer(tmp_path).validate(FederatedModule.load_from_checkpoint(path, trust=True), datamodule=digits())
    server = federation.report.server
    assert round(scores["server/accuracy"] * server.total, 3) == server.correct
    assert scores["server/loss"] == pytest.approx(server.mean_loss, rel=1e-6)


class Starts(FederatedCallback):
    """Keeps the server's vector before every round."""

    kind = "recorder"

    def __init__(self):
        self.vectors = []

    def on_round_start(self, trainer, federation, plan):
        """Kept."""
        self.vectors.append(federation.theta.clone())


def test_a_checkpoint_trains_on(saved, tmp_path):
    """From its weights, away from them, and to a better model."""
    federation, path = saved
    loaded, starts = FederatedModule.load_from_checkpoint(path, trust=True), Starts()
    trainer(tmp_path, starts, rounds=2).fit(loaded, datamodule=digits())
    assert torch.equal(starts.vectors[0], vector(federation))
    assert len(starts.vectors) == 2
    assert not torch.equal(starts.vectors[1], starts.vectors[0])
    assert loaded.report.server.mean_loss < federation.report.server.mean_loss


class Heads(FederatedCallback):
    """Keeps the head that every client starts from."""

    kind = "recorder"

    def __init__(self):
        self.seen = {}

    def on_client_start(self, trainer, federation, client):
        """Weights, then biases."""
        head = client.net.layers.classifier
        self.seen[client.client] = torch.cat([head.weight.flatten(), head.bias]).detach().clone()


def test_a_checkpoint_keeps_private_parts(tmp_path):
    """Clients' heads are there after loading, and are what they go on with."""
    keeper, starts = ModelCheckpoint(tmp_path), Heads()
    federation = fitted(tmp_path, keeper, rounds=2, personal=["*classifier*"])
    loaded = FederatedModule.load_from_checkpoint(keeper.best_model_path)
    assert loaded.personal.clients == (0, 1, 2, 3)
    heads = {client: federation.personal.of(client) for client in range(4)}
    assert all(torch.equal(loaded.personal.of(client), head) for client, head in heads.items())
    assert len({tuple(head.tolist()) for head in heads.values()}) == 4
    trainer(tmp_path, starts, rounds=1).fit(loaded, datamodule=digits())
    assert all(torch.equal(starts.seen[client], head) for client, head in heads.items())


def test_a_network_that_cannot_be_imported_is_given_anew(tmp_path):
    """A function of this test is named in the checkpoint, and found nowhere."""
    keeper = ModelCheckpoint(tmp_path)
    federation = fitted(tmp_path, keeper, net=lambda shape: MLP(shape, hidden=[8]))
    with pytest.raises(UserError, match="lambda"):
        FederatedModule.load_from_checkpoint(keeper.best_model_path)
    loaded = FederatedModule.load_from_checkpoint(keeper.best_model_path, net=EIGHT)
    assert torch.equal(vector(loaded), vector(federation))


def test_a_checkpoint_of_another_program_is_refused(tmp_path):
    """With a reason and a remedy."""
    torch.save({"state_dict": {}}, tmp_path / "a.ckpt")
    with pytest.raises(UserError, match="says nothing about its federation"):
        FederatedModule.load_from_checkpoint(tmp_path / "a.ckpt")
