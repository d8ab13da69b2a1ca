"""What uploads tell of a private choice of factors: planted choices, controls, files, and channels that hide them."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import Blobs, make_trainer, sgd, small_federation
from hidden_choice_kit import FACTORS, Planting, factorised, plant, support

from app.attacks.audit_context import AuditContext
from app.attacks.factor_recovery import COSTS, MEASURED, FactorFinding, recover_factors
from app.common.errors import UserError
from app.common.seeding import numpy_generator
from app.federation.local_training import LocalTraining
from app.federation.transcript import Transcript, TranscriptSettings
from app.federation.transcript_recorder import TranscriptRecorder
from app.metrics.intervals import Estimate, Interval
from app.metrics.membership import NotAvailable
from app.models import MLP, DataShape
from app.results.attacks.factor_recovery import FactorRecord
from app.results.run.folder import RunFolder
from app.results.run.results import summaries
from callbacks.attacks.factor_recovery import FactorRecovery, true_choices
from callbacks.attacks.membership_inference import public_knowledge
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation
from callbacks.recorders.run_recorder import RunRecorder

SIZES = (30, 24, 20, 36)


def attacked(folder, *callbacks, net=None, lr=0.3, rounds=1, nonmembers=0.3, **settings):
    """A federation that is attacked at its end, and the result; its transcript is in `folder`."""
    local = LocalTraining(batch_size=8, epochs=3, optimizer=sgd(lr))
    federation = small_federation(net or factorised(), local=local, **settings)
    recorder = TranscriptRecorder(folder / "transcript", TranscriptSettings(2), announce=False)
    data = Blobs(SIZES, DataShape(1, 4, 4, 5), nonmembers=nonmembers)
    make_trainer(rounds, "32-true", [*callbacks, FactorRecovery(), recorder]).fit(federation, datamodule=data)
    (record,) = (result for result in federation.results if isinstance(result, FactorRecord))
    return federation, record


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Every client uses five of twelve factors for certain; the run is kept."""
    folder = tmp_path_factory.mktemp("planted")
    return (*attacked(folder, Planting(), RunRecorder(RunFolder(folder))), folder)


def test_planted_choices_are_recovered(planted):
    """Perfect ranking by movement; the rebuilt model is the client's, and no other choice gives it."""
    _, record, _ = planted
    assert isinstance(record.finding, FactorFinding)
    assert [one.client for one in record.finding.clients] == [0, 1, 2, 3]
    for one in record.finding.clients:
        assert (one.round, one.used) == (1, 5)
        assert one.moved == 1
        assert one.support == 1
        assert one.recovered == one.own
    assert record.finding.means["moved"].value == 1


def test_own_accuracy_is_that_of_the_trained_client(tmp_path):
    """The upload with the true choice is the model that the client ended with."""

    class Watch(Planting):
        def __init__(self):
            self.seen = {}

        def on_client_end(self, trainer, federation, client):
            """Keep its answers on its test set."""
            images, labels = federation.data.store.batch(federation.data.test_indices(client.client), torch.float32)
            with torch.no_grad():
                right = client.net.eval()(images).argmax(1) == labels
            self.seen[client.client] = float(right.double().mean())

    watch = Watch()
    _, record = attacked(tmp_path, watch)
    assert {one.client: one.own for one in record.finding.clients} == pytest.approx(watch.seen)


def test_other_choices_by_hand(planted):
    """As sent means every factor; another client's is that of somebody else, the next in a drawn order."""
    federation, record, folder = planted
    order = numpy_generator(federation.seed, "swapped-choices").permutation(range(4)).tolist()
    view, net = Transcript(folder / "transcript").server_view(), factorised()(federation.data.shape)
    for one, upload in zip(record.finding.clients, view.uploads(1), strict=True):
        vector, partner = view.broadcast(1), order[(order.index(one.client) + 1) % 4]
        vector[upload.index] = upload.payload
        federation.space.write(net, vector)
        images, labels = federation.data.store.batch(federation.data.test_indices(one.client), torch.float32)
        shares = []
        for used in (torch.ones(FACTORS, dtype=torch.bool), support(partner)):
            plant(net, used)
            with torch.no_grad():
                shares.append(float((net.eval()(images).argmax(1) == labels).double().mean()))
        assert (one.concealed, one.another) == pytest.approx(tuple(shares))
        assert partner != one.client
    assert any(one.concealed != one.another for one in record.finding.clients)


def test_means_are_over_clients_with_intervals(planted):
    """Of everything that is measured."""
    found = planted[1].finding
    for name in MEASURED:
        values = [getattr(one, name) for one in found.clients]
        assert found.means[name].value == pytest.approx(np.mean(values)), name
        assert isinstance(found.means[name].interval, Interval)
    for cost, name in COSTS.items():
        lost = [one.own - getattr(one, name) for one in found.clients]
        assert found.means[cost].value == pytest.approx(np.mean(lost)), cost
    assert found.means["recovered_cost"].value == 0
    assert found.moved.shape == found.chosen.shape == (4, FACTORS)
    assert np.allclose(found.moved.mean(axis=1), 1)
    assert np.array_equal(found.chosen > 0.5, torch.stack([support(client) for client in range(4)]).numpy())


def area(scores, truth):
    """Pairs won, ties counting one half."""
    pairs = np.subtract.outer(np.asarray(scores)[truth], np.asarray(scores)[~truth])
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_controls_take_no_upload(planted):
    """Prior and population mean by hand; the specific part compares with the mean movement of all clients."""
    found = planted[1].finding
    truth = np.stack([support(client).numpy() for client in range(4)])
    population = found.chosen.mean(axis=0)
    for place, one in enumerate(found.clients):
        assert one.prior == pytest.approx(area(-np.arange(FACTORS), truth[place]))
        assert one.population == pytest.approx(area(population, truth[place]))
        assert one.specific == pytest.approx(_specific(planted, place, population), abs=1e-9)


def test_the_specific_part_by_hand(tmp_path):
    """Choices that are learnt: movement over its mean, for what a client uses more than the mean of all."""
    run = (*attacked(tmp_path, net=factorised(speed=300.0)), tmp_path)
    found = run[1].finding
    population = found.chosen.mean(axis=0)
    for place, one in enumerate(found.clients):
        assert one.specific == pytest.approx(_specific(run, place, population), abs=1e-9)
    assert len({one.specific for one in found.clients}) > 1


def _specific(run, place, population):
    federation, record, folder = run
    world = AuditContext(public_knowledge(federation, 1), Transcript(folder / "transcript"), federation.data.membership)
    view, moved = world.transcript.server_view(), []
    blocks = {block.name.rpartition(".")[2]: block for block in federation.space.blocks if "hidden1" in block.name}
    for upload in view.uploads(1):
        change = torch.zeros(federation.space.size, dtype=torch.float64)
        change[upload.index] = (upload.payload - view.broadcast(1)[upload.index]).double()
        left, right = (change[blocks[name].coordinates].view(blocks[name].shape) for name in ("left", "right"))
        moved.append((left.norm(dim=0) + right.norm(dim=1)).numpy())
    more = record.finding.chosen[place] > population
    return area(moved[place] / np.mean(moved, axis=0), more)


def test_an_upload_that_did_not_move_tells_nothing(tmp_path):
    """Learning rate 0: chance, and the guess is the upload as it was sent."""
    _, record = attacked(tmp_path, Planting(), lr=0.0)
    for one in record.finding.clients:
        assert one.moved == one.support == one.specific == 0.5
        assert one.recovered == one.concealed


@pytest.mark.usefixtures("pixels")
def test_files_and_words(planted, capsys):
    """Numbers with their meaning, one row per client, a picture, a summary and lines for the terminal."""
    _, record, folder = planted
    written = json.loads((folder / "attacks" / "factors.json").read_text())
    assert written["clients"] == 4
    assert written["means"]["support"]["value"] == 1
    assert set(written["means"]) == set(written["meaning"]) == {*MEASURED, *COSTS}
    (loaded,) = FactorRecord.load_all(folder)
    assert loaded.numbers == record.numbers
    assert FactorRecord.text([loaded]) == FactorRecord.text([record])
    with (folder / "attacks" / "factors.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], row["used"]) for row in rows] == [(str(client), "5") for client in range(4)]
    assert (folder / "attacks" / "factors.png").read_bytes().startswith(b"\x89PNG")
    assert summaries(RunFolder(folder))["factors"]["attacks/factors/own"] == record.finding.means["own"].value
    text = FactorRecord.text([record])
    assert "AUC 1.000" in text
    assert "another client's choice" in text


@pytest.mark.parametrize(
    ("channel", "reason"),
    [(SecureAggregation, "masked sums only"), (partial(Paillier, simulate=True), "ciphertext only")],
)
def test_hidden_uploads_show_no_factors(tmp_path, channel, reason):
    """N/A with the reason in the file and on the terminal; what an earlier result left is gone."""
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "factors.png").touch()
    _, record = attacked(tmp_path, channel(), RunRecorder(RunFolder(tmp_path)))
    assert record.finding is None
    assert reason in record.reason
    assert reason in json.loads((tmp_path / "attacks" / "factors.json").read_text())["reason"]
    assert reason in FactorRecord.text([record]).splitlines()[0]
    assert not (tmp_path / "attacks" / "factors.png").exists()
    assert summaries(RunFolder(tmp_path))["factors"] == {}


def test_networks_without_a_choice_are_refused(tmp_path):
    """Before any training, with a remedy."""
    with pytest.raises(UserError, match="MLP has no factorised layers") as error:
        attacked(tmp_path, net=partial(MLP, hidden=(8,)))
    assert "app.models.Factorised" in error.value.problems[0].remedy


def test_few_clients_are_heard(tmp_path):
    """Only those of the kept rounds, with a remark; all that ever took part are the population."""
    federation, record = attacked(tmp_path, participation=0.5, rounds=4, net=factorised(speed=100.0))
    plans = [set(federation.plan_of(round_).participants) for round_ in range(4)]
    senders = plans[2] | plans[3]
    assert [one.client for one in record.finding.clients] == sorted(senders)
    assert {one.client: one.round for one in record.finding.clients} == {
        client: 4 if client in plans[3] else 3 for client in senders
    }
    assert set(true_choices(federation)) == set.union(*plans)
    if len(senders) < 4:
        assert f"{len(senders)} of 4 clients uploaded in rounds 3, 4" in record.finding.notes[0]


def test_clients_without_test_sets(tmp_path):
    """Areas are there, accuracies are not."""
    _, record = attacked(tmp_path, Planting(), nonmembers=0.0)
    assert record.finding.means["support"].value == 1
    assert isinstance(record.finding.means["own"], NotAvailable)
    assert isinstance(record.finding.means["concealed_cost"], NotAvailable)
    assert "N/A true choice" in FactorRecord.text([record])


def test_several_layers_count_alike(tmp_path):
    """The area is a mean over layers, whose movements are not compared with each other."""
    net = factorised(factors={"layers.hidden1": FACTORS, "layers.classifier": FACTORS})
    _, record = attacked(tmp_path, Planting(), net=net)
    assert record.finding.moved.shape == (4, 2 * FACTORS)
    assert all(one.used == 10 and one.moved == 1 for one in record.finding.clients)
    assert np.allclose(record.finding.moved.reshape(4, 2, FACTORS).mean(axis=2), 1)


def test_the_same_from_the_transcript(planted):
    """Nothing but transcript and truth is needed."""
    federation, record, folder = planted
    world = AuditContext(public_knowledge(federation, 1), Transcript(folder / "transcript"), federation.data.membership)
    again = recover_factors(world, true_choices(federation))
    assert again.clients == record.finding.clients
    assert isinstance(again.means["own"], Estimate)
