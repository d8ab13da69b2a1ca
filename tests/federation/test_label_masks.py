"""HeteroFL's label masks: clients neither train nor send the classifier rows of classes they do not have."""

from functools import partial

import numpy as np
import pytest
import torch
from federation_kit import FOUR_PIXELS, TINY_MLP, Blobs, Recorder, initial, run, sgd, small_federation
from torch.nn.functional import cross_entropy

from app.federation.client import ClientModule
from app.federation.local_training import LocalTraining
from app.federation.parameters import ParameterSpace
from app.federation.private_coordinates import LabelRows
from app.models import CNN, MLP, AlexNet, DataShape, LeNet5, ResNet18

COLOUR = DataShape(3, 16, 16, 5)
NETS = {
    "mlp": MLP(COLOUR, (12, 8)),
    "linear": MLP(COLOUR, ()),
    "as wide as classes": MLP(COLOUR, (5, 5)),
    "cnn": CNN(COLOUR, u=5),
    "lenet": LeNet5(COLOUR),
    "alexnet": AlexNet(DataShape(3, 8, 8, 5)),
    "resnet": ResNet18(COLOUR, base=4),
}
MASKED = LocalTraining(batch_size=4, optimizer=sgd(0.3), mask_labels=True)


class Sorted(Blobs):
    """Blobs dealt by label, so that clients miss classes."""

    def load(self):
        """The pool in the order of its labels."""
        raw = super().load()
        order = np.argsort(raw.labels.numpy(), kind="stable")
        object.__setattr__(raw, "images", raw.images[order])
        object.__setattr__(raw, "labels", raw.labels[order])
        return raw


@pytest.mark.parametrize("name", NETS)
def test_rows_are_those_of_the_classifier(name):
    """Without class 1 and 3, exactly their rows of the last weight and bias stay at home."""
    net = NETS[name]
    space = ParameterSpace(net)
    owned = torch.tensor([True, False, True, False, True])
    kept = LabelRows(space, 5).uploaded(torch.arange(space.size), owned)
    layer = [module for module in net.modules() if isinstance(module, torch.nn.Linear)][-1]
    expected = torch.ones(space.size, dtype=torch.bool)
    for parameter in (layer.weight, layer.bias):
        [block] = [block for block in space.blocks if net.get_parameter(block.name) is parameter]
        expected[block.coordinates] = owned.repeat_interleave(parameter.numel() // 5)
    assert torch.equal(kept, expected)


def test_masked_loss():
    """Absent classes count with logit 0; their rows get no gradient."""
    torch.manual_seed(0)
    client = ClientModule(MLP(FOUR_PIXELS, ()), LocalTraining(mask_labels=True), classes=3)
    client.owned.copy_(torch.tensor([True, False, True]))
    images, labels = torch.randn(5, 1, 2, 2), torch.tensor([0, 2, 2, 0, 0])
    loss = client.training_step((images, labels))
    logits = client(images)
    logits[:, 1] = 0
    assert loss.item() == pytest.approx(cross_entropy(logits, labels).item(), abs=1e-7)
    loss.backward()
    weight = next(parameter for parameter in client.net.parameters() if parameter.dim() == 2)
    assert not weight.grad[1].any()
    assert bool(weight.grad[[0, 2]].any())


@pytest.mark.parametrize("capacities", [[1.0], [1.0, 0.5, 0.5]])
def test_rows_are_averaged_over_their_owners(capacities):
    """Every row of the classifier is the mean over the clients that have the class; the others are untouched."""
    recorder = Recorder()
    federation = small_federation(TINY_MLP, local=MASKED, capacities=capacities)
    data = Sorted((6, 5, 9))
    end = run(federation, data, rounds=1, callbacks=[recorder])
    total, count = torch.zeros_like(end), torch.zeros_like(end)
    missing = 0
    for client, vector, index in recorder.updates:
        owned = set(data.store.labels[data.train_indices(client)].tolist())
        rows = LabelRows(federation.space, 3)._label[index]
        assert set(rows.tolist()) - {3} == owned
        missing += 3 - len(owned)
        total[index] += vector
        count[index] += 1
    assert missing > 0, "otherwise this shows nothing"
    expected = torch.where(count > 0, total / count.clamp(min=1), recorder.started[0])
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-12)


def test_a_class_nobody_has_keeps_its_row():
    """Two clients of classes 0 and 1 only: row 2 stays as it was."""
    data = Sorted((5, 5, 10))
    federation = small_federation(TINY_MLP, local=MASKED, participation=0.5, seed=3)
    recorder = Recorder()
    start = initial(small_federation(TINY_MLP, local=MASKED, seed=3), Sorted((5, 5, 10)))
    end = run(federation, data, rounds=1, callbacks=[recorder])
    taking = [client for client, _, _ in recorder.updates]
    present = set(torch.cat([data.store.labels[data.train_indices(client)] for client in taking]).tolist())
    assert len(present) < 3, "otherwise this shows nothing"
    labels = LabelRows(federation.space, 3)._label
    for label in set(range(3)) - present:
        assert torch.equal(end[labels == label], start[labels == label])


def test_with_every_class_the_mask_changes_nothing():
    """Clients that have all classes train and send what they would without it."""
    plain = LocalTraining(batch_size=4, optimizer=sgd(0.3))
    data = partial(Blobs, (20, 30, 25))
    masked, unmasked = (run(small_federation(TINY_MLP, local=local), data()) for local in (MASKED, plain))
    assert torch.equal(masked, unmasked)


def test_executors_agree_on_masks():
    """Each client its own mask, also in one vectorised call."""
    settings = {"local": MASKED, "capacities": [1.0, 0.5, 0.5], "workers": 2}
    outcomes = [
        run(small_federation(TINY_MLP, executor=executor, **settings), Sorted((6, 5, 9)))
        for executor in ("sequence", "threads", "vectorised")
    ]
    for other in outcomes[1:]:
        torch.testing.assert_close(outcomes[0], other, rtol=0, atol=1e-11)
