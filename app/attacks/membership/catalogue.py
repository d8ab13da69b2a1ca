"""Membership attacks by name."""

from __future__ import annotations

from app.attacks.membership.base import MembershipAttack
from app.attacks.membership.fedmia import FedMIAGradient, FedMIALoss
from app.attacks.membership.lira import LiRAOffline, LiRAOnline
from app.attacks.membership.nasr import Nasr
from app.attacks.membership.qmia import QMIA
from app.attacks.membership.rmia import RMIAOffline, RMIAOnline
from app.attacks.membership.shokri import Shokri
from app.attacks.membership.song_mittal import Confidence, Correctness, Entropy, ModifiedEntropy
from app.attacks.membership.trajectory import DistilledTrajectory, UploadTrajectory
from app.attacks.membership.yeom import Yeom
from app.attacks.naming import by_name

ATTACKS: dict[str, type[MembershipAttack]] = {
    kind.name: kind
    for kind in (
        *(Yeom, Correctness, Confidence, Entropy, ModifiedEntropy, Shokri),
        *(LiRAOffline, LiRAOnline, RMIAOffline, RMIAOnline, DistilledTrajectory, UploadTrajectory, Nasr),
        *(FedMIALoss, FedMIAGradient, QMIA),
    )
}
"""Attacks by name, the cheap ones first."""


def make_attack(attack: str | MembershipAttack) -> MembershipAttack:
    """An attack with its default settings, by name or by the dotted path of a class; see `by_name`."""
    # a class is abstract by its annotation only: all that can be named are concrete
    return by_name(attack, ATTACKS, MembershipAttack, "membership attack")  # type: ignore[type-abstract]
