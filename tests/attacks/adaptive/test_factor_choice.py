"""Which factors a client uses, told from its upload: planted choices, closed forms, and what must not change."""

from dataclasses import replace

import pytest
import torch
from attack_kit import area
from hidden_choice_kit import FACTORS, LAYER, SHAPE, built, plant, support, trained_upload

from app.attacks.adaptive.averaging import Averaging
from app.attacks.adaptive.base import ObservedModel
from app.attacks.adaptive.catalogue import called_for, unmatched
from app.attacks.adaptive.factor_choice import GAP, FactorChoice, FactorLayout, estimate
from app.attacks.model_query import last_linear
from app.common.errors import UserError
from app.federation.parameters import ParameterSpace
from app.models import MLP
from app.models.ibp import prior_means
from app.privacy.compatibility import clashes
from app.privacy.traits import Component


def planted(used, **settings):
    """A network that uses these factors."""
    net = built(**settings)
    plant(net, used)
    return net


def answers(net, vector):
    """Logits of a vector for a few images."""
    other = built()
    ParameterSpace(other).write(other, vector)
    images = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return other.eval()(images)


@pytest.mark.parametrize("client", range(4))
def test_planted_support_is_recovered_and_so_is_the_model(client):
    """Hard gates: the ranking is perfect, and the rebuilt model answers bit for bit as the client's does."""
    net = planted(support(client))
    observed, own = trained_upload(net)
    layout = FactorLayout.of(net)
    assert area(layout.moved([observed]).numpy(), support(client).numpy()) == 1
    (found,) = FactorChoice(layout).applied([observed])
    assert torch.equal(answers(net, found.after), answers(net, own))
    assert not torch.equal(answers(net, observed.after), answers(net, own)), "b = 1 is another model"
    assert torch.equal(layout.probabilities(layout.chosen(found)) > 0.5, support(client))


def test_more_factors_than_the_prior_expects_are_recovered():
    """Eleven of twelve, where the prior expects seven."""
    used = torch.arange(FACTORS) != 4
    net = planted(used)
    observed, own = trained_upload(net)
    (found,) = FactorChoice().fitted(net).applied([observed])
    assert torch.equal(answers(net, found.after), answers(net, own))


def test_an_upload_that_did_not_move_tells_nothing():
    """Learning rate 0: the model stays as it was seen."""
    net = planted(support(0))
    observed, _ = trained_upload(net, lr=0.0)
    layout = FactorLayout.of(net)
    assert area(layout.moved([observed]).numpy(), support(0).numpy()) == 0.5
    (found,) = FactorChoice(layout).applied([observed])
    assert torch.equal(found.after, observed.after)


def test_everything_in_use_is_read_as_everything():
    """Where the prior expects all factors and all move alike, the guess is b = 1, nearly."""
    net = planted(torch.ones(FACTORS, dtype=torch.bool), alpha=1e5)
    observed, own = trained_upload(net)
    layout = FactorLayout.of(net)
    (found,) = FactorChoice(layout).applied([observed])
    assert layout.probabilities(layout.chosen(found)).min() > 0.99
    assert torch.allclose(answers(net, found.after), answers(net, observed.after), atol=0.01)
    assert torch.equal(answers(net, observed.after), answers(net, own))


def test_movement_by_hand():
    """Length of a column of left plus length of a row of right; strength, bias and other layers do not count."""
    net = built()
    layout, space = FactorLayout.of(net), ParameterSpace(net)
    change = {block.name: torch.zeros(block.shape) for block in space.blocks}
    change[f"{LAYER}.left"][:2, 3] = torch.tensor([3.0, 4.0])
    change[f"{LAYER}.right"][3, 5], change[f"{LAYER}.right"][7, 1:3] = 2.0, torch.tensor([-6.0, 8.0])
    change[f"{LAYER}.strength"][1] = change["inner.layers.classifier.weight"][0, 2] = 9.0
    flat, coordinates = torch.cat([part.reshape(-1) for part in change.values()]), torch.arange(space.size)
    everything = torch.ones(space.size, dtype=torch.bool)
    observed = ObservedModel(1, 1.0, coordinates, torch.ones(space.size), 1 + flat, everything, space.trainable)
    expected = torch.zeros(FACTORS, dtype=torch.float64)
    expected[3], expected[7] = 7, 10
    assert torch.allclose(layout.moved([observed]), expected)
    assert torch.allclose(layout.moved([observed, observed]), 2 * expected)
    unheard = replace(observed, arrived=~everything)
    assert not layout.moved([unheard]).any(), "what did not arrive did not move"


def test_the_guess_is_the_prior_times_movement():
    """Posterior odds: those of the prior, times movement over its mean, within the bounds of a choice."""
    (layer,) = FactorLayout.of(built()).layers
    moved = torch.linspace(1, 3, FACTORS, dtype=torch.float64)
    prior = prior_means(float(FACTORS), FACTORS).double()
    odds = prior / (1 - prior) * moved / moved.mean()
    found = FactorLayout((layer,), 0).probabilities(estimate(layer, moved))
    assert torch.allclose(found, odds / (1 + odds))
    assert torch.equal(estimate(layer, 8 * moved), estimate(layer, moved))
    sure = replace(layer, alpha=1e9)
    assert estimate(sure, moved).max() == layer.used


def test_only_a_wide_gap_switches_factors_off():
    """Beyond GAP, on and off for certain; below it, probabilities in between."""
    (layer,) = FactorLayout.of(built()).layers
    moved = torch.ones(FACTORS, dtype=torch.float64)
    moved[[0, 5, 6]] = 1.01 * GAP
    hard, soft = estimate(layer, moved), estimate(layer, moved.clamp(max=0.99 * GAP))
    assert hard.eq(layer.used).nonzero().flatten().tolist() == [0, 5, 6]
    assert hard.eq(layer.unused).sum() == FACTORS - 3
    assert soft.max() < layer.used
    moved[1] = 0.0
    assert estimate(layer, moved.clamp(max=2))[1] == layer.unused, "a factor that never moved is off"


def test_rounds_before_count_and_later_ones_do_not():
    """Every entry is what the attacker knew by then."""
    net = built()
    seen = [trained_upload(net, seed=seed, round_=seed)[0] for seed in (1, 2)]
    layout, choice = FactorLayout.of(net), FactorChoice().fitted(net)
    both, alone = choice.applied(seen), [choice.applied([one])[0] for one in seen]
    assert torch.equal(both[0].after, alone[0].after)
    assert not torch.equal(both[1].after, alone[1].after)
    total = estimate(layout.layers[0], layout.moved(seen[:1]) + layout.moved(seen[1:]))
    assert torch.equal(layout.chosen(both[1]).float(), total.float())
    assert [one.round for one in both] == [1, 2]


def test_other_networks_are_left_alone():
    """Without factors, or before the network is known, nothing changes."""
    net = built()
    observed, _ = trained_upload(net)
    plain = FactorChoice().fitted(MLP(SHAPE))
    assert FactorLayout.of(MLP(SHAPE)).layers == ()
    for choice in (FactorChoice(), plain):
        assert choice.applied([observed])[0] is observed
    assert Averaging().fitted(net).applied([]) == []


def test_a_recovered_choice_survives_averaging():
    """Choice coordinates never arrive, so that there is nothing to average."""
    net = planted(support(2))
    seen = [trained_upload(net, seed=seed, round_=seed)[0] for seed in (1, 2)]
    recovered = FactorChoice().fitted(net).applied(seen)
    averaged, layout = Averaging().applied(recovered), FactorLayout.of(net)
    assert torch.equal(layout.chosen(averaged[-1]), layout.chosen(recovered[-1]))
    assert not torch.equal(averaged[-1].after, recovered[-1].after)


def test_a_hidden_choice_calls_for_it():
    """On uploads, after refilling and before averaging; in the global model there is nobody's own choice."""

    def names(*traits, kind="uploads"):
        return ["+".join(one.name for one in each) for each in called_for(traits, kind)]

    assert names("hidden-choice") == ["recovered"]
    assert names("hidden-choice", kind="global") == []
    assert names("hidden-choice", "own-noise", "pruned-uploads")[-1] == "refilled+recovered+averaged"
    hidden = [Component("Factorised", frozenset({"hidden-choice"}))]
    assert unmatched(hidden, [], "uploads") == ["Factorised"]
    assert unmatched(hidden, [FactorChoice()], "uploads") == unmatched(hidden, [], "global") == []


def test_channels_hide_what_uploads_show():
    """A remark, and no obstacle."""
    parts = [Component("a private choice", frozenset({"hidden-choice"})), Component("Masks", frozenset({"channel"}), 0)]
    (clash,) = clashes(parts)
    assert (clash.rule.code, clash.rule.severity) == ("channel-hidden-choice", "note")
    assert clash.problem.cause == "a private choice under Masks"


def test_the_white_box_attack_reads_the_classifier():
    """A factorised hidden layer is no obstacle; a factorised classifier is one, with a reason."""
    net = built()
    assert last_linear(net) is net.inner.layers.classifier
    with pytest.raises(UserError, match="factorised last layer"):
        last_linear(built(factors={"layers.classifier": 4}))
