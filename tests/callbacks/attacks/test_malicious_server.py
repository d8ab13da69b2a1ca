"""A malicious server on real federations: what it isolates, what comes back, and what it leaves behind."""

import json
import os
from functools import partial

import pytest
import torch
from channel_kit import SIMULATED
from federation_kit import Recorder, make_trainer, run, sgd, small_federation
from malicious_kit import COHORTS, HIDDEN, Noise, attacked, only
from malicious_script import outcome
from process_kit import SCRIPTS, on_two_processes
from torch.optim import Adam

from app.attacks.reconstruction.active.convergence_rate import ConvergenceRate
from app.attacks.reconstruction.active.observations import IsolatedUpdate
from app.attacks.reconstruction.active.rolling_model import RollingModel
from app.attacks.reconstruction.active.trap_server import TrapServer
from app.attacks.reconstruction.active.trap_weights import TrapWeights
from app.common.errors import UserError
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import ChannelSubset, FedRolex, Prefix
from app.metrics.membership import NotAvailable
from app.models import CNN, MLP
from callbacks.attacks.malicious_server import MaliciousServer
from datamodules import MNIST, CropFlip, Holdout, Iid


def test_rolling_model_isolates_the_update_exactly():
    """To 1e-11 in double precision, over the whole first layer of the narrowest client; all its images come back."""
    server, found, _ = attacked(RollingModel())
    assert server._isolation_error <= 1e-11
    assert server._isolated.clients == (2,)
    rows = HIDDEN // 4
    assert len(server._isolated.index) >= rows * 65
    assert only(found).oracle.recovered == 4
    assert only(found).oracle.psnr_mean > 100


def test_rolling_model_needs_no_lonely_client():
    """Five clients of one image each in the attacked cohort: the sum over five is as good as one client's update."""
    _, found, _ = attacked(RollingModel(), (4, 4, 1, 1, 1, 1, 1), [1.0, 0.5, *[0.25] * 5])
    result = only(found)
    assert (result.oracle.recovered, result.oracle.of) == (5, 5)
    assert {score.client for score in result.per_image} == {2, 3, 4, 5, 6}


def test_rolling_model_reads_single_nodes_without_leaving_the_plan():
    """FedRolex moves by one channel: one row of the narrow client is new, and with one image that is enough."""
    always = RollingModel(scope="node", traps=TrapWeights(scale=1.0, layout="column"))
    server, found, federation = attacked(always, (4, 4, 1))
    assert isinstance(federation.method, FedRolex)
    assert len(server._isolated.index) == 65 + 10
    assert server._isolation_error <= 1e-11
    assert only(found).oracle.recovered == 1


def test_rolling_model_reads_resampled_plans():
    """Federated Dropout: rows that the client enters and for which nobody else changes."""
    server, found, _ = attacked(RollingModel(scope="node"), method=ChannelSubset.preset("USR"))
    assert server._isolation_error <= 1e-10
    assert 65 * 5 < len(server._isolated.index) < 65 * HIDDEN // 4
    assert only(found).oracle.recovered >= 1


def test_static_plans_hide_from_rolling_nodes():
    """HeteroFL's contributors never change; a server that keeps to the plan has nothing to subtract."""
    _, found, _ = attacked(RollingModel(scope="node"), method=Prefix())
    assert isinstance(found[0].result, NotAvailable)
    assert "second round alone" in found[0].result.reason


def test_frozen_model_isolates_as_well():
    """Others get the honest model twice and do the same twice, if their channels stay; a rolling window moves them."""
    server, found, _ = attacked(RollingModel(others="frozen"), method=Prefix())
    rolled, _, _ = attacked(RollingModel(others="frozen"))
    assert server._isolation_error <= 1e-11
    assert 1e-9 < rolled._isolation_error < 1e-3
    assert only(found).oracle.recovered == 4


def test_new_batches_spoil_the_frozen_model_only():
    """Small batches in a new order: others do not repeat themselves, unless no gradient reaches the first layer."""
    local = LocalTraining(batch_size=2, steps=1, optimizer=sgd(0.05))
    frozen, _, _ = attacked(RollingModel(others="frozen"), local=local, method=Prefix())
    constant, _, _ = attacked(RollingModel(), local=local)
    assert frozen._isolation_error > 1e-6
    assert constant._isolation_error <= 1e-11


def test_noise_that_the_server_remembers_costs_nothing_in_the_first_layer():
    """Forgotten, the same noise drowns most of the update."""
    known, remembered, _ = attacked(RollingModel(noise=0.3, noised="first-layer"))
    forgotten, found, _ = attacked(RollingModel(noise=0.3, noised="first-layer", own_noise="forgotten"))
    everywhere, _, _ = attacked(RollingModel(noise=0.3))
    assert known._isolation_error <= 1e-10
    assert forgotten._isolation_error > 10 * everywhere._isolation_error
    assert everywhere._isolation_error > 1e-4, "noise behind the first layer lets the others' gradients through"
    assert (only(remembered).oracle.recovered, only(found).oracle.recovered) == (4, 1)


def test_convergence_error_is_what_richer_clients_still_do():
    """The estimate is off by exactly the sum of the richer clients' changes on the coordinates that are read."""
    recorder = Recorder()
    server, found, federation = attacked(
        ConvergenceRate(), (4, 4, 4, 4), [1.0, 0.5, 0.25, 0.25], rounds=4, callbacks=(recorder,)
    )
    index = server._isolated.index
    assert len(index) == HIDDEN // 4 * (64 + 1 + 10)
    changes = {}
    for client, vector, coordinates in recorder.updates[-4:]:
        full = torch.zeros(federation.space.size, dtype=torch.float64)
        sent = server.attack.sends(server._knowledge, 0, client, coordinates)
        full[coordinates] = vector.double() - sent.double()
        changes[client] = full[index]
    off = server._isolated.change - changes[1]
    assert (off - changes[0]).abs().max() <= 1e-9 * changes[1].abs().max()
    first = server.reading.used_coordinates(federation.space)[index]
    assert float(changes[0][first].norm() / changes[1][first].norm()) == pytest.approx(
        server._isolation_error, rel=1e-6
    )
    assert only(found).oracle.recovered >= 3


def test_converged_richer_clients_make_the_isolation_exact():
    """A richest client whose gradient vanishes leaves the attacked cohort's change to 1e-9."""
    server, _, _ = attacked(
        ConvergenceRate(), (1, 4, 4), rounds=40, optimizer=sgd(0.3), callbacks=(), hidden=64, capacities=COHORTS
    )
    early, _, _ = attacked(ConvergenceRate(), (1, 4, 4), rounds=2, optimizer=sgd(0.3), hidden=64)
    assert server._isolation_error < early._isolation_error


def test_quiet_traps_drown_in_what_others_still_do():
    """Traps in front of the honest output layer are far weaker than loud ones before convergence."""
    loud, _, _ = attacked(ConvergenceRate(), rounds=2)
    kept, _, _ = attacked(ConvergenceRate(traps=TrapWeights(output="kept")), rounds=2)
    assert kept._isolation_error > 10 * loud._isolation_error


def test_convergence_waits_until_rounds_are_calm():
    """With a tolerance it acts as soon as the mean moves little, at the latest in the last round."""
    early, _, _ = attacked(ConvergenceRate(tolerance=10.0), rounds=5)
    late, _, _ = attacked(ConvergenceRate(tolerance=1e-12), rounds=5)
    assert early._isolated.round == 1
    assert late._isolated.round == 4


def test_trap_server_reads_the_sum_of_everybody():
    """One model for all, ten clients of one image: nothing is isolated, and images come back all the same."""
    server, found, _ = attacked(TrapServer(), (1,) * 10, [1.0, 1.0, *[0.5] * 8], rounds=1)
    assert server._isolation_error <= 1e-11
    assert only(found).oracle.recovered >= 6
    assert only(found).oracle.pearson_mean > 0.95


def test_adam_is_not_available_and_would_give_nothing():
    """The result says so; whoever insists recovers no image, and is told that it means nothing."""
    adam = partial(Adam, lr=1e-3)
    _, refused, _ = attacked(RollingModel(), optimizer=adam)
    assert isinstance(refused[0].result, NotAvailable)
    assert "Adam" in refused[0].result.reason
    _, insisted, _ = attacked(RollingModel(), optimizer=adam, server=MaliciousServer(RollingModel(), insist=True))
    assert only(insisted).oracle.recovered == 0
    assert any("Adam" in note for note in insisted[0].conditions.notes)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"callbacks": (SIMULATED(),)}, "ciphertexts"),
        ({"net": MLP}, "no bias"),
    ],
)
def test_what_cannot_be_read_is_not_available(what, words):
    """Never one half, never zero: a reason."""
    if "net" in what:
        federation = small_federation(
            partial(MLP, hidden=(8,), bias=False), capacities=COHORTS, local=LocalTraining(optimizer=sgd())
        )
        server = MaliciousServer(RollingModel())
        make_trainer(2, callbacks=[server], limit_val_batches=0).fit(federation, datamodule=Noise())
        found = federation.results
    else:
        _, found, _ = attacked(RollingModel(), hidden=16, **what)
    assert words in found[0].result.reason


def test_truth_is_the_attacked_client_whatever_the_order():
    """The published evaluation compared with whoever came last; here the owner of every image is stated."""
    _, found, federation = attacked(RollingModel(), (3, 5, 4))
    members = set(federation.data.train_indices(2).tolist())
    assert {(score.client, score.sample) for score in only(found).per_image} == {(2, sample) for sample in members}


def test_legacy_scores_depend_on_the_client_that_came_last():
    """Over seeds, the same perfect attack looks perfect for one client in three and poor for the others."""
    seen = {}
    for seed in range(6):
        server = MaliciousServer(RollingModel(), score="legacy")
        _, found, _ = attacked(RollingModel(), server=server, seed=seed)
        seen.setdefault(found[0].details["legacy_right_client"], []).append(found[0].details["legacy_pearson"])
    assert set(seen) == {0.0, 1.0}
    assert min(seen[1.0]) > 0.999 > 0.9 > max(seen[0.0])


def test_augmented_images_are_compared_as_they_were_seen():
    """Crops and flips of the round, not the files, are what comes back."""
    data = Noise((4, 4, 4), augment=CropFlip(padding=2))
    _, found, _ = attacked(RollingModel(), data=data)
    assert only(found).oracle.recovered >= 3


def test_attacked_rounds_leave_the_model_as_it_was():
    """The run ends where the honest rounds before the attack ended."""
    _, _, federation = attacked(ConvergenceRate(), rounds=3)
    honest = small_federation(
        partial(MLP, hidden=(HIDDEN,)), capacities=COHORTS, local=LocalTraining(batch_size=1000, optimizer=sgd(0.05))
    )
    expected = run(honest, Noise(), rounds=2, limit_val_batches=0)
    assert torch.equal(federation.space.read(federation.net), expected)


def test_silent_server_changes_nothing():
    """Where nothing could come of it, the run is the honest one."""
    adam = partial(Adam, lr=1e-3)
    _, _, federation = attacked(RollingModel(), optimizer=adam, hidden=16)
    honest = small_federation(
        partial(MLP, hidden=(16,)),
        capacities=COHORTS,
        method=FedRolex(),
        local=LocalTraining(batch_size=1000, optimizer=adam),
    )
    assert torch.equal(federation.space.read(federation.net), run(honest, Noise(), rounds=2, limit_val_batches=0))


def test_rounds_that_do_not_fit_are_refused():
    """Before any training, with the rounds that would do."""
    with pytest.raises(UserError, match="takes 2 rounds"):
        attacked(RollingModel(), rounds=1)
    with pytest.raises(UserError, match=r"1\.\.2"):
        attacked(RollingModel(), rounds=3, server=MaliciousServer(RollingModel(), round=3))


def test_convolutions_can_be_searched():
    """Without a dense layer the ratio is refused with a hint."""
    federation = small_federation(
        partial(CNN, u=4, norm="none"), capacities=COHORTS, local=LocalTraining(optimizer=sgd())
    )
    server = MaliciousServer(RollingModel())
    make_trainer(2, callbacks=[server], limit_val_batches=0).fit(federation, datamodule=Noise())
    assert "matching" in federation.results[0].result.reason


def test_isolated_update_can_be_refilled():
    """Zeroed coordinates count as unmoved for an attacker who knows the defense; others stay."""
    sent = torch.tensor([2.0, -3.0, 4.0], dtype=torch.float64)
    change = torch.tensor([-2.0, 0.5, -4.0], dtype=torch.float64)
    coordinates = torch.arange(3)
    update = IsolatedUpdate((0,), 0, coordinates, change, torch.ones(3, dtype=torch.float64), sent, coordinates, sent)
    assert update.refilled().change.tolist() == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("settings", [{"weighting": "samples"}, {"uncovered_cells": "zero"}])
def test_weights_and_gaps_do_not_matter(settings):
    """Clients that count by their samples, and coordinates that nobody trains."""
    server, found, _ = attacked(RollingModel(), (3, 5, 4), **settings)
    assert server._isolation_error <= 1e-11
    assert only(found).oracle.recovered == 4


def test_sums_that_do_not_add_up_are_noticed():
    """A client whose message arrives but is not in the sum: the server must not believe its difference."""

    class Losing(FederatedCallback):
        """The channel forgets one client's update after it has been acknowledged."""

        def setup(self, trainer, pl_module, stage):
            """Between the channel and whoever listens to it."""
            channel = pl_module.channel
            send, close = channel.send, channel.close

            def sending(update):
                message = send(update)
                if update.client == 0:
                    self.lost = (update.index, update.vector.double())
                return message

            def closing(*arguments):
                aggregate = close(*arguments)
                index, vector = self.lost
                total = aggregate.mean * aggregate.weight
                total[index] -= vector
                aggregate.weight[index] -= 1
                aggregate.mean.copy_(torch.where(aggregate.weight > 0, total / aggregate.weight.clamp(min=1), total))
                return aggregate

            channel.send, channel.close = sending, closing

    _, found, _ = attacked(RollingModel(), callbacks=(Losing(),))
    assert "by the weights that the server knows" in found[0].result.reason


def test_partial_participation():
    """Coordinates of clients that come or go are left alone; the rest is exact."""
    sizes, capacities = (4,) * 8, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]
    for seed in range(3):
        server, found, _ = attacked(RollingModel(), sizes, capacities, participation=0.75, seed=seed)
        if isinstance(server._isolated, IsolatedUpdate):
            assert server._isolation_error <= 1e-10
        else:
            assert isinstance(found[0].result, NotAvailable)


def test_widths_that_nobody_has_are_refused():
    """With those there are."""
    with pytest.raises(UserError, match=r"1, 0\.5, 0\.25"):
        attacked(RollingModel(target=0.3))


def test_two_processes_find_what_one_finds(tmp_path):
    """Clients are trained in two processes; the sums, and so the images, are the same."""
    on_two_processes(SCRIPTS / "malicious_script.py", tmp_path)
    two, one = json.loads((tmp_path / "2.json").read_text()), outcome(1)
    assert (one["world"], two["world"]) == (1, 2)
    assert two["keys"] == one["keys"]
    assert two["recovered"] == one["recovered"] >= 5
    torch.testing.assert_close(torch.tensor(two["change"]), torch.tensor(one["change"]), rtol=1e-9, atol=1e-12)
    assert two["error"] <= 1e-10


@pytest.mark.real_data
def test_published_network_on_mnist():
    """784-5000-10, cohorts 1, 1/2 and 1/4, five images: all come back, far above what could be guessed."""
    root = os.environ.get("RAMPART_DATA")
    if not root:
        pytest.skip("RAMPART_DATA names no folder with real datasets")
    data = MNIST(root=root, partition=Iid(3, samples=5), holdout=Holdout(0.0, 0.2, 0.1))
    _, found, _ = attacked(RollingModel(), data=data, hidden=5000, precision="32-true", optimizer=sgd(0.01))
    result = only(found)
    assert result.oracle.recovered == result.blind.recovered == 5
    assert result.strongest_null.similarity.pearson_mean < 0.9
