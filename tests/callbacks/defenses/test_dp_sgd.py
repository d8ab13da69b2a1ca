"""DP-SGD in a federation: equal to plain training without noise, useless with too much, and told apart from it."""

from functools import cache, partial

import pytest
import torch
from federation_kit import FOUR_PIXELS, PICTURES, TINY_MLP, Blobs, Reports, initial, run, sgd, small_federation

from app.common.errors import UserError
from app.common.seeding import derive_bytes
from app.federation.hooks import FederatedCallback
from app.federation.local_training import LocalTraining
from app.models import CNN, MLP
from app.privacy.noise import NoiseStream
from callbacks.defenses.dp_sgd import DPSGD
from datamodules import CropFlip

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:DPSGD. accounting assumes")

INFINITE = float("inf")
METHODS = ("ghost", "hooks", "ew")
LOCAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2, momentum=0.5))
WHOLE_SETS = LocalTraining(batch_size=100, epochs=3, optimizer=sgd(0.2))
PROXIMAL = LocalTraining(batch_size=4, epochs=2, optimizer=sgd(0.2), proximal=0.7)
GROUPS = partial(CNN, u=8, norm="group", channels_per_group=4)
HALVES = {"capacities": [1.0, 0.5, 0.5]}


def harmless(**settings):
    """Private in form, plain in effect."""
    return DPSGD(**{"noise": 0.0, "clip": INFINITE, "sampling": "shuffled", **settings})


@cache
def plain_end(net, local, *defenses, picture=FOUR_PIXELS, halves=False):
    """The end of two rounds without privacy."""
    federation = small_federation(net, local=local, **(HALVES if halves else {}))
    return run(federation, Blobs(shape=picture), 2, [defense() for defense in defenses])


@pytest.mark.parametrize(
    ("method", "executor"), [*((method, "threads") for method in METHODS), ("ghost", "sequence"), ("hooks", "auto")]
)
def test_without_noise_and_clipping_it_is_plain_training(method, executor):
    """Same batches, same steps, several widths, several parts per batch; every way of clipping on threads."""
    federation = small_federation(GROUPS, local=LOCAL, **HALVES, executor=executor, workers=2)
    found = run(federation, Blobs(shape=PICTURES), 2, [harmless(clipping=method, physical_batch=3)])
    plain = plain_end(GROUPS, LOCAL, picture=PICTURES, halves=True)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_poisson_sampling_of_whole_sets_is_full_batch_training(method):
    """With one batch per epoch every sample is in it for sure, and the expected batch is the whole set."""
    defense = harmless(clipping=method, sampling="poisson")
    found = run(small_federation(TINY_MLP, local=WHOLE_SETS), Blobs(), 2, [defense])
    torch.testing.assert_close(found, plain_end(TINY_MLP, WHOLE_SETS), rtol=0, atol=1e-13)


class Ridge(FederatedCallback):
    """A penalty that does not depend on data."""

    def client_penalty(self, federation, client):
        """Half the squared norm, weighted."""
        return 0.05 * sum(parameter.square().sum() for parameter in client.net.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_penalties_are_those_of_plain_training(method):
    """FedProx's proximal term and a callback's penalty, on either side of DPSGD in the stack."""
    plain = plain_end(TINY_MLP, PROXIMAL, Ridge)
    for stack in ([Ridge(), harmless(clipping=method)], [harmless(clipping=method), Ridge()]):
        found = run(small_federation(TINY_MLP, local=PROXIMAL), Blobs(), 2, stack)
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-13)
    assert not torch.allclose(plain_end(TINY_MLP, PROXIMAL), plain, atol=1e-3), "the penalty must matter"


class Doubled(FederatedCallback):
    """A loss hook that depends on the logits."""

    def client_loss(self, federation, client, batch, logits, loss):
        """Some pull towards small logits."""
        return 2 * loss + 0.1 * logits.square().sum(1).mean()


@pytest.mark.parametrize("method", METHODS)
def test_losses_of_other_callbacks_are_clipped_with_the_rest(method):
    """Whatever a callback makes of the loss, the samples' gradients are those of its terms."""
    found = run(small_federation(TINY_MLP, local=LOCAL), Blobs(), 2, [harmless(clipping=method), Doubled()])
    torch.testing.assert_close(found, plain_end(TINY_MLP, LOCAL, Doubled), rtol=0, atol=1e-13)


def test_dropout_masks_are_those_of_plain_training():
    """The network's own dropout is drawn as ever where batches are whole."""
    settings = {"net": partial(MLP, hidden=(16,), dropout=0.3), "local": LOCAL}
    plain, found = (run(small_federation(**settings), Blobs(), 2, stack) for stack in ([], [harmless()]))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-13)


def accuracy(*stack):
    """Server's accuracy on four classes after three rounds."""
    reports = Reports()
    local, data = LocalTraining(batch_size=20, optimizer=sgd(0.1)), Blobs((60, 60, 60), PICTURES, tests=100)
    run(small_federation(local=local), data, 3, [*stack, reports])
    return reports.rounds[-1].server.accuracy


def test_absurd_noise_destroys_what_plain_training_learns():
    """And moderate noise does not."""
    assert accuracy() > 0.95
    assert accuracy(DPSGD(noise=0.5)) > 0.65
    assert accuracy(DPSGD(noise=1000.0)) < 0.45


def test_the_noise_is_keyed_by_round_and_client():
    """Equal seeds give equal bits whatever the executor and the blocks; secret noise never repeats."""
    settings = {"net": TINY_MLP, "local": LOCAL, **HALVES}
    found = [
        run(small_federation(**settings, **how), Blobs(), 2, [DPSGD(noise=1.0)], precision="32-true")
        for how in ({}, {"executor": "threads", "workers": 3}, {"block_size": 1})
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    secret = [run(small_federation(**settings), Blobs(), 1, [DPSGD(noise=1.0, secret_noise=True)]) for _ in range(2)]
    assert not torch.allclose(secret[0], secret[1], atol=1e-3)


def test_two_clients_and_two_rounds_get_different_noise():
    """Beside so much noise gradients do not show: every update is noise alone."""

    class Uploads(FederatedCallback):
        """Keeps what clients changed."""

        changes: list

        def on_client_update(self, trainer, federation, update):
            """One change per client and round."""
            self.changes.append(update.vector - update.received)

    watch = Uploads()
    watch.changes = []
    run(small_federation(local=LOCAL), Blobs((8, 8)), 2, [DPSGD(noise=100.0), watch])
    first = watch.changes[0]
    for other in watch.changes[1:]:
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 0.9
        assert float(other.norm()) > 0.1


def test_a_poisson_step_divides_by_the_expected_batch():
    """One step by hand: a coin per sample, clipped gradients of those chosen, over 11 / 3 whoever was chosen."""
    local, data = LocalTraining(batch_size=4, steps=1, optimizer=sgd(0.5)), Blobs((11,))
    federation = small_federation(local=local, seed=4)
    start = initial(small_federation(local=local, seed=4), Blobs((11,)))
    end = run(federation, data, 1, [DPSGD(noise=0.0, clip=0.3)])
    chosen = NoiseStream(derive_bytes(4, "poisson", 0, 0)).coins(11, 1 / 3)
    images, labels = data.store.batch(data.train_indices(0)[chosen], torch.float64)
    assert len(labels) not in (0, 4), "what the test assumes"
    pixels = images.flatten(1)
    logits = pixels @ start[:12].view(3, 4).T + start[12:]
    errors = logits.softmax(1) - torch.nn.functional.one_hot(labels, 3)
    gradients = torch.cat([torch.einsum("ni,nj->nij", errors, pixels).flatten(1), errors], 1)
    factors = (0.3 / (gradients.norm(dim=1) + 1e-6)).clamp(max=1)
    assert factors.min() < 1
    torch.testing.assert_close(end, start - 0.5 * (factors @ gradients) / (11 / 3), rtol=0, atol=1e-12)


class Sizes(FederatedCallback):
    """Notes the length and the loss of every batch."""

    def __init__(self):
        self.seen, self.losses = [], []

    def on_client_start(self, trainer, federation, client):
        """Watch the steps."""
        step = client.take_step

        def watched(batch):
            self.seen.append(len(batch[1]))
            self.losses.append(step(batch))
            return self.losses[-1]

        client.take_step = watched


def test_poisson_batches_have_the_expected_length():
    """One coin of 1 / batches per sample and step; lengths vary, and some are empty where few are expected."""
    sizes, reports = Sizes(), Reports()
    local = LocalTraining(batch_size=2, epochs=20, optimizer=sgd(0.01))
    run(small_federation(local=local), Blobs((5,)), 4, [DPSGD(noise=0.1), sizes, reports])
    assert len(sizes.seen) == 4 * 20 * 3
    assert 0 in sizes.seen
    assert max(sizes.seen) > 2
    mean, spread = 5 / 3, (5 * (1 / 3) * (2 / 3) / len(sizes.seen)) ** 0.5
    assert abs(sum(sizes.seen) / len(sizes.seen) - mean) < 4 * spread
    last = [loss.item() for loss in sizes.losses[-60:] if loss.numel()]
    assert 30 < len(last) < 60
    assert reports.rounds[-1].clients[0].loss == pytest.approx(sum(last) / len(last)), "empty batches have no loss"


def test_a_client_whose_batches_are_all_empty_is_not_dropped():
    """Its update is noise, and counts like any other."""
    local, reports = LocalTraining(batch_size=1, steps=1, optimizer=sgd(0.01)), Reports()
    sizes, data = Sizes(), Blobs((6,) * 12, shape=PICTURES, augment=CropFlip(1))
    run(small_federation(TINY_MLP, local=local), data, 1, [DPSGD(noise=1.0), sizes, reports])
    assert 0 in sizes.seen
    assert not any(client.dropped for client in reports.rounds[0].clients)


@pytest.mark.parametrize("method", ["ghost", "hooks"])
def test_mixed_precision_runs(method):
    """Activations in bfloat16, gradients and noise in single precision."""
    settings = {"net": GROUPS, "local": LOCAL, **HALVES}
    mixed, full = (
        run(small_federation(**settings), Blobs(shape=PICTURES), 1, [harmless(clipping=method)], precision=precision)
        for precision in ("bf16-mixed", "32-true")
    )
    start = initial(small_federation(**settings), Blobs(shape=PICTURES), precision="32-true")
    assert mixed.dtype == torch.float32
    assert float((mixed - full).norm()) < 0.1 * float((full - start).norm())


WRONG = {
    "neither": ({}, "neither a budget nor noise"),
    "epsilon": ({"target_epsilon": -1.0}, r"target_epsilon is -1.0 \(DPSGD\)"),
    "noise": ({"noise": -0.5}, r"noise is -0.5 \(DPSGD\)"),
    "clip": ({"noise": 1.0, "clip": 0.0}, r"clip is 0.0 \(DPSGD\)"),
    "infinite clip": ({"noise": 1.0, "clip": INFINITE}, "clip of DPSGD is infinite"),
    "delta": ({"noise": 1.0, "delta": 0.1}, "delta of DPSGD is 0.1, and the largest client has 11 samples"),
    "zero delta": ({"noise": 1.0, "delta": 0.0}, r"delta is 0.0 \(DPSGD\)"),
    "physical": ({"noise": 1.0, "physical_batch": 0}, r"physical_batch is 0 \(DPSGD\)"),
    "no round": ({"noise": 0.3, "target_epsilon": 0.1}, "costs more than epsilon 0.1"),
    "no noise": ({"noise": 0.0, "target_epsilon": 8.0}, "costs more than epsilon 8"),
    "tiny budget": ({"target_epsilon": 1e-9}, "no noise keeps epsilon within 1e-09"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_refused(case):
    """Each with what to do instead."""
    settings, message = WRONG[case]
    with pytest.raises(UserError, match=message) as caught:
        run(small_federation(), Blobs(), 1, [DPSGD(**settings)])
    assert all("--" in problem.remedy for problem in caught.value.problems)


def test_all_that_is_wrong_is_told_at_once():
    """Numbers out of range; then all of the defense, of local training and of the trainer, batch norm only once."""
    local = LocalTraining(batch_size=4, clip_norm=1.0)
    federation = small_federation(partial(CNN, u=4), local=local)
    with pytest.raises(UserError) as caught:
        run(federation, Blobs(shape=PICTURES), 1, [DPSGD(noise=-1.0, clip=-2.0, delta=2.0)])
    assert [problem.cause.split()[0][16:] for problem in caught.value.problems] == ["delta", "noise", "clip"]
    federation = small_federation(partial(CNN, u=4), local=local)
    with pytest.raises(UserError) as caught:
        run(federation, Blobs(shape=PICTURES), 1, [DPSGD(noise=1.0, clip=INFINITE, delta=0.9, clipping="ew")],
            precision="bf16-mixed")  # fmt: skip
    text = str(caught.value)
    for part in ("clip of", "delta of", "local.clip_norm is 1.0", "precision bf16-mixed", "batch norm"):
        assert part in text, part
    assert len(caught.value.problems) == 5
    assert "--model.net.norm group" in text


def test_layers_that_cannot_be_clipped_are_refused(monkeypatch):
    """By name, with the way that takes most layers."""
    monkeypatch.setattr("callbacks.defenses.dp_sgd.unsupported_layers", lambda net, method: ["body.0 (Odd)"])
    with pytest.raises(UserError, match=r"body.0 \(Odd\)(?s:.*)clipping hooks"):
        run(small_federation(), Blobs(), 1, [DPSGD(noise=1.0)])


def test_vectorised_execution_is_refused_and_auto_avoids_it():
    """Clients are clipped one by one."""
    with pytest.raises(UserError, match="DPSGD acts on clients one by one"):
        run(small_federation(executor="vectorised"), Blobs(), 1, [DPSGD(noise=1.0)])


def test_shuffled_batches_are_warned_of_and_nominal():
    """Epsilon assumes Poisson sampling."""
    defense, federation = DPSGD(noise=1.0, sampling="shuffled"), small_federation()
    with pytest.warns(UserWarning, match="accounting assumes Poisson sampling"):
        run(federation, Blobs(), 1, [defense])
    assert defense.statement(federation).nominal
    assert "shuffled" in defense.statement(federation).sampling
