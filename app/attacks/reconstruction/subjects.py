"""Models that are inverted: the released one, or what one client sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.attacks.adaptive.base import Adaptation
from app.attacks.adaptive.factor_choice import FactorChoice
from app.attacks.models import AttackedModel, Snapshot, TargetKind
from app.attacks.protocols.base import few
from app.attacks.protocols.choices import Choice, seen_models
from app.attacks.public import no_samples
from app.attacks.reconstruction.findings import Conditions
from app.attacks.responses import Ids
from app.attacks.targets import Models
from app.attacks.world import World
from app.metrics.membership import NotAvailable

TRUTH = (
    "truth: mean of the training images of each class; only the gap between the nearest training image and the nearest "
    "other one is leakage"
)


@dataclass(frozen=True, eq=False)
class Subject:
    """One model under inversion.

    Attributes:
        conditions: who attacks what.
        model: the model, or why there is none.
        members: ids that it was trained on: the truth, for the evaluator.
    """

    conditions: Conditions
    model: Snapshot | NotAvailable
    members: Ids


def subjects(world: World, attack: str, target: TargetKind, client: int | None) -> Iterator[Subject]:
    """What an attack of that name inverts.

    Args:
        world: the run under attack.
        attack: name of the attack.
        target: the released model, or what a client sent.
        client: the client; None for the one with the most samples of those that were heard in the last kept round.
    """
    if target == "global":
        yield _released(world, attack)
        return
    yield _upload(world, attack, client)
    if "hidden-choice" in world.public.traits:
        yield _upload(world, attack, client, FactorChoice())


def _released(world: World, attack: str) -> Subject:
    rounds, members = world.public.rounds, np.sort(np.concatenate(world.truth.members))
    clients = world.clients
    conditions = Conditions(attack, attack, "anybody outside", "the released model", rounds, clients, (TRUTH,))
    if not world.final:
        return Subject(conditions, NotAvailable("the model has not been released yet"), members)
    return Subject(conditions, Snapshot(rounds, 1.0, world.transcript.external_view().released()), members)


def _upload(world: World, attack: str, client: int | None, *adaptations: Adaptation) -> Subject:
    models = seen_models(world, Choice("uploads", world.public.rounds, False, adaptations), ())
    chosen = client if client is not None else _usual(world, models)
    model = _model(models, chosen)
    round_ = world.public.rounds if isinstance(model, NotAvailable) else model.round
    clients = () if chosen is None else (chosen,)
    label = "-".join([attack, "uploads" if chosen is None else f"client-{chosen}"])
    conditions = Conditions(attack, label, "curious server", "one upload", round_, clients, (TRUTH,))
    for one in adaptations:
        conditions = conditions.adapted(one.name, one.what)
    members = [world.truth.members[one] for one in clients if one in world.clients]
    return Subject(conditions, model, np.sort(np.concatenate([no_samples(), *members])))


def _model(models: Models, client: int | None) -> Snapshot | NotAvailable:
    if client is None:
        return NotAvailable("; ".join(few([one.reason for one in models.values() if isinstance(one, NotAvailable)], 2)))
    found = models.get(client, NotAvailable(f"there is no client {client} in any round"))
    return found if isinstance(found, NotAvailable) else found.last


def _usual(world: World, models: Models) -> int | None:
    """The client with the most samples of those whose last upload is the most recent; None without any upload."""
    heard = {client: model for client, model in models.items() if isinstance(model, AttackedModel)}
    return max(heard, key=lambda client: (heard[client].last.round, heard[client].size, -client), default=None)
