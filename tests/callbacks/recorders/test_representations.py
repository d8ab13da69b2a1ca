"""Representations are what the released model's last layer reads, of the audited samples and nobody else's."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federation_kit import Blobs, make_trainer, sgd, small_federation
from paper_kit import Noise
from run_kit import train

from app.attacks.membership.nasr import NasrSettings
from app.attacks.protocols.memdefense import MemDefensePaper
from app.common.errors import UserError
from app.common.ranges import range_problems
from app.federation.local_training import LocalTraining
from app.federation.parameters import FlatNet, ParameterSpace
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.models import MLP, DataShape
from app.results.attacks.representation_files import AttackRepresentations, RepresentedSamples, read_representations
from app.results.run.folder import RunFolder
from callbacks.attacks.membership_inference import MembershipInference
from callbacks.recorders.representations import Representations
from callbacks.recorders.run_recorder import RunRecorder
from datamodules.split import Membership

SIZES = (30, 24, 20, 36)


def represented(folder, samples=300, seed=0, nonmembers=0.3):
    """A federation that has kept its representations, its data, and the result."""
    local = LocalTraining(batch_size=8, epochs=2, optimizer=sgd(0.1))
    federation = small_federation(partial(MLP, hidden=[12, 7]), local=local, seed=seed)
    recorder = TranscriptRecorder(folder / "transcript", TranscriptSettings(1), announce=False)
    data = Blobs(SIZES, DataShape(1, 4, 4, 5), nonmembers=nonmembers)
    keepers = [Representations(samples), recorder, RunRecorder(RunFolder(folder))]
    make_trainer(1, "32-true", keepers).fit(federation, datamodule=data)
    return federation, data, *federation.results


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """All audited samples of one run."""
    folder = tmp_path_factory.mktemp("represented")
    return (*represented(folder), folder)


def test_features_give_the_released_models_answers(kept):
    """The last layer applied to them is the released model applied to the samples."""
    federation, data, _, folder = kept
    found = read_representations(folder)
    net = federation.net.scaled(1.0)
    FlatNet(ParameterSpace(net), net).write(Transcript(folder / "transcript").external_view().released())
    images, labels = data.store.batch(torch.from_numpy(found.samples), torch.float32)
    last = [layer for layer in net.modules() if isinstance(layer, torch.nn.Linear)][-1]
    assert found.features.shape == (len(found.samples), 7)
    with torch.no_grad():
        torch.testing.assert_close(last(torch.from_numpy(found.features)), net.eval()(images), atol=1e-5, rtol=1e-4)
    assert found.labels.tolist() == labels.tolist()


def test_members_are_members(kept):
    """All of them where they are fewer than asked for, each told right, none twice."""
    _, data, result, folder = kept
    found = read_representations(folder)
    members, others = (
        set(np.concatenate(own).tolist()) for own in (data.membership.members, data.membership.nonmembers)
    )
    assert set(found.samples[found.members].tolist()) == members
    assert set(found.samples[~found.members].tolist()) == others
    assert len(set(found.samples.tolist())) == len(found.samples)
    np.testing.assert_array_equal(result.features, found.features)


def test_draw_is_limited_and_follows_the_seed(tmp_path):
    """As many members as non-members, the same ones for the same seed."""
    draws = []
    for number, seed in enumerate((0, 0, 1)):
        _, _, result = represented(tmp_path / str(number), samples=11, seed=seed)
        assert (result.members.sum(), (~result.members).sum()) == (11, 11)
        draws.append(result.samples.tolist())
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_it_changes_nothing(tmp_path, kept):
    """Training with and without it ends bit for bit in the same model."""
    local = LocalTraining(batch_size=8, epochs=2, optimizer=sgd(0.1))
    federation = small_federation(partial(MLP, hidden=[12, 7]), local=local, seed=0)
    data = Blobs(SIZES, DataShape(1, 4, 4, 5), nonmembers=0.3)
    make_trainer(1, "32-true", []).fit(federation, datamodule=data)
    assert torch.equal(federation.theta, kept[0].theta)


def test_the_test_set_takes_the_place_of_held_out_samples(tmp_path):
    """As in the papers' protocols, whose clients train on everything."""
    _, data, result = represented(tmp_path, nonmembers=0.0)
    test = data.membership.test
    assert len(test) > 0
    np.testing.assert_array_equal(result.samples[~result.members], test)
    assert not np.isin(result.samples[result.members], test).any()


def test_without_non_members_it_refuses():
    """Before any training, with a way out."""
    none = np.empty(0, int)
    data = SimpleNamespace(membership=Membership((np.arange(4),), (none,), none, none, none))
    federation = SimpleNamespace(net=MLP(DataShape(1, 4, 4, 5)), data=data)
    [problem] = Representations().problems(federation)
    assert "no non-members" in problem.cause
    assert "--data.holdout" in problem.remedy


def attacked(folder, samples):
    """A federation under MemDefense's protocol that has kept both kinds of representations, and its attack's record."""
    attack = MembershipInference(protocol=MemDefensePaper(clients=1, settings=NasrSettings(kernels=4, epochs=12)))
    federation = small_federation(partial(MLP, hidden=[24]), local=LocalTraining(epochs=20, optimizer=sgd(0.2)))
    recorder = TranscriptRecorder(folder / "transcript", TranscriptSettings(1), announce=False)
    keepers = [attack, Representations(samples), recorder, RunRecorder(RunFolder(folder))]
    make_trainer(2, "32-true", keepers).fit(federation, datamodule=Noise((60, 60), 120))
    return federation, next(one for one in federation.results if one.label == "memdefense.nasr.global")


def test_features_of_the_attack_network_explain_its_scores(tmp_path):
    """The attack network's logit is a linear function of them; samples and membership are those of its evaluation."""
    federation, record = attacked(tmp_path, samples=30)
    found = read_representations(tmp_path, AttackRepresentations)
    rows = record.scores
    assert found.features.shape == (60, 64)
    place = [int(np.flatnonzero(rows.samples == sample)[0]) for sample in found.samples]
    np.testing.assert_array_equal(rows.members[place], found.members)
    assert (found.members.sum(), (~found.members).sum()) == (30, 30)
    everything = np.column_stack([record.hidden.astype(float), np.ones(len(rows.scores))])
    weights = np.linalg.lstsq(everything, rows.scores, rcond=None)[0]
    drawn = np.column_stack([found.features.astype(float), np.ones(60)])
    np.testing.assert_allclose(drawn @ weights, rows.scores[place], atol=1e-3)
    store = federation.data.store
    np.testing.assert_array_equal(found.labels, store.labels[torch.from_numpy(found.samples)].numpy())


def test_so_few_samples_are_refused():
    """Nine points are no picture."""
    [problem] = range_problems(Representations(9), "attacks.features")
    assert (problem.cause, problem.consequence) == ("--attacks.features.samples is 9", "it must be int >= 10")


def test_broken_file_is_told(tmp_path):
    """Nothing where there is no file; an error that names the file where it cannot be read."""
    assert read_representations(tmp_path) is None
    arrays = RepresentedSamples(
        np.ones((2, 3), np.float32), np.array([0, 1]), np.array([True, False]), np.array([4, 5])
    )
    arrays.save(tmp_path)
    path = tmp_path / "representations.npz"
    assert read_representations(tmp_path).features.tolist() == [[1, 1, 1], [1, 1, 1]]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"representations\.npz"):
        read_representations(tmp_path)


def test_recipe_leaves_a_file(tmp_path):
    """`rampart fit --config representations` keeps them in the run folder."""
    folder = train(tmp_path, "x", "--config", "representations", "--attacks.representations.samples", "20")
    found = read_representations(folder)
    assert found.members.sum() == 20
