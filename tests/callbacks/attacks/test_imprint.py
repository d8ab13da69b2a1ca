"""Imprint attacks on federations of convolutional networks: images that are alone in a bin come back exactly."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import Recorder, make_trainer, sgd, small_federation
from malicious_kit import COHORTS, Noise, attacked, only
from torch.optim import Adam
from tripwire_kit import OFF

from app.attacks.reconstruction.active.imprint import Imprint, _smoothed
from app.federation.channels.base import Update
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.federation.submodels import Prefix
from app.metrics.membership import NotAvailable
from app.models import CNN
from callbacks.attacks.malicious_server import MaliciousServer
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.secure_aggregation import SecureAggregation
from callbacks.defenses.tripwire import Tripwire

NET = partial(CNN, u=16, norm="none")
SIZES = (4, 4, 4)


def imprinted(attack, rounds=1, own=300, **settings):
    """A convolutional federation of three widths under the attack, whose server has images of its own."""
    settings.setdefault("data", Noise(SIZES, own=own))
    return attacked(attack, rounds=rounds, net=NET, method=Prefix(), **settings)


class Received(FederatedCallback):
    """Keeps the last model that every client got, and can add noise to what clients send."""

    def __init__(self, deviation=0.0):
        self.deviation, self.models, self.widths = deviation, {}, {}

    def on_client_update(self, trainer, federation, update: Update):
        """The inserted parameters come first."""
        self.models[update.client] = update.received.clone()
        draws = torch.Generator().manual_seed(update.client)
        update.vector += self.deviation * torch.randn(len(update.vector), generator=draws, dtype=torch.float64)


def bins_of(vector, images, bins, variant):
    """Which bin every image falls into, from the model that clients got; computed with NumPy alone."""
    pixels = images[0].numel()
    weight, bias = vector[: bins * pixels].numpy().reshape(bins, pixels), vector[bins * pixels :][:bins].numpy()
    reached = images.reshape(len(images), -1).numpy() @ weight.T + bias > 0
    assert variant == "cumulative" or (np.diff(reached.astype(int), axis=1) <= 0).all()
    return reached.sum(axis=1) - 1


@pytest.mark.parametrize("variant", ["sparse", "cumulative"])
@pytest.mark.parametrize("bins", [12, 400])
def test_exactly_the_images_that_are_alone_come_back(variant, bins):
    """Over the sum of three clients of unequal widths; an independent count says which, and pixels are exact."""
    received = Received()
    server, found, federation = imprinted(Imprint(bins, variant), callbacks=(received,))
    result, pairs = only(found), found[0].pairs
    assert len({tuple(model[: bins * 66].tolist()) for model in received.models.values()}) == 1
    place = bins_of(received.models[0], pairs.truth.images.double(), bins, variant)
    alone = np.array([(place == one).sum() == 1 for one in place])
    assert alone.mean() > (0.9 if bins == 400 else 0.2)
    exact = (pairs.truth.images - pairs.reconstructions).abs().flatten(1).amax(dim=1).numpy() < 1e-4
    assert exact[alone].all()
    assert not exact[~alone].any()
    assert result.beats_guessing
    assert server._isolation_error < 1e-9
    assert federation.inserted == {"imprint.measure.weight", "imprint.measure.bias", "imprint.spread.weight"}


def test_single_precision_is_enough():
    """As most federations train."""
    _, found, _ = imprinted(Imprint(400), precision="32-true")
    assert only(found).oracle.recovered >= 11
    assert float((found[0].pairs.truth.images - found[0].pairs.reconstructions).abs().nanmedian()) < 1e-4


def test_bins_are_equally_probable():
    """Of 1,000 normal measurements, as many are alone in 4,000 bins fitted to 500 others as if bins were exact."""
    draws = torch.Generator().manual_seed(0)
    own, new = (torch.randn(count, generator=draws, dtype=torch.float64) for count in (500, 1000))
    shares = torch.linspace(0, 1, 4001, dtype=torch.float64)

    def alone(sample):
        bins = torch.bucketize(new, sample.quantile(shares)[1:-1])
        return float((torch.bincount(bins)[bins] == 1).double().mean())

    expected = (1 - 1 / 4000) ** 999
    assert alone(_smoothed(own, 4000)) > expected - 0.03
    assert alone(own) < expected - 0.05


def test_a_server_without_images_spreads_bins_over_a_guess():
    """The measurement is taken for standard normal, of which these images fill a part only."""
    _, found, _ = imprinted(Imprint(2000), data=Noise(SIZES))
    assert only(found).oracle.recovered >= 10
    assert any("no images to fit bins to" in note for note in found[0].conditions.notes)


def test_honest_rounds_are_those_of_the_announced_network():
    """Bit for bit, before the attack and after it."""

    def model(rounds, *callbacks):
        local = LocalTraining(batch_size=2, optimizer=sgd(0.05, weight_decay=0.01))
        federation = small_federation(NET, capacities=COHORTS, local=local)
        make_trainer(rounds, "64-true", callbacks=callbacks, limit_val_batches=0).fit(federation, datamodule=Noise())
        return federation.space.read(federation.net)

    attacked_model, honest = model(3, MaliciousServer(Imprint(5), round=3)), model(2)
    inserted = 5 * 66
    assert torch.equal(attacked_model[inserted:], honest)
    assert not attacked_model[:inserted].any()


def test_masks_hand_over_the_sum():
    """Masks bound to the model, and clients that refuse to train on one twice: all is consistent."""
    recorder = Recorder()
    _, found, _ = imprinted(Imprint(400), callbacks=(SecureAggregation(allow_singletons=True), recorder))
    assert all(message.payload is None for message in recorder.messages)
    assert only(found).oracle.recovered >= 11


def test_several_local_steps_leave_sparse_bins_readable():
    """The first image that falls into a sparse bin moves it away from all others; cumulative bins drift into others."""
    local = LocalTraining(batch_size=1, epochs=3, optimizer=sgd(0.05))
    counts = {}
    for variant in ("sparse", "cumulative"):
        _, found, _ = imprinted(Imprint(400, variant), local=local)
        counts[variant] = only(found).oracle.recovered
    assert counts["sparse"] >= 11
    assert counts["cumulative"] <= 6


@pytest.mark.parametrize(
    "settings", [{"callbacks": (Received(deviation=1.0),)}, {"optimizer": sgd(0.0)}], ids=["noise", "untrained"]
)
def test_nothing_comes_back_where_nothing_is_told(settings):
    """Noise on uploads, or clients that do not move."""
    _, found, _ = imprinted(Imprint(400), **settings)
    result = only(found)
    assert result.oracle.recovered == 0
    assert result.oracle.pearson_mean < result.strongest_null.similarity.pearson_mean + 0.1


def test_other_images_do_not_count():
    """Candidates of one federation match nothing of another one."""
    _, mine, _ = imprinted(Imprint(400))
    _, other, _ = imprinted(Imprint(400), data=Noise((5, 3, 4), own=301))
    truth, read = mine[0].pairs.truth.images, other[0].pairs.reconstructions
    ids = {int(one) for one in mine[0].pairs.truth.samples} & {int(one) for one in other[0].pairs.truth.samples}
    shared = torch.tensor([int(one) in ids for one in mine[0].pairs.truth.samples])
    strangers = truth[~shared].flatten(1)
    distance = (strangers[:, None] - read.flatten(1)[None]).abs().amax(dim=2)
    assert not (distance < 0.05).any()


def test_adam_is_not_available():
    """Its steps tell signs only."""
    _, found, _ = imprinted(Imprint(20), optimizer=partial(Adam, lr=0.01))
    assert isinstance(found[0].result, NotAvailable)


@pytest.mark.parametrize(("gain", "least", "most"), [(None, 10, 12), (0.01, 0, 4)])
def test_memdefense_keeps_what_is_loud(gain, least, most):
    """It gives up what moves least: where the server makes its bins move most, their images come back."""
    _, found, _ = imprinted(Imprint(400, gain=gain), callbacks=(MemDefense(gamma=0.5),))
    for one in found:
        assert least <= one.result.oracle.recovered <= most


@pytest.mark.parametrize(
    ("check", "attack", "round_", "rounds", "caught"),
    [
        ({"architecture": True}, Imprint(400), None, 1, True),
        ({"gradient_suppression": 1e-5}, Imprint(400), None, 2, False),
        ({"distinct_rows": 0.9, "variation": 0.3, "gradient_suppression": 1e-5}, Imprint(400), 1, 1, False),
        ({"distinct_rows": 0.9}, Imprint(400, "cumulative"), 1, 1, True),
    ],
    ids=["architecture", "dormant", "active at once", "equal rows"],
)
def test_what_a_tripwire_notices(check, attack, round_, rounds, caught):
    """A layer that was not announced, or equal rows; a sparse layer looks like any other while it is in use."""
    tripwire = Tripwire(**{**OFF, **check})
    server = MaliciousServer(attack, round=round_)
    _, found, _ = imprinted(attack, rounds, server=server, callbacks=(tripwire,))
    assert isinstance(found[0].result, NotAvailable) == caught
    if not caught:
        assert only(found).oracle.recovered >= 8
