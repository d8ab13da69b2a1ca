"""The papers' claims on the embedded digits: which attack finds more, and who leaks more, with intervals."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_kit import found
from federation_under_attack import audit_of, audited, trained
from torch.optim import Adam

from app.attacks.protocols.target_selection import TargetSelection, seen_models
from app.attacks.shadows.shadow_store import CentralShadows, ShadowSettings
from app.federation.local_training import LocalTraining
from app.metrics.bootstrap import Bootstrap
from app.metrics.membership import MembershipScores
from app.metrics.paired_tests import aligned, compare_auc
from app.models import MLP
from datamodules import Digits, Holdout, Iid

pytestmark = pytest.mark.slow

ROWS = Bootstrap(unit="row")
CLIENTS = 2
SHADOWS = 8
LOCAL = LocalTraining(epochs=10, batch_size=64, optimizer=partial(Adam, lr=6e-3))


def overfitted(folder, seed, rate=1.0):
    """Two clients that memorise their digits, three labels in ten of which are wrong."""
    data = Digits(partition=Iid(CLIENTS), holdout=Holdout(0.5, 0.2, 0.1), seed=seed, label_noise=0.3)
    net = partial(MLP, hidden=(128,))
    federation, transcript = trained(
        folder, rounds=2, data=data, local=LOCAL, net=net, seed=seed, capacities=[rate], keep=(1, [])
    )
    return audit_of(federation, transcript)


def uploads(audit, *names):
    """Scores of attacks on the uploads."""
    found = audited(audit, *names, targets=("uploads",), shadows=ShadowSettings(count=SHADOWS), calibrate=False)
    return {label.partition(".")[0]: finding.scores for label, finding in found.items()}


def pooled(runs):
    """Rows of several runs, each with clients of its own."""
    parts = [replace(scores, clients=scores.clients + CLIENTS * number) for number, scores in enumerate(runs)]
    return MembershipScores.joined(parts)


def least_gain(first, second, draws=300):
    """Lower end of the 95 % bootstrap interval of the difference of two TPRs at 1 % FPR, paired by sample."""
    (one, two), rng, gains = aligned(first, second), np.random.default_rng(0), []
    sides = [np.flatnonzero(one.members), np.flatnonzero(~one.members)]
    for _ in range(draws):
        rows = np.concatenate([rng.choice(side, len(side)) for side in sides])
        gains.append(found(one.scores[rows], one.members[rows]) - found(two.scores[rows], two.members[rows]))
    return np.quantile(gains, 0.025)


@pytest.fixture(scope="module")
def audits(tmp_path_factory):
    """Two runs whose clients train the whole network."""
    return [overfitted(tmp_path_factory.mktemp(f"wide{seed}"), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def wide(audits):
    """Attacks on them."""
    return [uploads(audit, "yeom", "lira-offline", "lira-online") for audit in audits]


def test_lira_finds_more_than_the_plain_loss(wide):
    """At 1 % FPR: LiRA online >= LiRA offline > Yeom, the differences paired by sample."""
    loss, offline, online = (pooled([run[name] for run in wide]) for name in ("yeom", "lira-offline", "lira-online"))
    assert least_gain(offline, loss) > 0
    assert least_gain(online, loss) > 0.1
    assert least_gain(online, offline) > 0


def test_larger_models_leak_more(wide, tmp_path):
    """The same clients and samples, the whole network against an eighth of its width."""
    small = uploads(overfitted(tmp_path, 0, rate=0.125), "yeom", "lira-online")
    for name, scores in small.items():
        difference = compare_auc(wide[0][name], scores, ROWS)
        assert difference.interval.low > 0.05, (name, difference)


def test_wide_clients_of_one_federation_leak_more(tmp_path):
    """Two wide and two narrow clients: their intervals do not meet."""
    data = Digits(partition=Iid(4), holdout=Holdout(0.5, 0.2, 0.1), label_noise=0.3)
    rates = [1.0, 1.0, 0.125, 0.125]
    net = partial(MLP, hidden=(128,))
    audit = audit_of(*trained(tmp_path, rounds=2, data=data, local=LOCAL, net=net, capacities=rates))
    found = audited(audit, "lira-online", targets=("uploads",), shadows=ShadowSettings(count=SHADOWS), calibrate=False)
    large, narrow = found["lira-online.uploads"].capacities
    assert large.leakage.auc.interval.low > narrow.leakage.auc.interval.high


def test_independent_recomputation(audits, wide):
    """Yeom's area and LiRA's ranking from saved logits, written straight from their definitions in numpy."""
    audit, scores = audits[0], wide[0]
    model = seen_models(audit, TargetSelection("uploads", 2, False), ())[0]
    samples = audit.audited[0]
    rows = np.isin(scores["yeom"].samples, samples)
    truth = scores["yeom"].members[rows]

    def margins(attacked):
        answers = audit.query.responses(attacked, samples)
        found = []
        for logits, label in zip(answers.logits, answers.labels, strict=True):
            odds = np.exp(logits - logits.max())
            found.append(np.log(odds[label]) - np.log(np.delete(odds, label).sum()))
        return np.array(found)

    phi = margins(model)
    losses = np.log1p(np.exp(-phi))
    wins = [(a < b) + 0.5 * (a == b) for a in losses[truth] for b in losses[~truth]]
    ours = [
        (a > b) + 0.5 * (a == b)
        for a in scores["yeom"].scores[rows][truth]
        for b in scores["yeom"].scores[rows][~truth]
    ]
    assert np.mean(ours) == pytest.approx(np.mean(wins), abs=1e-9)
    shadows = CentralShadows(audit.knowledge, audit.audited, SHADOWS).shadows(model, "in-out").shadows
    heard = np.stack([margins(shadow.model) for shadow in shadows])
    inside = np.stack([np.isin(samples, shadow.members) for shadow in shadows])
    ratio = np.zeros(len(samples))
    for side, sign in ((inside, 1), (~inside, -1)):
        means = np.array([heard[side[:, k], k].mean() for k in range(len(samples))])
        residuals = [heard[side[:, k], k] - means[k] for k in range(len(samples))]
        variance = np.concatenate(residuals).var() * 4 / 3  # of four models a side
        ratio += sign * (-((phi - means) ** 2) / (2 * variance) - 0.5 * np.log(variance))
    lira = scores["lira-online"].scores[rows]
    assert np.corrcoef(np.argsort(np.argsort(lira)), np.argsort(np.argsort(ratio)))[0, 1] > 0.9999
