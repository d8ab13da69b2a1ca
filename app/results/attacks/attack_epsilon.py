"""Everything that was measured about epsilon in a run, for `privacy.json`: by canaries, and by membership attacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from app.common.seeding import numpy_generator
from app.privacy.auditing.empirical import attack_epsilon
from app.privacy.statements import PrivacyStatement
from app.result import Result
from app.results.attacks.canaries import CanaryRecord
from app.results.attacks.membership import AttackRecord

USUAL_DELTA = 1e-5
"""Where nothing is claimed per sample."""

FEWEST = 20
"""Members, and non-members, from which on an attack is worth a bound."""


def measured_records(results: Sequence[Result], budgets: Iterable[PrivacyStatement]) -> list[dict[str, Any]]:
    """What canaries and membership attacks have measured, as plain data with a `text` for readers."""
    delta = max((budget.delta for budget in budgets if budget.unit == "sample"), default=USUAL_DELTA)
    canaries = [one.privacy() for one in results if isinstance(one, CanaryRecord)]
    return [*canaries, *_by_attacks([one for one in results if isinstance(one, AttackRecord)], delta)]


def _by_attacks(records: Sequence[AttackRecord], delta: float) -> Iterator[dict[str, Any]]:
    """Bounds of all attacks that have scores."""
    for record in records:
        if record.no_scores is not None:
            continue
        scores = record.scores
        if min(scores.member_count, scores.nonmember_count) < FEWEST:
            continue
        found = attack_epsilon(scores, delta, numpy_generator(0, "attack epsilon"))
        text = (
            f"{record.label}: epsilon per sample of at least {found:.3g} at delta {delta:.2g}, if samples of one run "
            "were independent trials (Clopper-Pearson, 95 %; the threshold is chosen on the other half of the samples)"
        )
        yield {"label": record.label, "unit": "sample", "epsilon": found, "delta": delta, "text": text}
