"""Who the adversaries are, what each of them sees, and what each attack of the report needs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.attacks.membership.catalogue import ATTACKS
from app.attacks.reconstruction.catalogue import ACTIVE, PASSIVE
from app.results.report.markup import Html, joined, plain_table, tag
from app.results.run.store import RunRecord, Store


@dataclass(frozen=True)
class Role:
    """An adversary.

    Attributes:
        title: what it is called.
        sees: what it sees of the federation.
        does: how far it keeps to the protocol.
    """

    title: str
    sees: str
    does: str


ROLES = {
    "external": Role(
        "Somebody outside", "the model that is released after the last round", "asks it questions, or reads its weights"
    ),
    "client": Role(
        "A participant",
        "the server's model in every round it takes part in, and its own data",
        "keeps to the protocol",
    ),
    "server": Role(
        "An honest-but-curious server",
        "who trains which cells, and what arrives from each client; where the channel hides uploads, only their sum",
        "keeps to the protocol and keeps what it sees",
    ),
    "malicious": Role(
        "A malicious server",
        "what an honest-but-curious server sees",
        "sends manipulated models, or chooses who takes part, to learn more",
    ),
}
"""Adversaries by their short names, the weakest first."""

SHORT = {"malicious server": "malicious", "curious server": "server", "anybody outside": "external"}


@dataclass(frozen=True)
class Need:
    """What one attack assumed in some runs of the report.

    Attributes:
        attack: its name.
        role: short name of the adversary.
        target: what was attacked.
        sees: what it reads.
        data: what data it owns; empty where that is not told.
        trains: what it trains; empty where that is not told.
    """

    attack: str
    role: str
    target: str
    sees: str
    data: str = ""
    trains: str = ""


def threat_section(store: Store) -> Html:
    """Adversaries, and what the attacks that were run need."""
    needs = list(dict.fromkeys(need for run in store.runs for need in _needs(run)))
    roles = [
        (role.title, role.sees, role.does, ", ".join(_attacks(needs, short)) or "none in this report")
        for short, role in ROLES.items()
    ]
    adversaries = plain_table(("Adversary", "Sees", "Does", "Attacks"), roles, "Adversaries, the weakest first")
    if not needs:
        return joined((adversaries, tag("p", "No run of this report was attacked.")))
    return joined((adversaries, _needs_table(needs)))


def _needs_table(needs: list[Need]) -> Html:
    """One line per attack, with every adversary who ran it and what was attacked."""
    order = list(ROLES)
    whose: dict[Need, dict[str, list[str]]] = {}
    for need in sorted(needs, key=lambda need: (need.attack, order.index(need.role), need.target)):
        roles = whose.setdefault(replace(need, role="", target=""), {})
        roles.setdefault(need.role, []).append(need.target)
    rows = [
        (
            joined((need.attack, tag("small", purpose(need.attack), class_="purpose"))),
            joined(tag("div", f"{ROLES[role].title}: {', '.join(targets)}") for role, targets in roles.items()),
            *(told or "–" for told in (need.sees, need.data, need.trains)),
        )
        for need, roles in whose.items()
    ]
    head = ("Attack", "Adversary and target", "Reads", "Owns", "Trains")
    return plain_table(head, rows, "What the attacks of this report need")


def purpose(attack: str) -> str:
    """What an attack does, in one line; empty for attacks that do not come with the program."""
    known: dict[str, type] = {**ATTACKS, **ACTIVE, **PASSIVE}
    return (inspect.getdoc(known[attack]) or "").split("\n", 1)[0] if attack in known else ""


def _attacks(needs: list[Need], role: str) -> list[str]:
    return list(dict.fromkeys(need.attack for need in needs if need.role == role))


def _needs(run: RunRecord) -> Iterator[Need]:
    for record in run.attacks:
        told, threat = record.conditions, record.conditions.threat
        yield Need(told.attack, told.adversary, told.read_target, threat.sees, threat.data, threat.trains)
    for found in run.reconstructions:
        of = found.conditions
        yield Need(of.attack, SHORT[of.adversary], _whom(len(of.clients)), of.sees)


def _whom(clients: int) -> str:
    return "images of " + {0: "anybody", 1: "one client"}.get(clients, f"{clients} clients")
