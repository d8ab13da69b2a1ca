"""Membership attacks by name."""

from __future__ import annotations

import difflib
import importlib

from app.attacks.membership.base import MembershipAttack
from app.attacks.membership.lira import LiRAOffline, LiRAOnline
from app.attacks.membership.nasr import Nasr
from app.attacks.membership.rmia import RMIAOffline, RMIAOnline
from app.attacks.membership.shokri import Shokri
from app.attacks.membership.song_mittal import Confidence, Correctness, Entropy, ModifiedEntropy
from app.attacks.membership.trajectory import DistilledTrajectory, UploadTrajectory
from app.attacks.membership.yeom import Yeom
from app.errors import UserError

ATTACKS: dict[str, type[MembershipAttack]] = {
    kind.name: kind
    for kind in (
        *(Yeom, Correctness, Confidence, Entropy, ModifiedEntropy, Shokri),
        *(LiRAOffline, LiRAOnline, RMIAOffline, RMIAOnline, DistilledTrajectory, UploadTrajectory, Nasr),
    )
}
"""Attacks by name, the cheap ones first."""


def make_attack(given: str | MembershipAttack) -> MembershipAttack:
    """An attack with its usual settings, by name or by the dotted path of a class; attacks are returned as they are.

    Raises:
        UserError: for a name that means nothing.
    """
    if isinstance(given, MembershipAttack):
        return given
    if given in ATTACKS:
        return ATTACKS[given]()
    module, _, name = given.rpartition(".")
    kind = None
    if module:
        try:
            kind = getattr(importlib.import_module(module), name, None)
        except ImportError:
            kind = None
    if not (isinstance(kind, type) and issubclass(kind, MembershipAttack)):
        near = difflib.get_close_matches(given, ATTACKS, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError.of(
            f"there is no membership attack {given!r}",
            "it cannot be run",
            f"{hint}choose from {', '.join(ATTACKS)}, or name a class of yours as module.Class",
        )
    return kind()
