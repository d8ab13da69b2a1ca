"""Shadow models from repetitions of the whole federation, including its method and defenses."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from app.attacks.context import ShadowKind, ShadowSet, ShadowSource
from app.attacks.models import AttackedModel, Ids, Shadow
from app.attacks.public_knowledge import PublicKnowledge, no_samples
from app.attacks.shadows.cache import VERSION, turn
from app.attacks.shadows.shadow_store import size_notes
from app.attacks.shadows.splits import ShadowSplit, split_in_out, split_out
from app.attacks.targets import Models, aggregated_models, uploaded_models
from app.common.errors import UserError
from app.common.seeding import derive_key, numpy_generator
from app.common.wording import counted
from app.federation.transcript import Transcript
from app.metrics.membership import NO_CLIENT, NotAvailable


@dataclass(frozen=True, eq=False)
class Repetition:
    """A shadow federation to train: its number, each client's members, and where the transcript of rounds is kept."""

    number: int
    members: Sequence[Ids]
    rounds: tuple[int, ...]
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "done").is_file()

    def finish(self) -> None:
        """Mark the transcript as complete."""
        (self.folder / "done").touch()


class Federations(Protocol):
    """Repeats the attacked federation on other training sets."""

    @property
    def fingerprint(self) -> str:
        """Equal for federations with equal settings."""

    def run(self, repetitions: Sequence[Repetition]) -> None:
        """Train shadow federations; each is marked as finished as soon as it is."""


class FederatedShadows(ShadowSource):
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
        self._made: dict[tuple[ShadowKind, int], tuple[list[ShadowSplit], Path]] = {}

    def shadows(self, target: AttackedModel, kind: ShadowKind, first: int | None = None) -> ShadowSet:
        numbers = range(min(first or self._count, self._count))
        self._make(kind, [number for number in numbers if (kind, number) not in self._made])
        shadows = tuple(self._shadow(target, kind, number) for number in numbers)
        return ShadowSet(shadows, tuple(size_notes(shadows[0], target)))

    def _shadow(self, target: AttackedModel, kind: ShadowKind, number: int) -> Shadow:
        """The model of a repeated federation that corresponds to the target, with the same reading."""
        (splits, folder), rounds, client = self._made[kind, number], target.rounds, target.client
        # attack networks are cached by the keys of their shadows, and their inputs depend on the rounds
        prefix = f"shadow-{kind}-{number}-{folder.name[:12]}-{'.'.join(map(str, rounds))}"
        settings, transcript = (self._knowledge, rounds, prefix), Transcript(folder)
        if client == NO_CLIENT:
            models: Models = {client: aggregated_models(transcript.client_view(), *settings, target.reading)}
        else:
            models = uploaded_models(transcript.server_view(), *settings, False, target.reading, client)
        trained = [splits[one] for one in (sorted(self._knowledge.took_part) if client == NO_CLIENT else [client])]
        if isinstance(model := models[client], NotAvailable):
            raise UserError.of(
                f"client {client} has no upload in shadow federation {number}: {model.reason}",
                "there is no shadow of the target",
                "use --attacks.membership.shadows.mode central",
            )
        members = np.sort(np.concatenate([split.members for split in trained]))
        if kind == "in-out":
            return Shadow(model, members, np.sort(np.concatenate([split.nonmembers for split in trained])))
        used = np.concatenate([split.members for split in splits])
        return Shadow(model, members, np.setdiff1d(self._knowledge.auxiliary, used))

    def _make(self, kind: ShadowKind, numbers: Sequence[int]) -> None:
        """Look repeated federations up, or train them, all that are missing together."""
        made = {number: self._repetition(kind, number) for number in numbers}
        repetitions = [repetition for _, repetition in made.values()]
        missing: list[Repetition] = []
        if not all(repetition.done for repetition in repetitions):
            with turn(self._cache, [repetition.folder.name for repetition in repetitions]):
                missing = [repetition for repetition in repetitions if not repetition.done]
                if missing:
                    self._federations.run(missing)
        self._knowledge.shadow_counts.update(trained=len(missing), reused=len(repetitions) - len(missing))
        for number, (splits, repetition) in made.items():
            self._made[kind, number] = splits, repetition.folder

    def _repetition(self, kind: ShadowKind, number: int) -> tuple[list[ShadowSplit], Repetition]:
        """Training sets of a repeated federation, and the federation with the folder of its transcript."""
        splits = self._splits_in_out(number) if kind == "in-out" else self._splits_out(number)
        settings = [VERSION, self._federations.fingerprint, number, self._rounds, self._knowledge.seed]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
        for split in splits:
            digest.update(np.int64(len(split.members)).tobytes() + np.ascontiguousarray(split.members).tobytes())
        members = [split.members for split in splits]
        return splits, Repetition(number, members, self._rounds, self._cache / digest.hexdigest())

    def _splits_out(self, number: int) -> list[ShadowSplit]:
        """The attacker's own data in the proportions of the clients' sizes; every client gets at least 2 samples."""
        sizes = np.array(self._knowledge.sizes)
        split = split_out(self._knowledge.auxiliary, int(sizes.sum()), self._knowledge.seed, number)
        order = numpy_generator(self._knowledge.seed, "shadow-federation-out", number).permutation(split.members)
        spare = len(order) - 2 * len(sizes)
        if spare < 0:
            raise UserError.of(
                f"the attacker has {counted(len(order), 'sample')} of its own for "
                f"{counted(len(sizes), 'shadow client')}",
                "some would have fewer than two to train on",
                "raise --data.holdout.shadow, or use shadows.mode central",
            )
        bounds = (2 + np.floor(spare * sizes / sizes.sum())).astype(int).cumsum()
        return [ShadowSplit(np.sort(part), no_samples()) for part in np.split(order[: bounds[-1]], bounds[:-1])]

    def _splits_in_out(self, number: int) -> list[ShadowSplit]:
        """Half of each client's audited samples, filled up from the attacker's own data to the client's size."""
        generator = numpy_generator(self._knowledge.seed, "shadow-federation-filling", number)
        auxiliary = generator.permutation(self._knowledge.auxiliary)
        splits = []
        for client, size in enumerate(self._knowledge.sizes):
            seed = derive_key(self._knowledge.seed, "shadow-draws", client)
            wanted = max(0, size - len(self._audited[client]) // 2)
            filling, auxiliary = auxiliary[:wanted], auxiliary[wanted:]
            splits.append(split_in_out(self._audited[client], filling, size, seed, number))
        return splits
