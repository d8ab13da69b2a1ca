"""Tests whether uploads reveal which factors a client uses, when training is over."""

from __future__ import annotations

from collections.abc import Iterator

from app.attacks.adaptive.factor_choice import FactorLayout
from app.attacks.audit_context import AuditContext
from app.attacks.factor_recovery import Choices, recover_factors
from app.common.errors import Problem, UserError, raise_all
from app.federation.hooks import FederatedCallback
from app.federation.module import FederatedModule
from app.federation.transcript import Transcript
from app.results.attacks.factor_recovery import FactorRecord
from callbacks.attacks.membership_inference import public_knowledge


class FactorRecovery(FederatedCallback):
    """Ranks the factors of every client by how far its upload moves them, and rebuilds its model; scored by the truth.

    For networks whose clients keep a choice of factors private (WAFFLe). The adversary is an honest-but-curious server
    that sees uploads. Runs when training is over, or later from the transcript and the last checkpoint.

    Example::

        rampart fit --config waffle --attacks.factors FactorRecovery
        rampart attack RUN --attacks factor-recovery
    """

    kind = "attack"
    vectorisable = True

    def problems(self, federation: FederatedModule) -> Iterator[Problem]:
        if not FactorLayout.of(federation.net).layers:
            yield Problem(
                f"{type(federation.net).__name__} has no factorised layers",
                "clients choose no factors that could be recovered",
                "leave the attack out, or set --model.net app.models.Factorised",
            )

    def on_transcript(self, federation: FederatedModule, transcript: Transcript) -> Iterator[FactorRecord]:
        raise_all(self.problems(federation))
        rounds = federation.trainer.current_epoch
        audit = AuditContext(public_knowledge(federation, rounds), transcript, federation.data.membership)
        if not (choices := true_choices(federation)):
            raise UserError.of(
                "the run has no checkpoint",
                "which factors its clients truly use is known from there alone",
                "train it again with --trainer.enable_checkpointing true, or with --config factor-recovery",
            )
        yield FactorRecord.of(recover_factors(audit, choices))


def true_choices(federation: FederatedModule) -> Choices:
    """Choice coordinates of every client that has taken part: for the evaluation only."""
    coordinates, personal = FactorLayout.of(federation.net).choice_coordinates, federation.personal
    choices = {}
    for client in personal.clients:
        vector = federation.space.read(federation.net).cpu()
        vector[personal.coordinates] = personal.of(client).to(vector)
        choices[client] = vector[coordinates]
    return choices
