"""From an isolated update to results: read by the attacker, judged beside the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from app.attacks.public import Public
from app.attacks.reconstruction.findings import Conditions, ReconstructionFinding, attempted
from app.attacks.reconstruction.isolation import IsolatedUpdate
from app.attacks.reconstruction.judging import assess, legacy_details, trained_on
from app.attacks.reconstruction.reading import Reading
from app.federation.parameters import ParameterSpace
from datamodules.split import Membership


@dataclass(frozen=True, eq=False)
class Judge:
    """Reads images from updates and sets them beside what was trained on.

    Attributes:
        reading: how the attacker reads images.
        public: what the attacker knows.
        membership: who trained on what; only for the judgement.
        legacy: whether to add the scores of the published evaluation.
    """

    reading: Reading
    public: Public
    membership: Membership
    legacy: bool = False

    def findings(
        self, conditions: Conditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> Iterator[ReconstructionFinding]:
        """The result; a second one where the defenses call for a smarter reading.

        Args:
            conditions: who attacked what.
            update: what was isolated, or read from an upload.
            details: numbers that are known already.
        """
        conditions = replace(conditions, clients=update.clients)  # some of those that were attacked may have stayed out
        yield attempted(conditions, lambda: self._judged(conditions, update, details))
        if "pruned-uploads" in self.public.traits:
            adapted = conditions.adapted("refilled", "zeroed cells taken for unmoved")
            yield attempted(adapted, lambda: self._judged(adapted, update.refilled(), details))

    def _judged(
        self, conditions: Conditions, update: IsolatedUpdate, details: Mapping[str, float]
    ) -> ReconstructionFinding:
        public = self.public
        truth = trained_on(self.membership, public, update.clients, update.round)
        candidates = self.reading.candidates(update, public, ParameterSpace(public.prototype), truth.labels)
        numbers = dict(details)
        if self.legacy:
            assert public.plan_of is not None
            participants = public.plan_of(update.round).participants
            numbers |= legacy_details(
                self.membership, public, participants, update.round, conditions.clients, candidates
            )
        return ReconstructionFinding(conditions, *assess(candidates, truth, public), numbers)
