"""Centrally trained shadow models of every target: looked up in the cache, or trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.attacks.adaptive.base import ReadingStrategy
from app.attacks.context import ShadowKind, ShadowSet, ShadowSource
from app.attacks.models import AttackedModel, Ids, Shadow, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.attacks.shadows.private_parts import as_seen, reading_notes, rounds_to_keep, shadow_reading
from app.attacks.shadows.splits import ShadowSplit, shared_size, split_in_out, split_out
from app.common.ranges import Several
from app.common.seeding import derive_key
from app.metrics.membership import NO_CLIENT

ShadowMode = Literal["central", "federated", "both"]
"""Train every shadow centrally, or repeat the whole federation with its method and its defenses; or both."""


@dataclass(frozen=True)
class ShadowSettings:
    """How shadow models are made.

    Attributes:
        mode: `central` trains each shadow by itself, a cheap approximation; `federated` repeats the whole federation
            with its method and defenses, as an adaptive attacker would; `both` reports the two attackers side by side.
        count: shadows per target, at least 2; an even number puts every sample into half of them.
    """

    mode: ShadowMode = "central"
    count: Several = 16


DEFAULT_SHADOWS = ShadowSettings()

CENTRAL = "shadows are centralised stand-ins: no method, no defense (shadows.mode federated repeats them)"


class CentralShadows(ShadowSource):
    """Shadows that are trained one by one.

    Shadows on the attacker's own data are shared by all targets of one width and of similar size, and by all runs that
    differ only in method or defense.

    Args:
        audited: audited samples by client, NO_CLIENT for the whole federation; not which of them are members.
        count: shadows per target.
        cache: folder to keep them in, None to keep them in memory only.
    """

    def __init__(
        self, knowledge: PublicKnowledge, audited: Mapping[int, Ids], count: int = 16, cache: Path | None = None
    ) -> None:
        self._knowledge, self._audited, self._count = knowledge, audited, count
        self._cache = ShadowCache(cache)
        self._made: dict[tuple[object, ...], list[Shadow]] = defaultdict(list)

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        count = min(first or self._count, self._count)
        self._make([target], kind, count)
        made = self._made[self._name(target, kind)]
        notes = (CENTRAL, *size_notes(made[0], target), *reading_notes(self._knowledge))
        return ShadowSet(tuple(made[:count]), notes)

    def prepare(self, targets: Sequence[AttackedModel], kind: ShadowKind) -> None:
        """Train the shadows of several targets together, which takes less time than those of one after another."""
        self._make(targets, kind, self._count)

    def _name(self, target: AttackedModel, kind: ShadowKind) -> tuple[object, ...]:
        """What targets with the same shadows have in common."""
        owner, reading = target.client if kind == "in-out" else None, shadow_reading(self._knowledge, target.reading)
        return kind, _size(target, kind), target.last.rate, target.rounds, owner, reading

    def _make(self, targets: Sequence[AttackedModel], kind: ShadowKind, count: int) -> None:
        """Train or find the first shadows of every target, `count` of each."""
        named = {self._name(target, kind): target for target in targets}
        lacking = {name: target for name, target in named.items() if len(self._made[name]) < count}
        splits = {
            name: self._splits(target, kind, range(len(self._made[name]), count)) for name, target in lacking.items()
        }
        orders = [self._order(target, kind, splits[name]) for name, target in lacking.items()]
        for name, models in zip(lacking, train_or_find(self._knowledge, orders, self._cache), strict=True):
            pairs = zip(models, splits[name].values(), strict=True)
            self._made[name].extend(Shadow(model, split.members, split.nonmembers) for model, split in pairs)

    def _splits(self, target: AttackedModel, kind: ShadowKind, numbers: range) -> dict[int, ShadowSplit]:
        """Members and non-members of shadows, by their numbers."""
        own, size = self._knowledge.auxiliary, _size(target, kind)
        if kind == "out":
            draws = derive_key(self._knowledge.seed, "shadow-draws", 0)
            return {number: split_out(own, size, draws, number) for number in numbers}
        draws = derive_key(self._knowledge.seed, "shadow-draws", target.client)
        audited = self._audited[target.client]
        return {number: split_in_out(audited, own, size, draws, number) for number in numbers}

    def _order(self, target: AttackedModel, kind: ShadowKind, splits: Mapping[int, ShadowSplit]) -> ShadowOrder:
        client = target.client if kind == "in-out" else 0
        seed = derive_key(self._knowledge.seed, f"shadows-{kind}", client, _size(target, kind))
        jobs = [ShadowJob(number, target.last.rate, split.members, seed) for number, split in splits.items()]
        return ShadowOrder(jobs, target.rounds, target.client, target.reading)


def _size(target: AttackedModel, kind: ShadowKind) -> int:
    """Training samples of a target's shadows, as far as there are so many."""
    return shared_size(target.size) if kind == "out" else target.size


@dataclass(frozen=True, eq=False)
class ShadowOrder:
    """Shadows to be made for one target, and how they are observed."""

    jobs: Sequence[ShadowJob]
    rounds: tuple[int, ...]  # in which they are observed, ascending, counted from 1
    client: int = NO_CLIENT  # whose model the target is
    reading: ReadingStrategy | None = None  # of the target


def train_or_find(
    knowledge: PublicKnowledge, orders: Sequence[ShadowOrder], cache: ShadowCache
) -> list[list[AttackedModel]]:
    """Models of the jobs of every order, from the cache or trained now, those of all orders together.

    Where the network has a private part, they are without it.
    """
    kept = [rounds_to_keep(knowledge, order.rounds) for order in orders]
    plans = [
        {cache.key(knowledge, job, rounds): job for job in order.jobs}
        for order, rounds in zip(orders, kept, strict=True)
    ]
    known, trained = _found(cache, [key for plan in plans for key in plan]), 0
    with cache.turn(list(plan) for plan in plans if not plan.keys() <= known.keys()):
        known |= _found(cache, [key for plan in plans for key in plan if key not in known])
        for rounds in dict.fromkeys(kept):
            wanted = [plan for plan, own in zip(plans, kept, strict=True) if own == rounds]
            missing = {key: job for plan in wanted for key, job in plan.items() if key not in known}
            known |= _trained(knowledge, missing, rounds, cache)
            trained += len(missing)
    knowledge.shadow_counts.update(trained=trained, reused=len(known) - trained)
    return [
        [_observed(knowledge, order, job, key, known[key]) for key, job in plan.items()]
        for order, plan in zip(orders, plans, strict=True)
    ]


def _observed(
    knowledge: PublicKnowledge, order: ShadowOrder, job: ShadowJob, key: str, snapshots: tuple[Snapshot, ...]
) -> AttackedModel:
    model = AttackedModel(key, order.client, len(job.samples), snapshots)
    return as_seen(knowledge, model, job.start, order.rounds, order.reading)


def _found(cache: ShadowCache, keys: Sequence[str]) -> dict[str, tuple[Snapshot, ...]]:
    return {key: snapshots for key in keys if (snapshots := cache.read(key)) is not None}


def _trained(
    knowledge: PublicKnowledge, missing: Mapping[str, ShadowJob], rounds: tuple[int, ...], cache: ShadowCache
) -> dict[str, tuple[Snapshot, ...]]:
    if not missing:
        return {}
    train = knowledge.shared_training or train_centrally
    trained = dict(zip(missing, train(knowledge, list(missing.values()), rounds), strict=True))
    for key, snapshots in trained.items():
        cache.write(key, snapshots)
    return trained


def size_notes(shadow: Shadow, target: AttackedModel) -> list[str]:
    """A note where shadows have less data than their target."""
    trained = len(shadow.members)
    if trained >= 0.8 * target.size:
        return []
    share = max(1, 5 * round(20 * trained / target.size))
    return [
        f"for want of data, shadows train on about {share} % as many samples as their target "
        "(--data.holdout.shadow sets more aside)"
    ]
