"""Asks whether uploads give away which factors a client uses, when the training is over."""

from __future__ import annotations

from collections.abc import Iterator

from app.attacks.adaptive.factor_choice import FactorLayout
from app.attacks.audit_context import AuditContext
from app.attacks.factor_recovery import Choices, FactorFinding, recover_factors
from app.errors import Problem, raise_all
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.metrics.membership import NotAvailable
from app.results.attacks.factor_recovery import FactorResults
from callbacks.attacks.membership_inference import public_knowledge


class FactorRecovery(FederatedCallback):
    """Ranks the factors of every client by what its upload moves, and rebuilds its model; judged by the truth.

    For networks whose clients keep a choice of factors to themselves (WAFFLe). Runs when training is over; `rampart
    attack RUN --attacks factor-recovery` runs it later, from the transcript and the last checkpoint.
    """

    kind = "observer"
    vectorisable = True

    def __init__(self) -> None:
        """Set up the attack; it has no options."""
        self.results: FactorResults | None = None
        self.found: FactorFinding | NotAvailable | None = None

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        """A network without a private choice."""
        if not FactorLayout.of(federation.net).layers:
            yield Problem(
                f"{type(federation.net).__name__} has no factorised layers",
                "clients choose no factors that could be recovered",
                "leave the attack out, or set --model.net app.models.Factorised",
            )

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> None:
        """Attack the finished run."""
        self.run(federation, transcript, federation.trainer.current_epoch)

    def run(self, federation: FederatedModule, transcript: Transcript, rounds: int) -> FactorFinding | NotAvailable:
        """Attack what was seen; the result is kept at once.

        Args:
            federation: whose network, plan and data are attacked, and whose clients' choices are the truth.
            transcript: what adversaries saw.
            rounds: rounds trained.
        """
        raise_all(self.problems(federation))
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        self.found = recover_factors(audit, true_choices(federation))
        if self.results is not None:
            self.results.keep(self.found)
        return self.found


def true_choices(federation: FederatedModule) -> Choices:
    """Choice coordinates of every client that has taken part: for the evaluator alone."""
    coordinates, personal = FactorLayout.of(federation.net).choice_coordinates, federation.personal
    found = {}
    for client in personal.clients:
        vector = federation.space.read(federation.net).cpu()
        vector[personal.coordinates] = personal.of(client).to(vector)
        found[client] = vector[coordinates]
    return found
