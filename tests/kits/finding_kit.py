"""Findings with known leakage: scores from Gaussians, measured as the attacks measure them."""

from dataclasses import fields

import numpy as np

from app.attacks.findings import AttackConditions, CapacityRow, Finding, ReportedNumber, unavailable
from app.attacks.membership.base import Threat
from app.metrics.bootstrap import Bootstrap
from app.metrics.leakage import measure_leakage
from app.metrics.membership import MembershipScores, NotAvailable
from app.metrics.vulnerability import client_table
from app.result import IN_MEMORY
from app.results.attacks.membership import AttackRecord

THREAT = Threat(sees="loss on the sample", data="none", trains="nothing")
QUICK = Bootstrap(resamples=50)
REASON = "the server sees sums of updates only, and this attack reads single ones"


def conditions(attack="yeom", target="global", protocol="audit", adversary="external", adaptation=""):
    """Conditions of an attack that assumes little."""
    return AttackConditions(attack, target, protocol, adversary, THREAT, adaptation=adaptation)


def gaussian_scores(distance=1.0, clients=4, rows=100, seed=0, first=0):
    """As many members N(distance, 1) as non-members N(0, 1) of every client; sample ids count from `first`."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    truth = np.tile(np.arange(rows) % 2 == 0, clients)
    samples = first + np.arange(truth.size)
    return MembershipScores.of(rng.normal(size=truth.size) + distance * truth, truth, samples, owner)


def finding(attack="yeom", target="global", distance=1.0, clients=4, rows=100, seed=0, known=True, **others):
    """A finding with clients of 10, 20, 30 ... samples, and a threshold from other samples unless there is none."""
    scores = gaussian_scores(distance, clients, rows, seed)
    knowledge = gaussian_scores(distance, clients, 20, seed + 1, first=10**6) if known else None
    named = {name: others.pop(name) for name in ("protocol", "adversary", "adaptation") if name in others}
    return Finding(
        conditions(attack, target, **named),
        scores,
        measure_leakage(scores, knowledge, bootstrap=QUICK),
        client_table(scores, {client: 10 * (client + 1) for client in range(clients)}, QUICK),
        seconds=1.5,
        **others,
    )


def full_finding(**others):
    """A finding with everything: widths, one of them without a number, figures, notes."""
    bare = finding("lira-online", "uploads", protocol="fedfa", adversary="server", **others)
    wide = CapacityRow(1.0, 3, bare.clients[0].leakage)
    narrow = CapacityRow(0.5, 1, NotAvailable("width 0.5 has no non-members"))
    figures = (ReportedNumber("Adv %", 12.34, ((0, 3.06), (1, 21.62))), ReportedNumber("AUC", 0.6543))
    return Finding(
        bare.conditions, bare.scores, bare.leakage, bare.clients, (wide, narrow), figures, ("one", "two"), 2.0
    )


def missing(attack="nasr", target="uploads", reason=REASON, **others):
    """A finding without numbers."""
    return unavailable(conditions(attack, target, adversary="server"), reason, **others)


def records(found):
    """Findings as results, in their order."""
    return [AttackRecord.of(one) for one in found]


def kept(result):
    """Everything of a result that its JSON file must hold, by name; equal for equal results."""
    return {each.name: getattr(result, each.name) for each in fields(result) if each.metadata != IN_MEMORY}
