"""Threat models: the adversaries, what each of them observes, and what each attack of the report needs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.common.wording import counted
from app.results.run.store import RunRecord, Store


@dataclass(frozen=True)
class AdversaryRole:
    """An adversary: its title, what it observes of the federation, and how far it follows the protocol."""

    title: str
    observes: str
    behaviour: str


ROLES = {
    "external": AdversaryRole(
        "External adversary", "the model released after the last round", "queries the model, or reads its weights"
    ),
    "client": AdversaryRole(
        "Curious client",
        "the global model of every round in which it takes part, and its own data",
        "follows the protocol",
    ),
    "server": AdversaryRole(
        "Honest-but-curious server",
        "which weights each client trains, and its uploads; where the channel hides uploads, only their sum",
        "follows the protocol and stores what it receives",
    ),
    "collusion": AdversaryRole(
        "Server helped by a key holder",
        "every single upload under Paillier, opened with the private key that all clients share",
        "follows the protocol; one client gives it the private key",
    ),
    "colluding-clients": AdversaryRole(
        "Server colluding with participants",
        "the same as an honest-but-curious server, and the data and uploads of those participants",
        "follows the protocol; so do the participants, who tell it what they know",
    ),
    "malicious-client": AdversaryRole(
        "Malicious client",
        "the same as a curious client",
        "sends manipulated updates to learn more",
    ),
    "malicious": AdversaryRole(
        "Malicious server",
        "the same as an honest-but-curious server",
        "sends manipulated models, or selects clients, to learn more",
    ),
    "substitution": AdversaryRole(
        "Substituting server",
        "under Paillier, one client's upload as the next model, once a client or the release shows it",
        "hands clients that upload in place of the sum, with the right count of contributors",
    ),
}
"""Adversaries by their short names, the weakest first."""

SHORT = {
    "malicious server": "malicious",
    "curious server": "server",
    "colluding server": "collusion",
    "server with participants": "colluding-clients",
    "anybody outside": "external",
}
"""Short names of the adversaries of reconstructions."""


@dataclass(frozen=True)
class Requirement:
    """What one attack needed in some runs of the report."""

    attack: str  # its name
    role: str  # short name of the adversary
    target: str  # what was attacked
    reads: str  # what the attack reads
    data: str = ""  # data that the adversary owns; empty where the run does not say
    trains: str = ""  # models that the adversary trains; empty where the run does not say

    @property
    def purpose(self) -> str:
        """What the attack does, in one line; empty for attacks that do not come with the program."""
        known: dict[str, type] = {**ATTACKS, **ACTIVE, **PASSIVE}
        return (inspect.getdoc(known[self.attack]) or "").split("\n", 1)[0] if self.attack in known else ""


@dataclass(frozen=True)
class ThreatModels:
    """Adversaries with the attacks that they ran, and requirements of attacks with their adversaries and targets."""

    adversaries: list[tuple[AdversaryRole, list[str]]]
    requirements: list[tuple[Requirement, list[str]]]


def threat_models(store: Store) -> ThreatModels:
    """Threat models of all attacks that ran."""
    found = list(dict.fromkeys(each for run in store.runs for each in _requirements(run)))
    adversaries = [
        (adversary, list(dict.fromkeys(each.attack for each in found if each.role == role)))
        for role, adversary in ROLES.items()
    ]
    order = list(ROLES)
    grouped: dict[Requirement, dict[str, list[str]]] = {}
    for each in sorted(found, key=lambda each: (each.attack, order.index(each.role), each.target)):
        roles = grouped.setdefault(replace(each, role="", target=""), {})
        roles.setdefault(ROLES[each.role].title, []).append(each.target)
    requirements = [
        (each, [f"{title}: {', '.join(targets)}" for title, targets in roles.items()])
        for each, roles in grouped.items()
    ]
    return ThreatModels(adversaries, requirements)


def _requirements(run: RunRecord) -> Iterator[Requirement]:
    for conditions in (record.conditions for record in run.attacks):
        threat = conditions.threat
        target = conditions.read_target
        yield Requirement(conditions.attack, conditions.adversary, target, threat.sees, threat.data, threat.trains)
    for rebuilt in (record.conditions for record in run.reconstructions):
        count = len(rebuilt.clients)
        clients = {0: "no particular client", 1: "one client"}.get(count, counted(count, "client"))
        yield Requirement(rebuilt.attack, SHORT[rebuilt.adversary], f"images of {clients}", rebuilt.sees)
