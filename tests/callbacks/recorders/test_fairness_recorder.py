"""Every client of a federation is evaluated when it should be, with the model it would use, and the run tells."""

import csv
import json
import shutil
from functools import partial

import pytest
import torch
from federation_kit import LINEAR, TINY_MLP, Blobs, make_trainer, run, small_federation, whole_batch
from lightning.pytorch import Callback
from run_kit import INTERRUPTIBLE, Interrupter, command, records, train

from app.commands.fit import fit
from app.federation.all_clients import LocalScore
from app.federation.evaluation import Evaluation, Score
from app.results.run.folder import RunFolder
from callbacks.recorders.fairness import FairnessRecorder, _accuracies
from callbacks.recorders.run_recorder import RunRecorder

SIZES = (30, 40, 50, 60, 70)
KEYS = {"everyone/accuracy", "everyone/worst", "everyone/variance"}
CONTROLS = {"everyone/another", "everyone/mean_choice", "everyone/no_choice"}


class Measurements(Callback):
    """Keeps what the hooks measured in every round; stands where the recorder of the run does."""

    def __init__(self):
        self.rounds = []

    def on_train_epoch_end(self, trainer, pl_module):
        """The recorder before it has measured."""
        self.rounds.append(pl_module.hooks.measurements())


def measured(data=None, rounds=4, callbacks=(), net=LINEAR, everyone=0, fine_tune=False, **settings):
    """Measurements of every round, the recorder, and the federation as it ended."""
    measurements, recorder = Measurements(), FairnessRecorder()
    settings.setdefault("evaluation", Evaluation(clients=False, everyone=everyone, fine_tune=fine_tune))
    federation = small_federation(net, **settings)
    data = data if data is not None else Blobs(SIZES, nonmembers=0.4)
    run(federation, data, rounds, callbacks=[*callbacks, recorder, measurements])
    return measurements.rounds, recorder, federation


def on_own_tests(federation, vector_of):
    """Accuracy of every client, worked out with the network itself."""
    data, found = federation.data, []
    for client in range(data.clients):
        federation.space.write(federation.net, vector_of(client))
        images, labels = data.store.batch(data.test_indices(client), torch.float64)
        with torch.no_grad():
            found.append(float((federation.net(images).argmax(1) == labels).double().mean()))
    return found


def test_everybody_is_measured_with_the_final_model():
    """One in five trains, yet the mean is that of all five with the server's last model."""
    measurements, _, federation = measured(participation=0.2)
    theta = federation.space.read(federation.net).clone()
    own = on_own_tests(federation, lambda client: theta)
    assert measurements[:3] == [{}, {}, {}]
    assert set(measurements[3]) == KEYS
    assert measurements[3]["everyone/accuracy"] == pytest.approx(sum(own) / 5, abs=1e-12)
    assert measurements[3]["everyone/worst"] == min(own)
    mean = sum(own) / 5
    assert measurements[3]["everyone/variance"] == pytest.approx(sum((100 * (one - mean)) ** 2 for one in own) / 5)


@pytest.mark.parametrize(("every", "due"), [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (7, [5])])
def test_measured_when_due(every, due):
    """Every so many rounds and in the last one; other rounds tell nothing, not the numbers of an earlier one."""
    measurements, _, _ = measured(rounds=5, everyone=every)
    assert [number for number, numbers in enumerate(measurements, start=1) if numbers] == due
    assert all(set(numbers) == KEYS for numbers in measurements if numbers)


def test_watching_changes_nothing():
    """The server's model is bit for bit that of a run without the recorder, fine-tuning and swapping included."""
    settings = {"net": partial(TINY_MLP, dropout=0.3), "personal": ["*classifier*"]}
    _, _, watched = measured(everyone=1, fine_tune=True, **settings)
    alone = small_federation(**settings)
    assert torch.equal(run(alone, Blobs(SIZES, nonmembers=0.4), 4), watched.space.read(watched.net))
    assert all(torch.equal(alone.personal.of(client), watched.personal.of(client)) for client in range(5))


def test_controls_of_local_heads():
    """Own, another's, mean and none are what the network gives with these values, in the last round only."""
    measurements, recorder, federation = measured(
        net=TINY_MLP, everyone=2, personal=["*classifier*"], local=whole_batch(epochs=5)
    )
    assert set(measurements[1]) == KEYS
    assert set(measurements[3]) == KEYS | CONTROLS
    theta, personal = federation.space.read(federation.net).clone(), federation.personal
    assert personal.clients == (0, 1, 2, 3, 4)

    def with_head(values):
        vector = theta.clone()
        vector[personal.coordinates] = values.to(vector)
        return vector

    mean = torch.stack([personal.of(client) for client in range(5)]).mean(0)
    last = recorder._last.accuracies
    assert list(last["own"]) == on_own_tests(federation, lambda client: with_head(personal.of(client)))
    assert list(last["mean"]) == on_own_tests(federation, lambda client: with_head(mean))
    assert list(last["none"]) == on_own_tests(federation, lambda client: theta)
    assert measurements[3]["everyone/accuracy"] == pytest.approx(sum(last["own"]) / 5)
    assert measurements[3]["everyone/another"] == pytest.approx(sum(last["another"]) / 5)
    assert measurements[3]["everyone/mean_choice"] == pytest.approx(sum(last["mean"]) / 5)
    assert measurements[3]["everyone/no_choice"] == pytest.approx(sum(last["none"]) / 5)


def test_heads_that_never_move_are_not_personal():
    """With a learning rate of 0 every head is the initial one: swapping costs nothing, and the verdict says so."""
    _, recorder, _ = measured(net=TINY_MLP, personal=["*classifier*"], local=whole_batch(lr=0.0))
    last = recorder._last
    assert last.accuracies["own"] == last.accuracies["another"] == last.accuracies["none"]
    assert last.swap.clients == 5
    assert last.swap.personal is False


def test_clients_that_never_trained_hold_nothing():
    """One client of five has trained: it alone holds a private part, and nothing can be said about swapping."""
    _, recorder, federation = measured(rounds=1, net=TINY_MLP, participation=0.2, personal=["*classifier*"])
    assert sum(recorder._last.holders) == len(federation.personal.clients) == 1
    assert recorder._last.swap.personal is None


def test_fine_tuning_is_measured_where_asked_for():
    """One more local training per client, worked out by hand for full-batch gradient descent."""
    measurements, recorder, federation = measured(fine_tune=True, local=whole_batch(lr=0.8))
    assert {"everyone/fine_tuned", "everyone/fine_tuned_variance"} <= set(measurements[3])
    theta, data = federation.space.read(federation.net).clone(), federation.data

    def tuned(client):
        federation.space.write(federation.net, theta)
        images, labels = data.store.batch(data.train_indices(client), torch.float64)
        parameters = list(federation.net.parameters())
        loss = torch.nn.functional.cross_entropy(federation.net(images), labels)
        steps = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, step in zip(parameters, steps, strict=True):
                parameter -= 0.8 * step
        return federation.space.read(federation.net).clone()

    assert list(recorder._last.accuracies["fine_tuned"]) == on_own_tests(federation, tuned)
    assert not {name for name in measured()[0][3] if "fine_tuned" in name}


def test_without_test_sets_nothing_is_measured(tmp_path):
    """No numbers, no files, no crash."""
    recorder, measurements = FairnessRecorder(), Measurements()
    settings = Evaluation(clients=False, everyone=1, fine_tune=True)
    federation, files = small_federation(evaluation=settings), RunRecorder(RunFolder(tmp_path))
    run(federation, Blobs(SIZES), 2, callbacks=[recorder, measurements, files])
    assert measurements.rounds == [{}, {}]
    assert federation.results == []
    assert not {"fairness.json", "fairness.png", "everyone.csv"} & {path.name for path in tmp_path.iterdir()}
    assert "fairness" not in json.loads((tmp_path / "summary.json").read_text())
    assert recorder.state_dict() == {"last": None, "complete": True, "history": []}


class Stop(Callback):
    """Ends the run after a round, told before or after the recorder has measured."""

    def __init__(self, after):
        self.after = after

    def on_train_epoch_end(self, trainer, pl_module):
        """Enough."""
        if trainer.current_epoch + 1 == self.after:
            trainer.should_stop = True


@pytest.mark.parametrize(("first", "every"), [(True, 0), (False, 0), (False, 1), (False, 2)])
def test_run_that_stops_early(first, every, tmp_path):
    """Its last round is measured with all controls: in the round where that was known, else at the end of the run."""
    recorder, measurements, stop = FairnessRecorder(), Measurements(), Stop(3)
    evaluation = Evaluation(clients=False, everyone=every)
    federation = small_federation(TINY_MLP, personal=["*classifier*"], evaluation=evaluation)
    watching = [recorder, measurements, RunRecorder(RunFolder(tmp_path))]
    ordered = [stop, *watching] if first else [*watching, stop]
    run(federation, Blobs(SIZES, nonmembers=0.4), 9, callbacks=ordered)
    assert len(measurements.rounds) == 3
    assert set(measurements.rounds[2]) == (KEYS | CONTROLS if first else KEYS if every == 1 else set())
    found = json.loads((tmp_path / "fairness.json").read_text())
    (result,) = federation.results
    assert json.loads(json.dumps({**result.content, "words": found["words"]})) == found
    assert (found["round"], found["final"]["clients"]) == (3, 5)
    assert set(found["controls"]) == {"another", "mean", "none"}


def test_client_whose_test_set_cannot_be_scored():
    """A single sample that a network cannot normalise by its batch counts for nobody; the others keep their order."""
    scores = (
        LocalScore(1, Score(3, 1.0, 4), True),
        LocalScore(2, Score(), True),
        LocalScore(4, Score(1, 1.0, 4), True),
    )
    found = _accuracies({"own": scores, "another": scores}, ["a", "b", "c", "d", "e"], 1)
    assert (found.clients, found.groups, found.samples) == ((1, 4), ("b", "e"), (4, 4))
    assert found.accuracies == {"own": (0.75, 0.25), "another": (0.75, 0.25)}
    assert _accuracies({"own": scores[1:2]}, ["a"] * 5, 1) is None


def test_state_goes_through_a_checkpoint(tmp_path):
    """What a checkpoint holds is enough to write the files without measuring again."""
    _, recorder, _ = measured(net=TINY_MLP, personal=["*classifier*"])
    torch.save(recorder.state_dict(), tmp_path / "state.pt")
    other = FairnessRecorder()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other._last == recorder._last
    assert other.measurements() == {}
    fresh = FairnessRecorder()
    fresh.load_state_dict(FairnessRecorder().state_dict())
    assert fresh._last is None


def test_lightning_keeps_the_state(tmp_path):
    """A trainer's checkpoint carries it."""
    federation, recorder = small_federation(), FairnessRecorder()
    trainer = make_trainer(1, callbacks=[recorder])
    trainer.fit(federation, datamodule=Blobs(SIZES, nonmembers=0.4))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    kept = torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"]
    assert recorder.state_dict() in kept.values()


# ---- through the command line ----------------------------------------------------------------------------------------

MEASURED = ("--model.evaluation.everyone", "2", "--model.evaluation.fine_tune", "true", "--config", "local-head")
MEASURED += ("--model.executor", "sequence")
FILES = ("metrics.jsonl", "everyone.csv", "fairness.json")
quick = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A measured run of four rounds; only to be read."""
    return train(tmp_path_factory.mktemp("whole"), "whole", *INTERRUPTIBLE, *MEASURED, rounds=4)


def multimodal(root, name, rounds, *options):
    """A run with a majority and a minority."""
    arguments = command(root, name, rounds=rounds)
    at = arguments.index("--data.partition")
    groups = ("--data.partition.majority_clients", "3", "--data.partition.minority_clients", "2")
    assert fit([*arguments[:at], "--data.partition", "Multimodal", *groups, *arguments[at + 4 :], *options]) == 0
    return root / name


@pytest.mark.usefixtures("pixels")
def test_run_leaves_files(tmp_path, capsys):
    """Table, figures and picture agree with the metrics of the last round; the summary and the terminal repeat them."""
    folder = multimodal(tmp_path, "a", 4, *MEASURED)
    lines, found = records(folder), json.loads((folder / "fairness.json").read_text())
    assert [line["round"] for line in lines if "everyone/accuracy" in line] == [2, 4]
    with (folder / "everyone.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    own = [float(row["own"]) for row in rows]
    assert [row["group"] for row in rows] == ["majority"] * 3 + ["minority"] * 2
    last = lines[-1]
    assert last["everyone/majority"] == found["final"]["groups"][0]["mean"] == pytest.approx(sum(own[:3]) / 3)
    assert last["everyone/minority"] == pytest.approx(sum(own[3:]) / 2)
    assert last["everyone/gap"] == last["everyone/majority"] - last["everyone/minority"]
    assert last["everyone/fine_tuned"] == pytest.approx(sum(float(row["fine_tuned"]) for row in rows) / 5)
    assert found["settled"]["rounds"] == 2
    assert found["settled"]["gap"] == pytest.approx((lines[1]["everyone/gap"] + last["everyone/gap"]) / 2)
    summary = json.loads((folder / "summary.json").read_text())
    assert {**summary["fairness"], "words": found["words"]} == found
    assert summary["final"]["everyone/accuracy"] == last["everyone/accuracy"]
    assert (folder / "fairness.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.rglob("*.part"))
    output = capsys.readouterr().out
    assert f"local test accuracy {last['everyone/accuracy']:.2%}" in " ".join(output.split())
    assert found["swap"]["verdict"] in output
    assert "fairness.json and everyone.csv (drawn: fairness.png)" in output


@quick
@pytest.mark.parametrize("when", [(3, 2), (4, 1)])
def test_resumed_run_tells_the_same(when, whole, tmp_path, monkeypatch):
    """A run cut off in a round and resumed leaves the same files, byte for byte."""
    monkeypatch.setattr(Interrupter, "when", when)
    monkeypatch.setattr(Interrupter, "act", lambda: (_ for _ in ()).throw(RuntimeError("cut")))
    with pytest.raises(RuntimeError, match="cut"):
        fit(command(tmp_path, "part", *INTERRUPTIBLE, *MEASURED, rounds=4))
    monkeypatch.setattr(Interrupter, "when", None)
    part = train(tmp_path, "part", *INTERRUPTIBLE, *MEASURED, rounds=4)
    for name in FILES:
        assert (whole / name).read_bytes() == (part / name).read_bytes(), name


@quick
def test_run_that_only_lacks_its_summary(whole, tmp_path):
    """The last measurement comes from the checkpoint: files that were lost are written again, the same."""
    folder = shutil.copytree(whole, tmp_path / "whole")
    for name in ("summary.json", "everyone.csv", "fairness.json"):
        (folder / name).unlink()
    train(tmp_path, "whole", *INTERRUPTIBLE, *MEASURED, rounds=4)
    for name in FILES:
        assert (whole / name).read_bytes() == (folder / name).read_bytes(), name
    assert "fairness" in json.loads((folder / "summary.json").read_text())


@quick
@pytest.mark.parametrize("measured", [False, True])
def test_longer_run_forgets_its_former_end(measured, whole, tmp_path):
    """A finished run that is given more rounds tells what a run of that length tells."""
    options = (*INTERRUPTIBLE, *MEASURED) if measured else ()
    train(tmp_path, "longer", *options, rounds=3)
    longer = train(tmp_path, "longer", *options, rounds=4)
    whole = whole if measured else train(tmp_path, "whole", rounds=4)
    for name in FILES:
        assert (whole / name).read_bytes() == (longer / name).read_bytes(), name
