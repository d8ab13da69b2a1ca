"""Turns what an adversary saw into models it can attack. Each function takes the one view that it needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from app.attacks.models import AttackedModel, Snapshot
from app.attacks.public import Public
from app.federation.plan import Plan
from app.federation.transcript import ClientView, ExternalView, ServerView, Upload
from app.metrics.membership import NO_CLIENT, NotAvailable

Models = dict[int, AttackedModel | NotAvailable]
"""By client; NO_CLIENT for the model of the whole federation."""


def released_model(view: ExternalView, public: Public, prefix: str) -> AttackedModel:
    """The final model, as anybody outside sees it."""
    return _global(public, prefix, (Snapshot(public.rounds, 1.0, view.released()),))


def aggregated_models(view: ClientView, public: Public, rounds: tuple[int, ...], prefix: str) -> AttackedModel:
    """The server's model after several rounds, as a participant sees it."""
    return _global(public, prefix, tuple(Snapshot(round_, 1.0, view.aggregate(round_)) for round_ in rounds))


def uploaded_models(view: ServerView, public: Public, rounds: tuple[int, ...], prefix: str, last: bool) -> Models:
    """Every client's uploads, as an honest-but-curious server sees them.

    Args:
        view: the server's.
        public: the public plan says which cells an upload is about.
        rounds: rounds to look at, ascending, counted from 1.
        prefix: of the models' keys.
        last: keep only each client's last upload among them; else all of them.
    """
    seen: dict[int, list[Snapshot | NotAvailable]] = {client: [] for client in range(len(_sizes(public)))}
    for round_ in rounds:
        plan, broadcast = _plan_of(public)(round_ - 1), view.broadcast(round_)
        for upload in view.uploads(round_):
            seen[upload.client].append(_snapshot(upload, plan, broadcast, round_))
    return {client: _uploaded(public, client, found, rounds, prefix, last) for client, found in seen.items()}


def _global(public: Public, prefix: str, snapshots: tuple[Snapshot, ...]) -> AttackedModel:
    return AttackedModel(f"{prefix}-global", NO_CLIENT, sum(_sizes(public)), snapshots)


def _uploaded(
    public: Public,
    client: int,
    found: list[Snapshot | NotAvailable],
    rounds: tuple[int, ...],
    prefix: str,
    last: bool,
) -> AttackedModel | NotAvailable:
    if not found:
        where = ", ".join(map(str, rounds))
        return NotAvailable(f"client {client} sent nothing in the rounds that were kept ({where})")
    looked_at = found[-1:] if last else found
    snapshots = tuple(snapshot for snapshot in looked_at if isinstance(snapshot, Snapshot))
    if len(snapshots) < len(looked_at):
        return next(snapshot for snapshot in looked_at if isinstance(snapshot, NotAvailable))
    return AttackedModel(f"{prefix}-client-{client}", client, _sizes(public)[client], snapshots)


def _snapshot(upload: Upload, plan: Plan, broadcast: Tensor, round_: int) -> Snapshot | NotAvailable:
    """The client's model; cells it did not send are those of the broadcast, which is all the server knows of them."""
    if upload.payload is None:
        what = "ciphertext" if upload.form == "ciphertext" else "masked sums"
        return NotAvailable(f"the server sees {what} only, no local model")
    if upload.payload.numel() == 0:
        return NotAvailable("clients send nothing")
    whole = torch.arange(broadcast.numel())
    index, cells = plan.index(upload.client).cpu(), whole if upload.index is None else upload.index
    model = broadcast.clone()
    model[cells] = upload.payload.to(model.dtype)
    return Snapshot(round_, plan.rate(upload.client), model[index])


def _plan_of(public: Public) -> Callable[[int], Plan]:
    assert public.plan_of is not None, "uploads can only be read with the public plan"
    return public.plan_of


def _sizes(public: Public) -> tuple[int, ...]:
    return _plan_of(public)(0).roster.sizes
