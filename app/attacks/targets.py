"""Turns what an adversary saw into models it can attack. Each function takes the one view that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.attacks.adaptive.base import ObservedModel, ReadingStrategy
from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.federation.plan import Plan
from app.federation.transcript import ClientView, ExternalView, ServerView, Upload
from app.metrics.membership import NO_CLIENT, NotAvailable

Models = dict[int, AttackedModel | NotAvailable]
"""By client; NO_CLIENT for the model of the whole federation."""


def released_model(view: ExternalView, knowledge: PublicKnowledge, prefix: str) -> AttackedModel:
    """The final model, as anybody outside sees it."""
    return _global(knowledge, prefix, (Snapshot(knowledge.rounds, 1.0, view.released()),))


def aggregated_models(
    view: ClientView,
    knowledge: PublicKnowledge,
    rounds: tuple[int, ...],
    prefix: str,
    reading: ReadingStrategy | None = None,
) -> AttackedModel:
    """The server's model after several rounds, as a participant sees it.

    Args:
        view: a participant's.
        knowledge: says how many samples there are.
        rounds: rounds to look at, ascending, counted from 1.
        prefix: of the model's key.
        reading: what an attacker who knows the defense makes of it.
    """
    if reading is None:
        return _global(knowledge, prefix, tuple(Snapshot(round_, 1.0, view.aggregate(round_)) for round_ in rounds))
    trainable = _trainable(knowledge)
    seen = [
        _whole(view.broadcast(round_), view.aggregate(round_), round_, trainable)
        for round_ in sorted({*reading.rounds, *rounds})
    ]
    return _global(knowledge, prefix, reading.snapshots(seen, rounds), reading)


def uploaded_models(
    view: ServerView,
    knowledge: PublicKnowledge,
    rounds: tuple[int, ...],
    prefix: str,
    last: bool,
    reading: ReadingStrategy | None = None,
    only: int | None = None,
) -> Models:
    """Every client's uploads, as an honest-but-curious server sees them.

    Args:
        view: the server's.
        knowledge: the public plan says which coordinates an upload is about.
        rounds: rounds to look at, ascending, counted from 1.
        prefix: of the models' keys.
        last: keep only each client's last upload among them; else all of them.
        reading: what an attacker who knows the defense makes of them, with the rounds before that it draws on.
        only: the one client that is wanted; without, all of them.
    """
    looked_at = sorted({*rounds, *(reading.rounds if reading is not None else ())})
    heard = _heard(view, knowledge, looked_at, only)
    return {
        client: _uploaded(knowledge, client, found, rounds, prefix, last, reading) for client, found in heard.items()
    }


def observed_uploads(
    view: ServerView, knowledge: PublicKnowledge, rounds: Sequence[int]
) -> dict[int, list[ObservedModel] | NotAvailable]:
    """What an honest-but-curious server reads of every client in some rounds, by client and round.

    Args:
        view: the server's.
        knowledge: the public plan says which coordinates an upload is about.
        rounds: ascending, counted from 1.
    """
    found: dict[int, list[ObservedModel] | NotAvailable] = {}
    for client, heard in _heard(view, knowledge, rounds, None).items():
        read = [one.observed() for one in heard]
        seen = [observed for observed in read if isinstance(observed, ObservedModel)]
        sealed = [observed for observed in read if isinstance(observed, NotAvailable)]
        found[client] = seen or (sealed[-1] if sealed else _silent(client, rounds))
    return found


def _heard(
    view: ServerView, knowledge: PublicKnowledge, rounds: Sequence[int], only: int | None
) -> dict[int, list[_Heard]]:
    """Messages of every client, or of one, by client and round."""
    heard: dict[int, list[_Heard]] = {client: [] for client in sorted(knowledge.took_part) if only in (None, client)}
    trainable = _trainable(knowledge)
    for round_ in rounds:
        broadcast = view.broadcast(round_) if view.readable(round_) else None
        scene = _Scene(round_, _plan_of(knowledge)(round_ - 1), broadcast, trainable)
        for upload in view.uploads(round_):
            if upload.client in heard:
                heard[upload.client].append(_Heard(scene, upload))
    return heard


@dataclass(frozen=True, eq=False)
class _Scene:
    """What the server knows of a round before any message."""

    round: int
    plan: Plan
    broadcast: Tensor | None
    trainable: int


@dataclass(frozen=True, eq=False)
class _Heard:
    """A message and the round it belongs to."""

    scene: _Scene
    upload: Upload

    def observed(self) -> ObservedModel | NotAvailable:
        """The client's model; coordinates it did not send are those of the broadcast: all the server knows of them."""
        scene, upload = self.scene, self.upload
        if upload.payload is None or scene.broadcast is None:
            what = "ciphertext" if upload.form == "ciphertext" else "masked sums"
            return NotAvailable(f"the server sees {what} only, no local model")
        if upload.payload.numel() == 0:
            return NotAvailable("clients send nothing")
        coordinates = torch.arange(scene.broadcast.numel()) if upload.index is None else upload.index
        index, model = scene.plan.index(upload.client).cpu(), scene.broadcast.clone()
        model[coordinates] = upload.payload.to(model.dtype)
        arrived = torch.zeros(model.numel(), dtype=torch.bool)
        arrived[coordinates] = True
        return ObservedModel(
            round=scene.round,
            rate=scene.plan.rate(upload.client),
            index=index,
            received=scene.broadcast[index],
            sent=model[index],
            arrived=arrived[index],
            trainable=int(torch.searchsorted(index, scene.trainable)),
        )


def _global(
    knowledge: PublicKnowledge, prefix: str, snapshots: tuple[Snapshot, ...], reading: ReadingStrategy | None = None
) -> AttackedModel:
    size = sum(_sizes(knowledge)[client] for client in knowledge.took_part)
    return AttackedModel(f"{_read(prefix, reading)}-global", NO_CLIENT, size, snapshots, reading)


def _uploaded(
    knowledge: PublicKnowledge,
    client: int,
    heard: list[_Heard],
    rounds: tuple[int, ...],
    prefix: str,
    last: bool,
    reading: ReadingStrategy | None,
) -> AttackedModel | NotAvailable:
    asked = [one.scene.round for one in heard if one.scene.round in rounds]
    if not asked:
        return _silent(client, rounds)
    asked = asked[-1:] if last else asked
    found = {one.scene.round: one.observed() for one in heard if reading is not None or one.scene.round in asked}
    for round_ in asked:
        if isinstance(sealed := found[round_], NotAvailable):
            return sealed
    seen = [observed for observed in found.values() if isinstance(observed, ObservedModel)]
    key, size = f"{_read(prefix, reading)}-client-{client}", _sizes(knowledge)[client]
    if reading is None:
        return AttackedModel(key, client, size, tuple(observed.snapshot for observed in seen))
    own = replace(reading, rounds=tuple(observed.round for observed in seen))
    return AttackedModel(key, client, size, own.snapshots(seen, asked), own)


def _silent(client: int, rounds: Sequence[int]) -> NotAvailable:
    where = ", ".join(map(str, rounds))
    return NotAvailable(f"client {client} sent nothing in the rounds that were kept ({where})")


def _whole(received: Tensor, aggregate: Tensor, round_: int, trainable: int) -> ObservedModel:
    """The server's model after a round."""
    coordinates = torch.arange(aggregate.numel())
    return ObservedModel(
        round_, 1.0, coordinates, received, aggregate, torch.ones_like(coordinates, dtype=torch.bool), trainable
    )


def _read(prefix: str, reading: ReadingStrategy | None) -> str:
    """Beginning of a key that tells models apart which were read in different ways."""
    if reading is None:
        return prefix
    return f"{prefix}-{reading.name}-{'.'.join(map(str, reading.rounds))}"


def _trainable(knowledge: PublicKnowledge) -> int:
    """Parameters of the server's network; they are the first coordinates of its vector."""
    return sum(parameter.numel() for parameter in knowledge.prototype.parameters())


def _plan_of(knowledge: PublicKnowledge) -> Callable[[int], Plan]:
    assert knowledge.plan_of is not None, "uploads can only be read with the public plan"
    return knowledge.plan_of


def _sizes(knowledge: PublicKnowledge) -> tuple[int, ...]:
    return _plan_of(knowledge)(0).client_pool.sizes
