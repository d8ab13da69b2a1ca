"""FedBN: batch norm stays on the client, and takes away what its inputs are shifted and scaled by."""

import pytest
import torch
from federation_kit import FOUR_PIXELS, Blobs, Recorder, Reports, run, small_federation, whole_batch
from torch import nn

from app.common.errors import UserError
from app.federation.all_clients import AllClients
from app.federation.evaluation import Evaluation, score
from app.models.base import LayerAxes, ScalableNet
from callbacks import DPFedAvg
from datamodules import RawData

SCALE, SHIFT = 0.4, 0.3
NORM, BODY = ["norm.*"], ["classifier.*"]
SIZE = 24


class NormFirst(ScalableNet):
    """Batch norm of the image itself, with hardly any term beside its variance, and softmax regression."""

    def __init__(self, shape, rate=1.0):
        super().__init__()
        self.save_hyperparameters()
        self.norm = nn.BatchNorm2d(shape.channels, eps=1e-12)
        self.classifier = nn.Linear(shape.channels * shape.height * shape.width, shape.classes)

    def layer_axes(self):
        """Nothing is cut."""
        return {"norm": LayerAxes(), "classifier": LayerAxes()}

    def forward(self, images):
        """Logits."""
        return self.classifier(self.norm(images).flatten(1))


class Shifted(Blobs):
    """Two clients with the same pictures, but that those of the second are paler and brighter."""

    def __init__(self, scale=SCALE, shift=SHIFT, **settings):
        super().__init__((SIZE, SIZE), **settings)
        self.scale, self.shift = scale, shift

    def load(self):
        """The second half of the pool is made of the first."""
        raw = super().load()
        pictures, labels = raw.images[:SIZE].double(), raw.labels[:SIZE]
        shifted = torch.cat([pictures, self.scale * pictures + self.shift]).float()
        rest = (raw.test_images, raw.test_labels, raw.class_names, raw.mean, raw.std)
        return RawData(shifted, torch.cat([labels, labels]), *rest)


def trained(personal, data=None, rounds=4, recorders=(), **settings):
    """A federation of two clients with full batches, and the server's last vector."""
    federation = small_federation(NormFirst, personal=personal, local=whole_batch(epochs=2), **settings)
    return federation, run(federation, data or Shifted(), rounds, recorders)


def test_the_shared_part_does_not_see_the_shift():
    """With FedBN the shared weights are those of clients without any shift; with FedAvg on the norms, too, they are
    not, since both clients must use one scale and one shift after the norm, but learn of the same normalised images.
    """
    federation, shifted = trained(NORM)
    _, plain = trained(NORM, Shifted(1.0, 0.0))
    body = federation.space.matching(BODY)
    torch.testing.assert_close(shifted[body], plain[body], rtol=1e-5, atol=1e-6)


def test_running_statistics_are_the_clients_own():
    """After s steps on one batch: a share 1 - 0.9^s of the batch's mean and unbiased variance, 0.9^s of 0 and 1."""
    federation, _ = trained(NORM)
    names = [block.name for block in federation.space.blocks if block.name.startswith("norm")]
    assert names == ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    left = 0.9 ** (2 * 4)
    for client in (0, 1):
        pixels = federation.data.store.batch(federation.data.train_indices(client), torch.float64)[0].flatten()
        mean, variance = federation.personal.of(client)[2:].tolist()
        assert mean == pytest.approx((1 - left) * float(pixels.mean()), rel=1e-9)
        assert variance == pytest.approx(left + (1 - left) * float(pixels.var()), rel=1e-9)


def test_no_upload_holds_a_norm():
    """Neither its weights nor its statistics, and the server's copy never moves."""
    recorder = Recorder()
    federation, end = trained(NORM, recorders=[recorder])
    body = federation.space.matching(BODY).nonzero().flatten()
    assert recorder.messages
    assert all(torch.equal(message.index, body) for message in recorder.messages)
    assert end[~federation.space.matching(BODY)].tolist() == [1.0, 0.0, 0.0, 1.0]


class Look(Recorder):
    """Scores of all clients when the last round is over."""

    def on_train_epoch_end(self, trainer, pl_module):
        """While the executor lives."""
        self.scores = AllClients(pl_module, pl_module.plan.round).scores()


def test_clients_are_evaluated_with_their_own_norm():
    """The server's body between the client's own norm, put together by hand; with another's norm losses differ."""
    look = Look()
    federation, end = trained(NORM, Shifted(nonmembers=0.25), recorders=[look])
    assert len(look.scores) == 2
    for local in look.scores:
        net, other = NormFirst(FOUR_PIXELS).double(), NormFirst(FOUR_PIXELS).double()
        for made, client in ((net, local.client), (other, 1 - local.client)):
            vector = end.clone()
            vector[federation.personal.mask] = federation.personal.of(client)
            federation.space.write(made, vector)
        store, test = federation.data.store, federation.data.test_indices(local.client)
        assert local.score.loss == pytest.approx(score(net, store, test, 128).loss, abs=1e-9)
        assert abs(local.score.loss - score(other, store, test, 128).loss) > 1e-3


@pytest.mark.parametrize(("personal", "evaluated"), [(NORM, False), (None, True), (BODY, True)])
def test_a_server_without_statistics_is_not_evaluated(personal, evaluated):
    """Its running statistics are those of an untrained network; clients are evaluated all the same."""
    reports = Reports()
    federation, _ = trained(personal, recorders=[reports], evaluation=Evaluation())
    assert bool(reports.rounds[-1].server.total) == evaluated
    assert bool(federation.score_of_members().total) == evaluated
    assert all(0 <= client.trained_common <= 1 for client in reports.rounds[-1].clients)


def test_statistics_that_stay_do_not_hinder_client_level_privacy():
    """Only running statistics that are sent clash with DP-FedAvg."""
    trained(NORM, rounds=1, recorders=[DPFedAvg(noise=1.0)])
    with pytest.raises(UserError, match="running statistics"):
        trained(None, rounds=1, recorders=[DPFedAvg(noise=1.0)])
