"""Centrally trained shadow models of every target: looked up in the cache, or trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.attacks.adaptive.base import ReadingStrategy
from app.attacks.context import ShadowKind, ShadowSet
from app.attacks.models import AttackedModel, Ids, Shadow, Snapshot
from app.attacks.public_knowledge import PublicKnowledge
from app.attacks.shadows.cache import ShadowCache
from app.attacks.shadows.central import ShadowJob, train_centrally
from app.attacks.shadows.private_parts import as_seen, reading_notes, rounds_to_keep, shadow_reading
from app.attacks.shadows.splits import shared_size, split_in_out, split_out
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


class CentralShadows:
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
        size = shared_size(target.size) if kind == "out" else target.size
        owner, reading = target.client if kind == "in-out" else None, shadow_reading(self._knowledge, target.reading)
        made = self._made[kind, size, target.last.rate, target.rounds, owner, reading]
        count = min(first or self._count, self._count)
        if len(made) < count:
            made.extend(self._make(target, kind, size, range(len(made), count)))
        notes = (CENTRAL, *size_notes(made[0], target), *reading_notes(self._knowledge))
        return ShadowSet(tuple(made[:count]), notes)

    def _make(self, target: AttackedModel, kind: ShadowKind, size: int, numbers: range) -> list[Shadow]:
        knowledge, client = self._knowledge, target.client if kind == "in-out" else 0
        draws = derive_key(knowledge.seed, "shadow-draws", client)
        if kind == "out":
            splits = [split_out(knowledge.auxiliary, size, draws, number) for number in numbers]
        else:
            audited = self._audited[client]
            splits = [split_in_out(audited, knowledge.auxiliary, size, draws, number) for number in numbers]
        seed, rate = derive_key(knowledge.seed, f"shadows-{kind}", client, size), target.last.rate
        jobs = [ShadowJob(number, rate, split.members) for number, split in zip(numbers, splits, strict=True)]
        models = train_or_find(knowledge, jobs, target.rounds, seed, self._cache, target.client, target.reading)
        return [Shadow(model, split.members, split.nonmembers) for model, split in zip(models, splits, strict=True)]


def train_or_find(
    knowledge: PublicKnowledge,
    jobs: Sequence[ShadowJob],
    rounds: tuple[int, ...],
    seed: int,
    cache: ShadowCache,
    client: int = NO_CLIENT,
    reading: ReadingStrategy | None = None,
) -> list[AttackedModel]:
    """Models of the jobs, from the cache or trained now; without their private part where the network has one.

    They are observed in the given rounds (ascending, counted from 1) with the reading of their target. The seed is the
    key of initial values, batches and augmentation.
    """
    kept = rounds_to_keep(knowledge, rounds)
    keys = [cache.key(knowledge, job, kept, seed) for job in jobs]
    known, missing = _found(cache, keys), dict[str, ShadowJob]()
    if len(known) < len(set(keys)):
        with cache.turn(keys):
            known |= _found(cache, [key for key in keys if key not in known])
            missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in known}
            known |= _trained(knowledge, missing, kept, seed, cache)
    knowledge.shadow_counts.update(trained=len(missing), reused=len(known) - len(missing))
    models = [AttackedModel(key, client, len(job.samples), known[key]) for key, job in zip(keys, jobs, strict=True)]
    starts = [derive_key(seed, "initialisation", job.number) for job in jobs]
    return [as_seen(knowledge, model, start, rounds, reading) for model, start in zip(models, starts, strict=True)]


def _found(cache: ShadowCache, keys: Sequence[str]) -> dict[str, tuple[Snapshot, ...]]:
    return {key: snapshots for key in keys if (snapshots := cache.read(key)) is not None}


def _trained(
    knowledge: PublicKnowledge,
    missing: Mapping[str, ShadowJob],
    rounds: tuple[int, ...],
    seed: int,
    cache: ShadowCache,
) -> dict[str, tuple[Snapshot, ...]]:
    if not missing:
        return {}
    train = knowledge.shared_training or train_centrally
    trained = dict(zip(missing, train(knowledge, list(missing.values()), rounds, seed), strict=True))
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
