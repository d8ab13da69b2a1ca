"""Nasr et al.'s white-box attack over several rounds."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from attack_kit import (
    ChangedShadows,
    FixedShadows,
    area,
    batch_norm_knowledge,
    chance_bound,
    learning_toy,
    memorised_toy,
    random_model,
    swapped,
)
from torch.nn.functional import cross_entropy

from app.attacks.membership import nasr
from app.attacks.membership.nasr import Nasr, NasrNet, NasrSettings, observe, train_nasr, weight_gradients
from app.attacks.model_query import last_linear
from app.attacks.models import Shadow
from app.common.errors import UserError

SMALL = {"kernels": 4}


def attacked(case, target=None, source=None, **options):
    """Area under the curve with few kernels."""
    return case.auc(Nasr(**SMALL, **options), target, source=source)


@cache
def usual():
    """Area under the curve on the model in the middle of its training."""
    return attacked(learning_toy())


@pytest.mark.parametrize("snapshot", [0, 2])
def test_last_layer_gradients_are_those_of_autograd(snapshot):
    """Oracle 9: by the bias p - onehot, by the weight its outer product with the layer's inputs."""
    case, samples = learning_toy(), np.arange(12)
    seen = case.query.activations(case.target, samples, snapshot)
    gradients = weight_gradients(torch.from_numpy(seen.bias_gradients), torch.from_numpy(seen.inputs))
    net = case.query.network(case.target.snapshots[snapshot])
    layer = last_linear(net)
    for row, sample in enumerate(samples):
        pixels, label = case.knowledge.store.batch(torch.tensor([sample]))
        by_weight, by_bias = torch.autograd.grad(cross_entropy(net(pixels), label), [layer.weight, layer.bias])
        assert np.allclose(seen.bias_gradients[row], by_bias.numpy(), atol=1e-5)
        assert np.allclose(gradients[row].T.numpy(), by_weight.numpy(), atol=1e-5)


def test_bias_gradient_is_the_slope_of_the_loss():
    """Oracle 9 without autograd: moving one bias changes the loss by its gradient."""
    case = learning_toy()
    seen = case.query.activations(case.target, np.arange(5))
    step = 1e-5
    for coordinate in range(10):
        moved = replace(seen.responses, logits=seen.responses.logits + step * np.eye(10)[coordinate])
        slopes = (moved.losses - seen.responses.losses) / step
        assert np.allclose(slopes, seen.bias_gradients[:, coordinate], atol=1e-4)


def test_more_rounds_tell_no_less():
    """Oracle 9: three rounds find as much as the last one, within the interval."""
    case = learning_toy()
    last = case.target.only_last()
    assert usual() >= attacked(case, replace(last, key="last")) - chance_bound(case.truth) / 3
    assert usual() > 0.9


def test_scores_are_learnt_from_the_shadows_labels():
    """Oracle 9: no fixed rule such as a drop of the loss; shadows with swapped labels turn the scores round."""
    case = learning_toy()
    assert attacked(case, source=ChangedShadows(case.source, swapped)) == pytest.approx(1 - usual(), abs=0.05)


def test_columns_are_what_the_model_shows():
    """Inputs (sorted where asked), logits, ln(e^loss - 1), p - onehot and the label, at every snapshot."""
    case, samples = learning_toy(), np.arange(6)
    plain, aligned = (observe(case.query, case.target, samples, align) for align in (False, True))
    assert len(plain) == len(aligned) == 3
    for stage, rows in enumerate(plain):
        seen = case.query.activations(case.target, samples, stage)
        features = seen.inputs.shape[1]
        inputs, logits, losses, errors, labels = rows.double().split([features, 10, 1, 10, 10], dim=1)
        assert np.allclose(inputs, seen.inputs)
        assert np.allclose(logits, seen.responses.logits)
        assert np.allclose(losses.exp().log1p().flatten(), seen.responses.losses, atol=1e-5)
        assert np.allclose(errors, seen.bias_gradients)
        assert np.array_equal(labels.argmax(1), seen.responses.labels)
        assert torch.equal(aligned[stage][:, :features], rows[:, :features].sort(1, descending=True).values)
        assert torch.equal(aligned[stage][:, features:], rows[:, features:])


def test_kernels_are_a_convolution_over_the_classes():
    """A kernel of one row and all classes, moved over the features of the gradient matrix."""
    rows = torch.randn(6, 5 + 3 * 4 + 1)
    (encoder,) = NasrNet([rows], 4, NasrSettings(kernels=3)).encoders
    convolution = torch.nn.Conv2d(1, 3, (1, 4))
    convolution.weight.data = encoder.kernels.weight.data[:, None, None, :]
    convolution.bias.data = encoder.kernels.bias.data
    matrix = weight_gradients(torch.randn(6, 4), torch.randn(6, 5))
    assert matrix.shape == (6, 5, 4)
    expected = convolution(matrix[:, None]).squeeze(3).transpose(1, 2)
    assert torch.allclose(encoder.kernels(matrix), expected, atol=1e-6)


def test_kernels_act_on_a_factor_of_the_gradient():
    """Without dropout, the same values and slopes as by the whole gradient."""
    (encoder,) = NasrNet([torch.randn(6, 5 + 3 * 4 + 1)], 4, NasrSettings(kernels=3, dropout=0.0)).encoders
    errors, inputs = torch.randn(6, 4), torch.randn(6, 5)
    results = [encoder._filtered(errors, inputs), encoder.kernels(weight_gradients(errors, inputs))]
    assert torch.allclose(*results, atol=1e-6)
    slopes = [torch.autograd.grad(result.square().sum(), [*encoder.kernels.parameters()]) for result in results]
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*slopes, strict=True))


def branches(**settings):
    """A network over two snapshots of 5 features and 4 classes, and rows to read."""
    rows = [torch.randn(8, 5 + 3 * 4 + 1, generator=torch.Generator().manual_seed(number)) for number in range(2)]
    return NasrNet(rows, 4, NasrSettings(kernels=3, **settings)).eval(), rows


def test_size_of_the_network():
    """64 numbers per branch and snapshot, 192 as in MemDefense without the branch of the label."""
    assert branches()[0].head[0].in_features == 2 * 256
    net, _ = branches(label_branch=False)
    assert net.head[0].in_features == 2 * 192
    assert [layer.out_features for layer in net.head if isinstance(layer, torch.nn.Linear)] == [256, 128, 64, 1]


@pytest.mark.parametrize(("label_branch", "columns"), [(True, range(18)), (False, [*range(9), *range(10, 14)])])
def test_every_column_counts(label_branch, columns):
    """All of them, in every snapshot; without the branch of the label all but loss and label."""
    net, rows = branches(label_branch=label_branch)
    for snapshot in range(2):
        inputs = [one.clone().requires_grad_() for one in rows]
        net(*inputs).sum().backward()
        counts = inputs[snapshot].grad.abs().sum(0) > 0
        assert counts.nonzero().flatten().tolist() == list(columns)


def test_gradient_and_kernels_are_dropped_out_in_training_only():
    """Parts of the matrix (features x classes), and of what the kernels make of it."""
    net, rows = branches(dropout=0.5)
    assert torch.equal(net(*rows), net(*rows))
    net.train()
    assert not torch.equal(net(*rows), net(*rows))
    dropped = []
    net.encoders[0].dropout.register_forward_hook(lambda _, __, made: dropped.append((made.shape, made.eq(0).any())))
    net(*rows)
    assert dropped == [((8, 5, 4), True), ((8, 5 * 3), True)]


def test_network_trained_on_the_target_itself():
    """What the MemDefense evaluation does: half of the target's samples train, the other half is attacked."""
    case = memorised_toy()
    target = case.target.only_last()
    inside, outside = case.members, case.nonmembers
    settings = NasrSettings(kernels=4, label_branch=False, epochs=15, loss="mse")
    trained = train_nasr(case.query, [Shadow(target, inside[::2], outside[::2])], settings, seed=1)
    samples = np.concatenate([inside[1::2], outside[1::2]])
    assert area(trained.scores(target, samples), np.isin(samples, inside)) > 0.9


def test_targets_with_the_same_shadows_share_a_network(monkeypatch):
    """A client's upload and the global model are attacked alike; a shadow that plays the target needs another one."""
    case, samples, trained = memorised_toy(), np.arange(30), []
    real = nasr.train_nasr
    monkeypatch.setattr(nasr, "train_nasr", lambda *given: trained.append(given) or real(*given))
    attack = Nasr(**SMALL, epochs=1)
    whole = attack.scores(case.target, samples, case.context())
    upload = replace(case.target, key="upload", client=3)
    assert np.array_equal(attack.scores(upload, samples, case.context(upload)), whole)
    assert len(trained) == 1
    first = case.context().shadows("out")[0]
    attack.scores(first.model, samples, case.context().attacking(first))
    assert [len(given[1]) for given in trained] == [4, 3]


def test_examples_of_a_shadow_are_limited(monkeypatch):
    """No more rows per shadow than asked for, half of them members."""
    case, asked = memorised_toy(), []
    real = nasr.observe
    monkeypatch.setattr(nasr, "observe", lambda *given: asked.append(given[2]) or real(*given))
    Nasr(**SMALL, epochs=1, most=40).scores(case.target, np.arange(9), case.context())
    assert [len(samples) for samples in asked] == [40] * 4 + [9]
    shadow = case.context().shadows("out")[0]
    assert np.isin(asked[0], shadow.members).sum() == 20


@pytest.mark.parametrize("statistics", ["batch", "posthoc", "running"])
def test_networks_with_batch_norm_can_be_read(statistics):
    """One snapshot of a narrow client with shadows of the same width."""
    knowledge = batch_norm_knowledge(statistics)
    case = replace(memorised_toy(), query=nasr.ModelQuery(knowledge))
    target, shadow = (random_model(knowledge, key, rates=(0.5,)) for key in ("target", "shadow"))
    source = FixedShadows(Shadow(shadow, np.arange(50), np.arange(50, 100)))
    context = case.context(target, source)
    context.knowledge = knowledge
    scores = Nasr(**SMALL, epochs=1).scores(target, np.arange(100, 140), context)
    assert scores.shape == (40,)
    assert np.isfinite(scores).all()


def test_widths_that_change_between_rounds_are_refused():
    """The attack network of one width cannot read another."""
    knowledge = batch_norm_knowledge("running")
    case = replace(memorised_toy(), query=nasr.ModelQuery(knowledge))
    target = random_model(knowledge, "target", rates=(0.5, 1.0))
    shadow = Shadow(random_model(knowledge, "shadow", rates=(1.0, 1.0)), np.arange(50), np.arange(50, 100))
    with pytest.raises(UserError, match=r"widths 1, 1 in the rounds seen, another 0\.5, 1"):
        Nasr(**SMALL).scores(target, np.arange(9), case.context(target, FixedShadows(shadow)))
    given = [Shadow(model, np.arange(5), np.arange(5, 10)) for model in (shadow.model, target)]
    with pytest.raises(UserError, match="cannot read both"):
        train_nasr(case.query, given, NasrSettings(), seed=0)
    trained = train_nasr(case.query, given[:1], NasrSettings(kernels=1, epochs=1), seed=0)
    with pytest.raises(UserError, match="keep the clients' widths fixed"):
        trained.scores(shadow.model.only_last(), np.arange(9))


def test_no_shadow_left_is_refused():
    """The only shadow plays the target."""
    case = memorised_toy()
    one = case.context().shadows("out")[0]
    with pytest.raises(UserError, match="no shadow model to learn from"):
        Nasr(**SMALL).scores(one.model, one.samples, case.context(source=FixedShadows(one)).attacking(one))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kernels", 0),
        ("epochs", 0),
        ("batch_size", 0),
        ("patience", 0),
        ("most", 1),
        ("lr", -1.0),
        ("dropout", 1.0),
        ("weight_decay", -0.1),
        ("loss", "hinge"),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    """Every option that cannot work is named."""
    with pytest.raises(UserError, match=f"{option} of nasr"):
        Nasr(**{option: value})
