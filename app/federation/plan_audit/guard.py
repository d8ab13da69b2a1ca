"""Whether secure aggregation can hide single clients under a plan: checked before any training.

Single sums and those of neighbouring rounds are compared here, layer by layer; `release_ledger` combines the sums of
all rounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Literal

from app.common.errors import Problem
from app.common.progress import track
from app.crypto.contributors import Contributors
from app.federation.checks.federation import weighs_by_loss
from app.federation.plan_audit.audit import audit
from app.federation.plan_audit.release_ledger import PlanBlocks, ReleaseLedger
from app.federation.private_coordinates import UploadedRound, uploaded_coordinates, uploaded_indices, uploaded_rounds

if TYPE_CHECKING:
    from app.federation.module import FederatedModule


Kind = Literal["few", "change", "weights"]

_TEXTS: dict[Kind, tuple[str, str, str]] = {
    "few": (
        "sums over few clients",
        "secure aggregation would reveal what {whom} sent there",
        "give every weight more contributors (more clients per width under --model.capacities, or another method: "
        "`rampart plan` shows who trains what); or {accept}",
    ),
    "change": (
        "sums whose clients change by few",
        "the difference of two sums narrows down what {whom} sent; a server that repeats a model reads it off",
        "use a method whose submodels stay the same or change for many clients at once; or {accept}, best together "
        "with differential privacy{bound}",
    ),
    "weights": (
        "sums of weights that differ by few clients",
        "the difference of two sums is the size of the update, the weight, and so the loss, of {whom}",
        "give every width several clients (--model.capacities), or use a server that does not weigh by losses "
        "(--model.server FedAvg); or {accept}",
    ),
}
"""Cause, consequence and remedy of every kind of finding."""

_ACCEPT = "accept it with --defenses.NAME.allow_singletons true, which is recorded"


@dataclass(frozen=True)
class GuardFinding:
    """Sums of a plan that would reveal single clients' updates."""

    # `few` contributors to a sum, a `change` of the contributors from one round to the next by few, or sums of secret
    # `weights` in one round whose contributors differ by few
    kind: Kind
    layer: str  # dotted name; empty for weights
    # number of such sums, over all coordinates and rounds, where equal ones in consecutive rounds count once; number of
    # pairs of sums for weights
    coordinates: int
    of: int  # number of all sums (or pairs)
    k: int  # fewer than this many clients count as few
    clients: tuple[int, ...]  # clients that would be revealed, ascending

    def __str__(self) -> str:
        who = f"client{'s' if len(self.clients) > 1 else ''} {_listed(self.clients)}"
        if self.kind == "few":
            fewer = "a single contributor" if self.k == 2 else f"fewer than {self.k} contributors"
            return f"{self.coordinates} of {self.of} sums of layer {self.layer} have {fewer}: {who}"
        by = "a single client" if self.k == 2 else f"fewer than {self.k} clients"
        if self.kind == "weights":
            return f"{self.coordinates} of {self.of} pairs of sums of weights differ by {by}: {who}"
        what = f"the contributors of {self.coordinates} sums of layer {self.layer}"
        return f"{what} change by {by} from one round to the next: {who}"


def examine(federation: FederatedModule, k: int, blocks: PlanBlocks | None = None) -> list[GuardFinding]:
    """What single sums and pairs of neighbouring rounds reveal in a prepared federation's plan.

    Sums over fewer than `k` clients, and changes by fewer than `k` clients, reveal them; `k` is at least 2. The plan's
    submodels are added to `blocks` on the way.
    """
    rounds = uploaded_rounds(federation, range(federation.rounds))
    bar = track(rounds, "auditing the plan", "rounds", total=federation.rounds, delay=2)
    changing = _changing(bar) if blocks is None else blocks.follow(_changing(bar))
    layers = audit(changing, federation.space, uploaded_coordinates(federation), k=k).layers
    few = [GuardFinding("few", layer.name, layer.below(k), layer.pairs, k, layer.alone) for layer in layers]
    changes = [
        GuardFinding("change", layer.name, layer.changes_below(k), layer.pairs, k, layer.exposed) for layer in layers
    ]
    weights = _weights(federation, k) if weighs_by_loss(federation) else ()
    return [finding for finding in (*few, *changes, *weights) if finding.coordinates]


def guard_problems(findings: list[GuardFinding], model_bound: bool) -> Iterator[Problem]:
    """The findings as problems that are reported before any training, one per kind."""
    bound = "" if model_bound else " and with masks bound to the model (--defenses.NAME.model_bound true)"
    for kind, (title, consequence, remedy) in _TEXTS.items():
        matching = [finding for finding in findings if finding.kind == kind]
        if matching:
            cause = "\n".join([f"the plan has {title}:", *(f"    {finding}" for finding in matching)])
            yield Problem(cause, consequence.format(whom=_whom(matching)), remedy.format(accept=_ACCEPT, bound=bound))


def combination_problems(ledger: ReleaseLedger) -> Iterator[Problem]:
    """Clients whom combinations of the sums of all planned rounds isolate, as a problem."""
    if ledger.planned is not None:
        yield Problem(
            f"the plan has sums that isolate clients together: {ledger.text(ledger.planned)}",
            "a server whose model nearly stands still solves for their updates",
            "let all clients take part in every round (--model.participation 1), or end before that round; or accept "
            "it with --defenses.NAME.guard warn, best together with differential privacy",
        )


def _weights(federation: FederatedModule, k: int) -> Iterator[GuardFinding]:
    """Pairs of blocks in one round whose contributors differ by few: each block has its own sum of weights."""
    seen = pairs = 0
    clients: set[int] = set()
    for uploaded in _changing(uploaded_rounds(federation, range(federation.rounds))):
        contributors = Contributors.of(federation.space.size, uploaded_indices(federation, uploaded.plan))
        sets = _sets(contributors) - {frozenset()}
        pairs += len(sets) * (len(sets) - 1) // 2
        for few in chain.from_iterable(combinations(contributors.clients, size) for size in range(1, k)):
            near = sum(one ^ frozenset(few) in sets for one in sets) // 2  # both ways round
            seen += near
            clients |= set(few) if near else set()
    yield GuardFinding("weights", "", seen, pairs, k, tuple(sorted(clients)))


def _sets(contributors: Contributors) -> set[frozenset[int]]:
    members: list[list[int]] = [[] for _ in range(contributors.blocks)]
    for client in contributors.clients:
        for block in contributors.blocks_of(client).tolist():
            members[block].append(client)
    return set(map(frozenset, members))


def _changing(rounds: Iterable[UploadedRound]) -> Iterator[UploadedRound]:
    """Rounds that differ from the previous one, renumbered: equal ones have the same sums, and no change."""
    before: Hashable = None
    number = 0
    for uploaded in rounds:
        now = tuple((client, uploaded.plan.key(client)) for client in sorted(uploaded.participants))
        if now != before:
            uploaded.round = number
            yield uploaded
            number += 1
        before = now


def _whom(findings: list[GuardFinding]) -> str:
    clients = sorted({client for finding in findings for client in finding.clients})
    return f"client{'s' if len(clients) > 1 else ''} {_listed(tuple(clients))}"


def _listed(clients: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, clients[:8]))
    return f"{shown} and {len(clients) - 8} more" if len(clients) > 8 else shown
