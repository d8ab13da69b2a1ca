"""Shadow federations of defenses that need reference sets: whose samples they are, and how long the shadows run."""

import numpy as np
import pytest
from run_kit import command

from app.attacks.shadows.federated import Repetition
from app.common.errors import UserError
from app.configuration import expand, run_parser
from app.federation.transcript import Transcript
from app.run import run_of
from callbacks.attacks.shadow_federations import ShadowFederations, _membership
from callbacks.defenses.adversarial_regularisation import AdversarialRegularisation
from datamodules.split import Membership

NONE = np.empty(0, dtype=np.int64)


def sets(population, sizes):
    """An attacked federation with so many population samples, and reference sets of such sizes."""
    starts = np.cumsum([1000, *sizes])
    reference = tuple(np.arange(start, start + size) for start, size in zip(starts, sizes, strict=False))
    members = tuple(np.arange(10 * client, 10 * client + 10) for client in range(len(sizes)))
    return Membership(members, (NONE,) * len(sizes), NONE, np.arange(100, 100 + population), NONE, reference)


def test_without_reference_sets_shadows_have_none():
    """They are what they were."""
    plain = sets(30, ())
    assert _membership(plain, [], 0).reference == ()


def test_they_come_from_the_population_in_equal_parts():
    """Each client at most what the attacked one keeps; nobody's own reference samples, no member, nothing twice."""
    attacked = sets(30, (4, 20, 6))
    shadow = _membership(attacked, attacked.members, seed=3)
    shadow.check_disjoint()
    assert [len(own) for own in shadow.reference] == [4, 10, 6]
    assert np.isin(np.concatenate(shadow.reference), attacked.population).all()
    assert all(np.array_equal(*pair) for pair in zip(shadow.members, attacked.members, strict=True))
    again, other = (_membership(attacked, attacked.members, seed) for seed in (3, 4))
    assert all(np.array_equal(*pair) for pair in zip(shadow.reference, again.reference, strict=True))
    assert not np.array_equal(shadow.reference[1], other.reference[1])


@pytest.mark.parametrize("population", [0, 2])
def test_too_little_population_data_is_refused(population):
    """The defense could not be repeated; the error says what to raise."""
    with pytest.raises(
        UserError, match=rf"{population} population samples for 3 clients(.|\n)*--data.holdout.population"
    ):
        _membership(sets(population, (4, 4, 4)), [NONE] * 3, seed=0)


def test_a_client_without_a_reference_set_needs_none():
    """Only those that have one in the attacked federation."""
    shadow = _membership(sets(2, (4, 4, 0)), [NONE] * 3, seed=0)
    assert [len(own) for own in shadow.reference] == [1, 1, 0]


def test_a_shadow_repeats_the_defenses_and_runs_to_the_end(tmp_path, monkeypatch):
    """Adversarial regularisation with reference samples of the attacker's; early stopping does not cut it short."""
    options = (
        *("--config", "adversarial-regularisation", "--defenses.adversarial_regularisation.width", "0.05"),
        *("--config", "stop-early", "--defenses.stop_early.patience", "1", "--defenses.stop_early.min_gain", "5"),
    )
    parser = run_parser()
    federation = run_of(parser, parser.parse_args(expand(command(tmp_path, "a", *options)))).prepared()
    attacked = federation.data.membership
    read = set()
    evidence = AdversarialRegularisation._evidence

    def spied(self, federation, client, size, draws):
        read.update(federation.data.reference_indices(client.client).tolist())
        return evidence(self, federation, client, size, draws)

    monkeypatch.setattr(AdversarialRegularisation, "_evidence", spied)
    members = np.array_split(attacked.shadow[:40], 4)
    ShadowFederations(federation).run([Repetition(0, members, (4,), tmp_path / "shadow")])
    assert Transcript(tmp_path / "shadow").rounds == [4]
    assert 0 < len(read) <= sum(map(len, attacked.reference))
    assert read <= set(attacked.population.tolist())
