"""Yeom et al. 2018: members have a lower loss."""

from __future__ import annotations

from app.attacks.context import AttackContext
from app.attacks.membership.base import MembershipAttack, Threat
from app.attacks.models import AttackedModel, Ids
from app.metrics.membership import Array


class Yeom(MembershipAttack):
    """Loss threshold (section 3 of the paper): the score is minus the loss, at most 0."""

    name = "yeom"
    threat = Threat(sees="loss on the sample", data="none", trains="nothing")

    def scores(self, target: AttackedModel, samples: Ids, context: AttackContext) -> Array:
        return -context.query.responses(target, samples).losses
