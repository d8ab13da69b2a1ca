"""Lets new clients join a trained federation, and records the accuracies of newcomers."""

from __future__ import annotations

from collections.abc import Iterator

from app.federation.all_clients import Joining, LocalScore
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.results.run.fairness import JoinedClients, NewcomersResult


class NewcomerRecorder(FederatedCallback):
    """When training is over, newcomers fit their private part with everything shared frozen (WAFFLe, section 2.2).

    Newcomers that have joined during the training have fitted theirs already, and are measured with it.

    Example::

        rampart fit --config waffle --model.newcomers.clients 2
        rampart fit --config waffle --model.newcomers.clients 2 --model.newcomers.round 5
    """

    kind = "recorder"
    vectorisable = True

    def results(self, federation: FederatedModule) -> Iterator[NewcomersResult]:
        rounds = federation.trainer.current_epoch
        if rounds and federation.client_pool.absent:
            joined = _joined(federation, rounds - 1)
            if joined.clients:
                yield NewcomersResult(joined.record(), joined)


def _joined(federation: FederatedModule, round_: int) -> JoinedClients:
    joining, joined = Joining(federation, round_), federation.client_pool.joined(round_)
    scores: dict[str, tuple[LocalScore, ...]] = {"server": joining.scores("none")}
    if federation.personal:
        scores["mean"] = joining.scores("mean")
        scores |= {"own": joining.scores("own")} if joined else {"fitted": joining.fitted()}
    scores["fine_tuned"] = joining.fine_tuned()
    clients = tuple(local.client for local in scores["server"])
    return JoinedClients(
        clients,
        tuple(federation.data.groups[client] for client in clients),
        federation.newcomers.visits,
        {stage: tuple(local.score.accuracy for local in own) for stage, own in scores.items()},
        federation.newcomers.round if joined else None,
    )
