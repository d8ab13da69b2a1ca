"""Shadow models from repetitions of the whole federation, including its method and defenses."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from app.attacks.context import ShadowKind, ShadowSet, progress
from app.attacks.models import AttackedModel, Ids, Shadow
from app.attacks.public_knowledge import PublicKnowledge, no_samples
from app.attacks.shadows.cache import VERSION
from app.attacks.shadows.shadow_store import size_note
from app.attacks.shadows.splits import ShadowSplit, split_in_out, split_out
from app.attacks.targets import aggregated_models, uploaded_models
from app.errors import UserError
from app.federation.transcript import Transcript
from app.metrics.membership import NO_CLIENT
from app.seeding import derive_key, numpy_generator


class Federations(Protocol):
    """Repeats the attacked federation on other training sets."""

    @property
    def fingerprint(self) -> str:
        """Equal for federations with equal settings."""

    def run(self, number: int, members: Sequence[Ids], rounds: tuple[int, ...], folder: Path) -> None:
        """Train shadow federation `number` on each client's members; write the transcript of rounds to a folder."""


class FederatedShadows:
    """One repeated federation gives a shadow of the global model and one of every client's upload.

    Args:
        audited: audited samples by client; not which of them are members.
        rounds: in which any target has been observed, ascending, counted from 1.
        count: shadows per target.
        cache: folder to keep transcripts in; without one, they are kept until the end of the program.
    """

    def __init__(
        self,
        knowledge: PublicKnowledge,
        audited: Mapping[int, Ids],
        rounds: tuple[int, ...],
        federations: Federations,
        count: int = 16,
        cache: Path | None = None,
    ) -> None:
        self._knowledge, self._audited, self._rounds = knowledge, audited, rounds
        self._federations, self._count = federations, count
        self._temporary = tempfile.TemporaryDirectory() if cache is None else None
        self._cache = Path(self._temporary.name) if self._temporary is not None else Path(cache or "")
        self._splits: dict[tuple[ShadowKind, int], list[ShadowSplit]] = {}
        self._transcripts: dict[tuple[ShadowKind, int], Transcript] = {}

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        numbers = range(min(first or self._count, self._count))
        missing = [number for number in numbers if (kind, number) not in self._transcripts]
        for number in progress(missing, "shadow federations"):
            self._transcripts[kind, number] = self._run(kind, number)
        shadows = tuple(self._shadow(target, kind, number) for number in numbers)
        trained = len(shadows[0].members)
        notes = (size_note(trained, target.size),) if trained < 0.8 * target.size else ()
        return ShadowSet(shadows, notes)

    def _shadow(self, target: AttackedModel, kind: ShadowKind, number: int) -> Shadow:
        """The model of a repeated federation that corresponds to the target, with the same reading."""
        transcript, splits = self._transcripts[kind, number], self._splits_of(kind, number)
        rounds = target.rounds
        # attack networks are cached by the keys of their shadows, and their inputs depend on the rounds
        prefix = f"shadow-{kind}-{number}-{self._key(kind, number)[:12]}-{'.'.join(map(str, rounds))}"
        if target.is_global:
            model = aggregated_models(transcript.client_view(), self._knowledge, rounds, prefix, target.reading)
            inside = _joined([split.members for split in self._trained(splits)])
            return Shadow(model, inside, self._outside(kind, splits, NO_CLIENT))
        view, client = transcript.server_view(), target.client
        upload = uploaded_models(view, self._knowledge, rounds, prefix, False, target.reading, client)[client]
        if not isinstance(upload, AttackedModel):
            raise UserError.of(
                f"client {target.client} has no upload in shadow federation {number}: {upload.reason}",
                "there is no shadow of the target",
                "use --attacks.membership.shadows.mode central",
            )
        return Shadow(upload, splits[target.client].members, self._outside(kind, splits, target.client))

    def _outside(self, kind: ShadowKind, splits: list[ShadowSplit], client: int) -> Ids:
        """Known non-members: from the audited samples, or from the attacker's own data."""
        if kind == "in-out":
            chosen = self._trained(splits) if client == NO_CLIENT else [splits[client]]
            return _joined([split.nonmembers for split in chosen])
        return np.setdiff1d(self._knowledge.auxiliary, _joined([split.members for split in splits]))

    def _trained(self, splits: list[ShadowSplit]) -> list[ShadowSplit]:
        return [splits[client] for client in sorted(self._knowledge.took_part)]

    def _run(self, kind: ShadowKind, number: int) -> Transcript:
        folder = self._cache / self._key(kind, number)
        done = folder / "done"
        if not done.is_file():
            members = [split.members for split in self._splits_of(kind, number)]
            self._federations.run(number, members, self._rounds, folder)
            done.touch()
        return Transcript(folder)

    def _key(self, kind: ShadowKind, number: int) -> str:
        members = [split.members for split in self._splits_of(kind, number)]
        settings = [VERSION, self._federations.fingerprint, number, self._rounds, self._knowledge.seed]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
        for ids in members:
            digest.update(np.int64(len(ids)).tobytes() + np.ascontiguousarray(ids).tobytes())
        return digest.hexdigest()

    def _splits_of(self, kind: ShadowKind, number: int) -> list[ShadowSplit]:
        if (kind, number) not in self._splits:
            make = self._splits_in_out if kind == "in-out" else self._splits_out
            self._splits[kind, number] = make(number)
        return self._splits[kind, number]

    def _splits_out(self, number: int) -> list[ShadowSplit]:
        """The attacker's own data in the proportions of the clients' sizes; every client gets at least 2 samples."""
        sizes = np.array(self._knowledge.sizes)
        split = split_out(self._knowledge.auxiliary, int(sizes.sum()), self._knowledge.seed, number)
        order = numpy_generator(self._knowledge.seed, "shadow-federation-out", number).permutation(split.members)
        total = len(order)
        if total < 2 * len(sizes):
            raise UserError.of(
                f"the attacker can train {len(sizes)} shadow clients on {len(order)} samples of its own",
                "some would have fewer than two to train on",
                "raise --data.holdout.shadow, or use shadows.mode central",
            )
        spare = total - 2 * len(sizes)
        bounds = (2 + np.floor(spare * sizes / sizes.sum())).astype(int).cumsum()
        return [ShadowSplit(np.sort(part), no_samples()) for part in np.split(order[: bounds[-1]], bounds[:-1])]

    def _splits_in_out(self, number: int) -> list[ShadowSplit]:
        """Half of each client's audited samples, filled up from the attacker's own data to the client's size."""
        auxiliary = numpy_generator(self._knowledge.seed, "shadow-federation-filling", number).permutation(
            self._knowledge.auxiliary
        )
        splits = []
        for client, size in enumerate(self._knowledge.sizes):
            seed = derive_key(self._knowledge.seed, "shadow-draws", client)
            wanted = max(0, size - len(self._audited[client]) // 2)
            filling, auxiliary = auxiliary[:wanted], auxiliary[wanted:]
            splits.append(split_in_out(self._audited[client], filling, size, seed, number))
        return splits


def _joined(parts: list[Ids]) -> Ids:
    return np.sort(np.concatenate(parts))
