"""`rampart export` and `load_model`: files give what the federation's own networks give; foreign files are refused."""

import functools
import json
import sys

import numpy as np
import pytest
import torch
from run_kit import exit_code
from trained_kit import KINDS, images_of, recorded_accuracies, released_logits

from app import load_run
from app.common.errors import UserError
from app.export import load_model, save_model
from app.models import CNN, MLP, DataShape


@pytest.fixture
def run(loaded):
    """A loaded run with narrow clients and private heads."""
    return loaded("private-head")


@pytest.fixture(scope="module")
def one_registry():
    """torch's exporter reads the definitions of all operators for every file anew, which takes longer than the rest."""
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(registration.ONNXRegistry.from_torchlib)
        patch.setattr(registration.ONNXRegistry, "from_torchlib", staticmethod(once))
        yield


@pytest.fixture
def batch_run(loaded):
    """A loaded run whose network normalises by the batch."""
    return loaded("by-batch")


def onnx_logits(path, images):
    """Answers of onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.float().numpy()})[0]).double()


# ---- what files give -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_the_logits_of_the_federation(kind, loaded, tmp_path):
    """Normalisation, statistics and noise of every kind of network included, in both kinds of files."""
    run, paths = loaded(kind), [tmp_path / f"model{ending}" for ending in (".pt", ".safetensors")]
    assert exit_code("export", str(run.folder.path), str(paths[0]), "--trust") == 0
    run.export(paths[1])
    for model in map(load_model, paths):
        with torch.no_grad():
            logits = model(images_of(run)).double()
        torch.testing.assert_close(logits, released_logits(run), atol=1e-5, rtol=0)
        assert model.classes == tuple("0123456789")
        assert model.shape == run.run.data.shape
        assert not model.training


@pytest.mark.slow
@pytest.mark.usefixtures("one_registry")
@pytest.mark.parametrize(
    ("kind", "client"),
    [("private-head", 1), ("by-batch", None), ("posthoc", 1), ("sampled-factors", 1), ("padded", None)],
)
def test_onnx_gives_the_logits_of_the_federation(kind, client, loaded, tmp_path):
    """Of clients and of the server, for any number of images, with what is needed to use them, but nothing of the
    machine that wrote the file. Fixed statistics of batch norms look the same here, wherever they come from."""
    onnx = pytest.importorskip("onnx")
    run = loaded(kind)
    path = run.export(tmp_path / "model.onnx", client)
    for images in (images_of(run)[:2], images_of(run)[:150]):
        with torch.no_grad():
            expected = run.model(client)(images).double()
        torch.testing.assert_close(onnx_logits(path, images), expected, atol=1e-5, rtol=0)
    told = {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}
    assert told["classes"] == list("0123456789")
    assert "0..1" in told["input"]
    assert b"site-packages" not in path.read_bytes()
    assert b".py" not in path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_gets_the_accuracy_that_the_run_recorded(kind, loaded, tmp_path):
    """Every client's file on its own test set, against everyone.csv."""
    run = loaded(kind)
    recorded = recorded_accuracies(run.folder.path)
    assert list(recorded) == [0, 1, 2, 3]
    for client, accuracy in recorded.items():
        samples = run.run.data.test_indices(client)
        model = load_model(run.export(tmp_path / f"{client}.pt", client))
        with torch.no_grad():
            right = model(images_of(run, samples)).argmax(1) == run.run.data.store.labels[samples]
        assert right.double().mean().item() == accuracy


def test_clients_get_their_own_width_and_private_part(run, tmp_path):
    """Half as wide where the capacity is a half; other heads, since those stayed on the clients."""
    wide, narrow, other = (run.model(client) for client in (0, 1, 2))
    assert wide.net.hparams["rate"] == 1.0
    assert narrow.net.hparams["rate"] == 0.5
    names = [name for name in dict(narrow.net.named_parameters()) if "classifier" in name]
    assert names
    for name, value in narrow.net.named_parameters():
        same = torch.equal(value, other.net.get_parameter(name))
        assert same == (name not in names), name


def test_content_of_a_pt_file(run, tmp_path):
    """Tensors and plain data, which torch reads without running code."""
    content = torch.load(run.export(tmp_path / "model.pt", 1), weights_only=True)
    assert content["net"]["class_path"] == "app.models.MLP"
    assert content["net"]["init_args"]["hidden"] == [8]
    assert (content["rate"], content["client"]) == (0.5, 1)
    assert content["shape"] == {"channels": 1, "height": 8, "width": 8, "classes": 10}
    assert (content["mean"], content["std"]) == (pytest.approx([0.3053]), pytest.approx([0.3760]))
    net = MLP(DataShape(**content["shape"]), **content["net"]["init_args"], rate=content["rate"])
    net.load_state_dict(content["state_dict"])


def test_static_statistics(batch_run, tmp_path):
    """Without them an answer depends on the other images; with them it does not, and the file says what it holds."""
    images = images_of(batch_run)
    moving = load_model(batch_run.export(tmp_path / "batch.pt"))
    fixed = load_model(batch_run.export(tmp_path / "static.pt", static=True))
    with torch.no_grad():
        assert not torch.allclose(moving(images)[:5], moving(images[:5]), atol=1e-2)
        torch.testing.assert_close(fixed(images)[:1], fixed(images[:1]), atol=1e-5, rtol=0)
    assert "normalises by the statistics of the batch" in moving.about["notes"][0]
    assert "no privacy budget" in fixed.about["notes"][0]


def test_static_statistics_are_those_of_the_training_images(batch_run):
    """The first norm's means, computed here by hand: of every batch, then over the batches."""
    data, net = batch_run.run.data, batch_run.run.federation.net
    members = torch.cat([data.train_indices(client) for client in range(data.clients)])
    outputs = net.blocks[0].conv(data.store.batch(members, torch.float64)[0]).detach()
    norm = batch_run.model(static=True).net.blocks[0].norm
    sizes = [len(batch) for batch in members.split(128)]
    means = torch.stack([part.mean((0, 2, 3)) for part in outputs.split(sizes)])
    torch.testing.assert_close(norm.running_mean, means.mean(0))


def test_using_a_model_changes_nothing(batch_run):
    """The federation keeps its weights, its norms and the state of the random numbers."""
    net = batch_run.run.federation.net
    before, random = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    batch_run.model(static=True)
    batch_run.model(2)
    assert torch.equal(random, torch.get_rng_state())
    assert before.keys() == net.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_bytes_are_refused(run):
    """They would be taken for very bright images."""
    with pytest.raises(UserError, match="divide bytes by 255"):
        run.model()(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_existing_files_are_kept(run, tmp_path, capsys):
    """Unless they are to be overwritten."""
    path = tmp_path / "model.pt"
    path.write_text("precious")
    arguments = ("export", str(run.folder.path), str(path))
    assert exit_code(*arguments) == 2
    assert path.read_text() == "precious"
    assert "--overwrite" in capsys.readouterr().err
    assert exit_code(*arguments, "--overwrite") == 0
    assert load_model(path).shape.classes == 10
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("client", ["4", "-1"])
def test_unknown_clients(client, run, tmp_path, capsys):
    """The range is told."""
    assert exit_code("export", str(run.folder.path), str(tmp_path / "model.pt"), "--client", client) == 2
    assert "from 0 to 3" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_private_parts_that_were_not_kept(run, tmp_path, monkeypatch):
    """Without checkpoints, a client's model would silently be another one."""
    monkeypatch.setattr("app.finished.newest_usable", lambda folder: None)
    with pytest.raises(UserError, match="keep to themselves is lost"):
        load_run(run.folder.path).model(1)


@pytest.mark.parametrize(("folder", "told"), [("nowhere", "is no run"), ("unfinished", "is not finished")])
def test_folders_without_a_finished_run(folder, told, tmp_path, capsys):
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.yaml").write_text("{}")
    assert exit_code("export", str(tmp_path / folder), str(tmp_path / "model.pt")) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model", "model.h5"])
def test_unknown_endings(name, run, tmp_path, capsys):
    """All known ones are named."""
    assert exit_code("export", str(run.folder.path), str(tmp_path / name)) == 2
    assert ".pt or .safetensors or .onnx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ending", "missing"), [(".safetensors", "safetensors.torch"), (".onnx", "onnx.helper"), (".onnx", "onnxscript")]
)
def test_missing_libraries(ending, missing, run, tmp_path, monkeypatch, capsys):
    """The command that installs them is named."""
    monkeypatch.setitem(sys.modules, missing, None)
    assert exit_code("export", str(run.folder.path), str(tmp_path / f"model{ending}")) == 2
    assert 'pip install "rampart-fl[export]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(run, tmp_path, capsys):
    """A file stands in its place."""
    (tmp_path / "file").touch()
    assert exit_code("export", str(run.folder.path), str(tmp_path / "file" / "model.pt")) == 2
    assert "cannot write" in capsys.readouterr().err


def foreign(path):
    """Files of other programs."""
    if path.stem == "garbage":
        path.write_bytes(b"\x00\x01garbage")
    elif path.stem == "checkpoint":
        torch.save({"state_dict": {"weight": torch.zeros(3)}, "epoch": 1}, path)
    elif path.stem == "tensor":
        torch.save(torch.zeros(3), path)
    elif path.stem == "array":
        np.savez(path.open("wb"), theta=np.zeros(3))
    elif path.stem == "tensors":
        pytest.importorskip("safetensors.torch").save_file({"weight": torch.zeros(3)}, path)
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("absent.pt", "garbage.pt", "checkpoint.pt", "tensor.pt", "array.pt"),
        *("absent.safetensors", "garbage.safetensors", "tensors.safetensors"),
    ],
)
def test_foreign_files(name, tmp_path):
    """The remedy says which files can be read."""
    with pytest.raises(UserError, match="rampart export"):
        load_model(foreign(tmp_path / name))


class Trap(dict):
    """Remembers that it was made."""

    made = False

    def __init__(self, *args, **kwargs):
        type(self).made = True


@pytest.mark.parametrize("path", ["test_export_command.Trap", "no.such.Net", "app.models.NoNet"])
def test_a_file_that_names_no_network_calls_nothing(path, run, tmp_path, monkeypatch):
    """Somebody's file may name any class: only networks are built."""
    monkeypatch.setitem(sys.modules, "test_export_command", sys.modules[__name__])
    content = torch.load(run.export(tmp_path / "model.pt"), weights_only=True)
    content["net"]["class_path"] = path
    torch.save(content, tmp_path / "trap.pt")
    with pytest.raises(UserError, match="cannot be built again"):
        load_model(tmp_path / "trap.pt", trust=True)
    assert not Trap.made


def test_a_file_with_tensors_of_another_network(run, tmp_path):
    """A tensor of another shape is not spread over the one it stands for."""
    content = torch.load(run.export(tmp_path / "model.pt"), weights_only=True)
    content["state_dict"] = {name: value[:1] for name, value in content["state_dict"].items()}
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UserError, match="other tensors"):
        load_model(tmp_path / "other.pt")


def test_a_network_that_cannot_be_named(run, tmp_path):
    """It is refused when it is saved, not when it is too late."""

    class Local(CNN):
        """Inside a function."""

    model = run.model()
    model.about["net"] = {"class_path": f"{Local.__module__}.{Local.__qualname__}", "init_args": {}}
    with pytest.raises(UserError, match="cannot be built again"):
        save_model(model, tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_network_that_onnx_cannot_hold(run, tmp_path, monkeypatch):
    """Which operations are done depends on the values of the images."""
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(MLP, "forward", lambda self, images: images if images.sum() > 0 else -images)
    with pytest.raises(UserError, match=r"torch cannot translate MLP(.|\n)*export a .pt"):
        run.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
