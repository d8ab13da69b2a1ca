"""Models that an adversary can attack, from its view of the transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from app.attacks.adaptive.base import ObservedModel, ReadingStrategy
from app.attacks.context import Uploads
from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.federation.plan import Plan
from app.federation.transcript import ClientView, ExternalView, ServerView, Upload
from app.metrics.membership import NO_CLIENT, NotAvailable

Models = dict[int, AttackedModel | NotAvailable]
"""By client; NO_CLIENT for the model of the whole federation."""


def released_model(view: ExternalView, knowledge: PublicKnowledge, prefix: str) -> AttackedModel:
    """The final model, as an external adversary observes it."""
    return _global(knowledge, prefix, (Snapshot(knowledge.rounds, 1.0, view.released()),))


def aggregated_models(
    view: ClientView,
    knowledge: PublicKnowledge,
    rounds: tuple[int, ...],
    prefix: str,
    reading: ReadingStrategy | None = None,
) -> AttackedModel:
    """The server's model after several rounds (ascending, counted from 1), as a participant observes it.

    The key of the model starts with the prefix; the reading is that of an attacker who knows the defense.
    """
    if reading is None:
        return _global(knowledge, prefix, tuple(Snapshot(round_, 1.0, view.aggregate(round_)) for round_ in rounds))
    observed, trainable = [], _trainable(knowledge)
    for round_ in sorted({*reading.rounds, *rounds}):
        before, after = view.broadcast(round_), view.aggregate(round_)
        index = torch.arange(after.numel())
        arrived = torch.ones_like(index, dtype=torch.bool)
        observed.append(ObservedModel(round_, 1.0, index, before, after, arrived, trainable))
    return _global(knowledge, prefix, reading.snapshots(observed, rounds), reading)


def uploaded_models(
    view: ServerView,
    knowledge: PublicKnowledge,
    rounds: tuple[int, ...],
    prefix: str,
    last: bool,
    reading: ReadingStrategy | None = None,
    only: int | None = None,
) -> Models:
    """Every client's uploads, as an honest-but-curious server observes them.

    Args:
        rounds: ascending, counted from 1.
        prefix: of the models' keys.
        last: keep only each client's last upload among them.
        reading: of an attacker who knows the defense, with the earlier rounds that it uses.
        only: one client instead of all.
    """
    all_rounds = sorted({*rounds, *(reading.rounds if reading is not None else ())})
    models: Models = {}
    for client, messages in _messages(view, knowledge, all_rounds, only).items():
        attacked = [round_ for round_ in messages if round_ in rounds][-1 if last else 0 :]
        seen = {at: observed() for at, observed in messages.items() if reading is not None or at in attacked}
        hidden = [model for at in attacked if isinstance(model := seen[at], NotAvailable)]
        if hidden or not attacked:
            models[client] = hidden[0] if hidden else _no_upload(client, rounds)
            continue
        readable = [model for model in seen.values() if isinstance(model, ObservedModel)]
        own = None if reading is None else replace(reading, rounds=tuple(model.round for model in readable))
        snapshots = tuple(model.snapshot for model in readable) if own is None else own.snapshots(readable, attacked)
        key = f"{_key(prefix, reading)}-client-{client}"
        models[client] = AttackedModel(key, client, knowledge.sizes[client], snapshots, own)
    return models


def observed_uploads(
    view: ServerView, knowledge: PublicKnowledge, rounds: Sequence[int]
) -> dict[int, list[ObservedModel] | NotAvailable]:
    """Every client's readable uploads in some rounds (ascending, counted from 1), by client and round."""
    results: dict[int, list[ObservedModel] | NotAvailable] = {}
    for client, messages in _messages(view, knowledge, rounds, None).items():
        models = [observed() for observed in messages.values()]
        readable = [model for model in models if isinstance(model, ObservedModel)]
        hidden = [model for model in models if isinstance(model, NotAvailable)]
        results[client] = readable or (hidden[-1] if hidden else _no_upload(client, rounds))
    return results


def uploads_beside(view: ServerView, knowledge: PublicKnowledge, models: Sequence[AttackedModel]) -> Uploads:
    """Readable uploads of all clients in the rounds of the models, adapted as the models are."""
    reading, wanted = models[0].reading, {round_ for model in models for round_ in model.rounds}
    rounds = sorted({*wanted, *(reading.rounds if reading is not None else ())})
    beside = {}
    for client, observed in observed_uploads(view, knowledge, rounds).items():
        if not isinstance(observed, NotAvailable):
            adapted = observed if reading is None else reading.applied(observed)
            beside[client] = {model.round: model for model in adapted if model.round in wanted}
    return beside


_Messages = dict[int, Callable[[], ObservedModel | NotAvailable]]
"""A client's uploads by round; each call computes what the server observes of one."""


def _messages(
    view: ServerView, knowledge: PublicKnowledge, rounds: Sequence[int], only: int | None
) -> dict[int, _Messages]:
    messages: dict[int, _Messages] = {client: {} for client in sorted(knowledge.took_part) if only in (None, client)}
    trainable = _trainable(knowledge)
    for round_ in rounds:
        broadcast = view.broadcast(round_) if view.readable(round_) else None
        plan = knowledge.plan(round_ - 1)
        for upload in view.uploads(round_):
            if upload.client in messages:
                messages[upload.client][round_] = partial(_observed, round_, plan, broadcast, trainable, upload)
    return messages


def _observed(
    round_: int, plan: Plan, broadcast: Tensor | None, trainable: int, upload: Upload
) -> ObservedModel | NotAvailable:
    """The client's model; coordinates that it did not upload have the values of the broadcast."""
    payload, sent = upload.payload, upload.index
    if payload is None or broadcast is None:
        content = "ciphertext" if upload.form == "ciphertext" else "masked sums"
        return NotAvailable(upload.hidden or f"the server sees {content} only, no local model")
    if payload.numel() == 0:
        return NotAvailable("clients send nothing")
    coordinates = torch.arange(broadcast.numel()) if sent is None else sent
    index, model = plan.index(upload.client).cpu(), broadcast.clone()
    model[coordinates] = payload.to(model.dtype)
    arrived = torch.zeros(model.numel(), dtype=torch.bool)
    arrived[coordinates] = True
    return ObservedModel(
        round=round_,
        rate=plan.rate(upload.client),
        index=index,
        before=broadcast[index],
        after=model[index],
        arrived=arrived[index],
        trainable=int(torch.searchsorted(index, trainable)),
    )


def _global(
    knowledge: PublicKnowledge, prefix: str, snapshots: tuple[Snapshot, ...], reading: ReadingStrategy | None = None
) -> AttackedModel:
    size = sum(knowledge.sizes[client] for client in knowledge.took_part)
    return AttackedModel(f"{_key(prefix, reading)}-global", NO_CLIENT, size, snapshots, reading)


def _no_upload(client: int, rounds: Sequence[int]) -> NotAvailable:
    return NotAvailable(f"client {client} sent nothing in the rounds that were kept ({', '.join(map(str, rounds))})")


def _key(prefix: str, reading: ReadingStrategy | None) -> str:
    """Beginning of a key that differs between readings of the same model."""
    return prefix if reading is None else f"{prefix}-{reading.name}-{'.'.join(map(str, reading.rounds))}"


def _trainable(knowledge: PublicKnowledge) -> int:
    """Parameters of the server's network; they are the first coordinates of its vector."""
    return sum(parameter.numel() for parameter in knowledge.prototype.parameters())
